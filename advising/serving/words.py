"""The serving plan in words and numbers: for a terminal, and as data for ``--json``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dovetail.advising.serving.fleet import Fleet, ServerSeat, ServingPlan
from dovetail.advising.serving.scenario import LOADS, Serving
from dovetail.advising.serving.shared import SERVER_CASES, ServerLevel, SharedSplit
from dovetail.advising.settings import settings
from dovetail.advising.sharing import RESERVE_MIB
from dovetail.toolkit.tables import (
    TableColumn,
    fact_lines,
    named_lines,
    stacked,
    table,
    title,
)
from dovetail.toolkit.wording import enumerated, figure, gib, number

if TYPE_CHECKING:
    from rich.console import RenderableType

_MOST_ROWS: Final = 20
_MOST_NAMED: Final = 5
_MOST_OBSTACLES: Final = 5
_LARGE: Final = 100.0

_ESTIMATES: Final = (
    "Slowdowns that were not measured follow from a law that was fitted on one H200; no server of "
    "a language model was among its workloads. Measure a pair before you promise its latencies."
)
_ONE_BY_ONE: Final = (
    "Start the servers of a GPU in this order, each after the previous one answers: vLLM counts "
    "the memory that others take while it starts as its own."
)


class ServingWords:
    """What to say of the plans for what is to be served.

    Parameters
    ----------
    serving : Serving
        The file.
    plans : sequence of ServingPlan
        A plan for each GPU model that can serve all models.
    reasons : sequence of str
        Why other GPU models cannot.
    path : str
        The name of the file.
    """

    def __init__(
        self, serving: Serving, plans: Sequence[ServingPlan], reasons: Sequence[str], path: str
    ) -> None:
        self.serving, self.plans, self.reasons, self.path = serving, plans, reasons, path
        self.plan = min(plans, key=_cost_of)
        self.fleet = self.plan.fleets["low"]

    def view(self) -> RenderableType:
        """Return the plan for a terminal."""
        return stacked(
            fact_lines(*self.facts()),
            "",
            table(self.saving_heads(), self.saving_rows()),
            f"\n{self.proof()}",
            *self._layout(),
            *self._typed(),
            *self._others(),
        )

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield what is to be served."""
        yield "advice for", f"{self.path} ({self.serving.name})"
        yield "models", self._models()
        yield "basis", self.basis()

    def _models(self) -> str:
        names = list(self.serving.models)
        named = names[:_MOST_NAMED]
        left = len(names) - len(named)
        told = enumerated([*named, f"{left:,} more"] if left else named)
        return f"{number(len(names), 'model')}: {told}"

    def basis(self) -> str:
        """Return what the latencies on shared GPUs come from."""
        shared = [seat for seats in self.fleet.gpus if len(seats) > 1 for seat in seats]
        measured = sum(seat.measured for seat in shared)
        if not shared:
            return "runs of each server alone"
        if measured == len(shared):
            return "measured together, under loads as high"
        of = f"measured together for {measured} of {len(shared)} servers that share, else "
        return f"{of if measured else ''}estimates by the law of MPS, with bounds"

    def saving_heads(self) -> list[TableColumn | str]:
        """Return the heads of the table of GPUs."""
        return [TableColumn(""), "one server\na GPU", "sharing:\nlow", "\nlikely"]

    def saving_rows(self) -> list[list[str]]:
        """Return GPUs, and their cost, without sharing and in each case."""
        rows = []
        for plan in self.plans:
            several = f"{plan.gpu.model}: " if len(self.plans) > 1 else ""
            used = [len(plan.fleets[case].gpus) for case in SERVER_CASES]
            changes = [_with_change(gpus, plan.alone) for gpus in used]
            rows.append([f"{several}GPUs", f"{plan.alone:,}", *changes])
            cost = plan.gpu.cost_per_hour
            if cost is not None:
                costs = [_amount(gpus * cost) for gpus in (plan.alone, *used)]
                rows.append([f"{several}cost an hour", *costs])
        return rows

    def headline(self) -> str:
        """Return how many GPUs are enough, in a sentence."""
        gpus, alone = len(self.fleet.gpus), self.plan.alone
        are = "is" if gpus == 1 else "are"
        return f"{gpus:,} {self.plan.gpu.model} {are} enough, {alone:,} with one server a GPU"

    def proof(self) -> str:
        """Return what is proven of the plan."""
        fleet, gpu = self.fleet, self.plan.gpu
        servers, gpus = number(fleet.servers, "server"), len(fleet.gpus)
        fit = (
            f"{servers} fit on {gpus:,} {gpu.model}"
            if gpus < fleet.servers
            else f"{servers} {'needs' if gpus == 1 else 'need'} a GPU each, {gpus:,} {gpu.model}"
        )
        kept = f"all promises kept by {self._evidence()}"
        most = self.serving.max_servers_per_gpu
        if fleet.complete:
            proof = (
                f"no fewer are possible with up to {most} on a GPU at the splits compared, proven."
            )
        elif fleet.optimal:
            proof = (
                "no fewer are possible for these servers, proven; with more servers they may be."
            )
        else:
            proof = "fewer may be possible, the search has ended early."
        return f"{fit}, with {kept}: {proof} {self._missing()}".rstrip()

    def _evidence(self) -> str:
        shared = [seat for seats in self.fleet.gpus if len(seats) > 1 for seat in seats]
        if not shared:
            return "the runs alone"
        return "measurements" if all(seat.measured for seat in shared) else "bounds of slowdowns"

    def _missing(self) -> str:
        there, gpus = self.plan.gpu.count, len(self.fleet.gpus)
        if there is None or there >= gpus:
            return ""
        missing = gpus - there
        few, need = "is" if there == 1 else "are", "is" if missing == 1 else "are"
        more = f"{missing:,} more GPU{'' if missing == 1 else 's'}"
        return f"But there {few} {there:,}: {more} {need} needed."

    def _layout(self) -> Iterator[RenderableType]:
        yield title(f"who runs with whom on {self.plan.gpu.model} (case low)")
        columns = (
            TableColumn("GPU", right=True),
            TableColumn("server", folds=True),
            TableColumn("load", right=True),
            TableColumn("SMs %", right=True),
            TableColumn("GiB", right=True),
            TableColumn("p99 (ms) of the promise"),
            TableColumn("basis"),
        )
        rows = self.layout_rows()
        yield table(columns, rows[:_MOST_ROWS], names=1)
        if len(rows) > _MOST_ROWS:
            yield f"and {len(rows) - _MOST_ROWS:,} more servers (--json, --report)"

    def layout_rows(self) -> list[list[str]]:
        """Return a row for each server, in the order of starting on each GPU."""
        return [
            [
                f"{g + 1}" if k == 0 else "",
                seat.name,
                load_text(seat.level),
                f"{seat.share}",
                gib(seat.level.memory_mib),
                promised_text(seat.level, seat.latencies),
                basis_text(seat, len(seats) > 1, "low"),
            ]
            for g, seats in enumerate(self.fleet.gpus)
            for k, seat in enumerate(seats)
        ]

    def _typed(self) -> Iterator[RenderableType]:
        first = self.fleet.gpus[0]
        if len(first) < 2:
            return
        yield title("what to type in on GPU 1, in this order (all others: --report, --json)")
        yield named_lines((seat.name, self.command(seat)) for seat in first)

    def command(self, seat: ServerSeat) -> str:
        """Return the line that starts a server on a shared GPU."""
        variables = f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={seat.share} " * (seat.share < 100)
        model = seat.level.model
        if model.gpu_memory_utilization is None and model.serve is None:
            return f"{variables}... (its command; it needs {gib(seat.level.memory_mib)} GiB)"
        part = math.floor(1e4 * self._fraction(seat) + 1e-9) / 1e4
        name = model.serve or "MODEL"
        return f"{variables}vllm serve {name} --gpu-memory-utilization {part:g}"

    def _fraction(self, seat: ServerSeat) -> float:
        given = seat.level.model.gpu_memory_utilization
        return given or seat.level.memory_mib / self.plan.gpu.card_mib

    def settings_of(self, seat: ServerSeat, seats: Sequence[ServerSeat]) -> dict[str, str]:
        """Return what schedulers take for a server on a GPU with others.

        What is free on the card is divided in proportion to what each server needs at its peak. No
        limit is below that: the one that starts first may use what the next ones need later.
        """
        card = self.plan.gpu.card_mib
        peak = seat.level.memory_mib + seat.level.startup_mib
        peaks = sum(each.level.memory_mib + each.level.startup_mib for each in seats)
        limit = peak * max(1.0, (card - RESERVE_MIB) / max(peaks, 1.0))
        found = settings(seat.share, limit, card, 1, service=False)
        return {each.system: each.text for each in found}

    def _others(self) -> Iterator[RenderableType]:
        obstacles = self.obstacles()
        if obstacles:
            yield title("pairs that cannot share (best split, by bounds)")
            yield named_lines(obstacles)
        to_measure = self.to_measure()
        if to_measure:
            yield title("measure next")
            yield stacked(*to_measure)
        notes = self.notes()
        if notes:
            yield title("notes")
            yield stacked(*notes)

    def obstacles(self) -> list[tuple[str, str]]:
        """Return the pairs of models that may not share, and by how much a promise would break."""
        return [
            (" + ".join(each.names), self._broken(each))
            for each in self.plan.obstacles[:_MOST_OBSTACLES]
        ]

    def _broken(self, split: SharedSplit) -> str:
        told = []
        for level, latencies in zip(split.levels, split.latencies, strict=True):
            for tail, most in level.model.p99_ms.items():
                if not latencies[tail] <= most:
                    is_known = math.isfinite(latencies[tail])
                    got = f"{_ms(latencies[tail])} ms" if is_known else "beyond its measured loads"
                    told.append(f"{level.name} {tail} {got}, promised {_ms(most)}")
        at = "/".join(map(str, split.shares))
        return f"at {at} % of the SMs: {'; '.join(told) or 'a promise was broken when measured'}"

    def to_measure(self) -> list[str]:
        """Return the pairs to measure that could save GPUs, as sentences."""
        likely = self.plan.fleets["likely"]
        saved = len(self.fleet.gpus) - len(likely.gpus)
        if saved <= 0:
            return []
        found = dict.fromkeys(
            _pair_text(seats)
            for seats in likely.gpus
            if len(seats) > 1 and not all(seat.measured for seat in seats)
        )
        heads = f"{number(saved, 'GPU')} fewer would do if these keep their promises:"
        return [heads, *list(found)[:_MOST_NAMED]]

    def notes(self) -> list[str]:
        """Return what else an owner must know."""
        found = list(self.reasons)
        shared = [seat for seats in self.fleet.gpus if len(seats) > 1 for seat in seats]
        if any(not seat.measured for seat in shared):
            found.append(_ESTIMATES)
        known = self._activity().items()
        busy = [name for name, of in known if not of & {"gpu_util", "sm_active"}]
        if busy and (self.plan.obstacles or any(not seat.measured for seat in shared)):
            found.append(
                f"Taken to keep a GPU busy all the time, as no run tells its activity: "
                f"{enumerated(busy[:_MOST_NAMED])}. Add sm_active and dram_active (DCGM fields "
                "1002 and 1005) to the runs."
            )
        unseen = [name for name in self.serving.models if not self._has_runs(name)]
        if unseen:
            found.append(
                f"Measured only beside others, which is taken for alone, too: "
                f"{enumerated(unseen[:_MOST_NAMED])}. With runs alone, fewer servers may do."
            )
        if shared:
            found.append(_ONE_BY_ONE)
        return found

    def _has_runs(self, name: str) -> bool:
        runs = self.serving.models[name].runs
        return any(self.serving.on(self.plan.gpu.model, run) for run in runs)

    def _activity(self) -> dict[str, set[str]]:
        """Return the activity of the GPU that is known of each model."""
        levels = (seat.level for seats in self.fleet.gpus for seat in seats)
        return {level.name: set(level.curve.activity) for level in levels}

    def data(self) -> dict[str, Any]:
        """Return the plans as data."""
        return {
            "file": self.path,
            "name": self.serving.name,
            "basis": self.basis(),
            "gpu_model": self.plan.gpu.model,
            "proof": self.proof(),
            "plans": [
                {
                    "gpu_model": plan.gpu.model,
                    "cost_per_hour": plan.gpu.cost_per_hour,
                    "gpus_alone": plan.alone,
                    "sharing": {
                        case: self._fleet_data(plan.fleets[case], case) for case in SERVER_CASES
                    },
                }
                for plan in self.plans
            ],
            "may_not_share": [
                {
                    "models": list(each.names),
                    "share": list(each.shares),
                    "p99_ms": [_finite(latencies) for latencies in each.latencies],
                    "text": self._broken(each),
                }
                for each in self.plan.obstacles
            ],
            "measure_next": self.to_measure(),
            "notes": self.notes(),
        }

    def _fleet_data(self, fleet: Fleet, case: str) -> dict[str, Any]:
        return {
            "gpus": len(fleet.gpus),
            "servers": fleet.servers,
            "proven": fleet.complete,
            "proven_for_these_servers": fleet.optimal,
            "layout": [
                [
                    {
                        "server": seat.name,
                        "model": seat.level.name,
                        seat.level.model.load[0]: seat.level.load,
                        "share": seat.share,
                        "memory_mib": round(seat.level.memory_mib, 1),
                        "slowdown_allowed": round(seat.level.promise, 4),
                        "p99_ms": _finite(seat.latencies),
                        "p99_ms_promised": dict(seat.level.model.p99_ms),
                        "basis": basis_text(seat, len(seats) > 1, case),
                        "command": self.command(seat),
                        "settings": self.settings_of(seat, seats) if len(seats) > 1 else {},
                    }
                    for seat in seats
                ]
                for seats in fleet.gpus
            ],
        }


def load_text(level: ServerLevel) -> str:
    """Return the load of a server: ``2.5/s``, ``8 at once``."""
    open_loop = level.model.load[0] == LOADS[0]
    return f"{figure(level.load, 3)}/s" if open_loop else f"{level.load:g} at once"


def promised_text(level: ServerLevel, latencies: Mapping[str, float]) -> str:
    """Return latencies with the promised ones: ``ttft 283 of 600, tpot 35 of 60``."""
    return ", ".join(
        f"{tail} {_ms(latencies[tail])} of {_ms(most)}" for tail, most in level.model.p99_ms.items()
    )


def basis_text(seat: ServerSeat, shares: bool, case: str) -> str:
    """Return in a word where the latencies of a server come from."""
    if not shares:
        return "alone"
    if seat.measured:
        return "measured"
    return "bound" if case == "low" else "estimate"


def _pair_text(seats: Sequence[ServerSeat]) -> str:
    told = (f"{seat.level.name} at {load_text(seat.level)} ({seat.share} %)" for seat in seats)
    return " with ".join(told)


def _cost_of(plan: ServingPlan) -> tuple[bool, float, int]:
    """Return whether GPUs are missing, the cost, and the GPUs."""
    gpus, there = len(plan.fleets["low"].gpus), plan.gpu.count
    missing = there is not None and there < gpus
    return missing, (plan.gpu.cost_per_hour or 1.0) * gpus, gpus


def _finite(latencies: Mapping[str, float]) -> dict[str, float | None]:
    return {
        tail: round(value, 3) if math.isfinite(value) else None for tail, value in latencies.items()
    }


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= _LARGE else figure(value, 3)


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= _LARGE else f"{value:,.2f}"


def _with_change(value: int, now: int) -> str:
    change = (value - now) / now
    return f"{value:,} ({'−' if change < 0 else '±'}{abs(change):.0%})".replace("%", " %")
