"""The advice in words and numbers: for a terminal, and as data for ``--json``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dovetail.advising.advice import LIKELY, REASONS, UNKNOWN, Advice, Obstacle, Partners
from dovetail.advising.settings import TypedSetting, settings
from dovetail.advising.usage import UsageRecords
from dovetail.advising.work import CASES
from dovetail.toolkit.tables import (
    Name,
    TableColumn,
    fact_lines,
    named_lines,
    stacked,
    table,
    title,
)
from dovetail.toolkit.wording import enumerated, gib, lasting, number

if TYPE_CHECKING:
    from rich.console import RenderableType

UNTESTED: Final = (
    "Three and more jobs on a GPU: their slowdowns follow from a law that was fitted on pairs at "
    "halves of the SMs. No such set has been measured under caps, so the ranges are untested there."
)
"""What to know of sets of three and more."""

_MOST_PARTNERS: Final = 10
_MOST_NAMED: Final = 3
_NOTHING: Final = 0.005
_LARGE: Final = 10.0
_OLDEST_DATE_S: Final = 1e8
_NEWEST_DATE_S: Final = 4e9
"""Other numbers of seconds since 1970 are no dates."""


class AdviceWords:
    """What to say of an advice.

    Parameters
    ----------
    advice : Advice
        The advice.
    usage : UsageRecords
        The records.
    files : sequence of str
        Their names.
    cost : float, optional
        The cost of a GPU hour, in any currency.
    """

    def __init__(
        self, advice: Advice, usage: UsageRecords, files: Sequence[str], cost: float | None = None
    ) -> None:
        self.advice, self.usage, self.files, self.cost = advice, usage, files, cost

    def view(self) -> RenderableType:
        """Return the advice for a terminal."""
        return stacked(
            fact_lines(*self.facts()),
            self._savings(),
            f"\n{self.proof()} The numbers themselves are estimates.",
            *self._partners(),
            *self._others(),
        )

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield what the records are."""
        work = self.advice.work
        yield "advice for", enumerated(list(self.files))
        users = len({*filter(None, work.users)})
        told = number(len(work.kind), "job") + (f" of {number(users, 'user')}" if users else "")
        yield "records", f"{told}, {number(len(work.names), 'kind')} of work{self._span()}"
        models = sorted({self._model(kind) for kind in range(len(work.models))})
        named = models[:_MOST_NAMED] + (["others"] if len(models) > _MOST_NAMED else [])
        yield "GPUs", enumerated(named)
        yield "basis", self.basis()

    def _model(self, kind: int) -> str:
        model, mib = self.advice.work.models[kind], self.advice.work.card_mib[kind]
        return (model or "model unknown") + ("" if np.isnan(mib) else f" ({gib(float(mib))} GiB)")

    def basis(self) -> str:
        """Return what the figures are estimated from."""
        work = self.advice.work
        detailed = int(work.runs[work.detailed].sum())
        jobs = int(work.runs.sum())
        nothing = "nothing was measured in pairs" + (" or larger sets" if self.in_sets else "")
        if detailed == jobs:
            return f"estimates from SM and DRAM activity; {nothing}"
        of = (
            "gpu_util and memory" if not detailed else f"gpu_util, of {detailed:,} jobs SM activity"
        )
        return f"estimates from {of}; {nothing}"

    @property
    def in_sets(self) -> bool:
        """Whether more than two jobs may share a GPU."""
        return self.advice.most > 2

    def _span(self) -> str:
        work = self.advice.work
        if not work.timed:
            return ", at one moment"
        begin, hours = float(work.begin_s.min()), work.hours
        length = lasting(3600 * hours) if hours < 100 else f"{hours / 24:,.0f} days"
        if not _OLDEST_DATE_S <= begin <= _NEWEST_DATE_S:
            return f", {length}"
        return f", {length} from {datetime.fromtimestamp(begin, UTC):%Y-%m-%d}"

    def _savings(self) -> RenderableType:
        columns: list[TableColumn | str] = [TableColumn(""), "now", *self._heads()]
        return stacked("", table(columns, self.saving_rows()))

    def saving_rows(self) -> list[list[str]]:
        """Return the figures now, and with sharing in each case."""
        rows = [row for row in (self._hour_row(), self._peak_row(), self._moment_row()) if row]
        if self.cost is not None and self.advice.replayed:
            rows.append(self._cost_row(self.cost))
        if self.advice.replayed:
            rows.append(self._slowdown_row())
        return rows

    def _heads(self) -> list[str]:
        return [f"sharing:\n{CASES[0]}", *(f"\n{name}" for name in CASES[1:])]

    def _hour_row(self) -> list[str]:
        now = self.advice.gpu_hours
        if not self.advice.replayed:
            return []
        return [
            "GPU hours",
            _amount(now),
            *(_with_change(each.gpu_hours, now) for each in self.advice.replayed),
        ]

    def _peak_row(self) -> list[str]:
        if not self.advice.replayed:
            return []
        now = self.advice.moment.gpus_now
        most = (each.most_gpus for each in self.advice.replayed)
        return ["most GPUs at once", f"{now:,}", *(_with_change(each, now) for each in most)]

    def _moment_row(self) -> list[str]:
        moment = self.advice.moment
        fewest = (_with_change(each, moment.gpus_now) for each in moment.gpus)
        return ["GPUs needed then", f"{moment.gpus_now:,}", *fewest]

    def _cost_row(self, cost: float) -> list[str]:
        now = self.advice.gpu_hours * cost
        return [
            "cost",
            _amount(now),
            *(_with_change(each.gpu_hours * cost, now) for each in self.advice.replayed),
        ]

    def _slowdown_row(self) -> list[str]:
        return [
            "mean slowdown",
            "1.00",
            *(f"{each.mean_slowdown:.2f}" for each in self.advice.replayed),
        ]

    def headline(self) -> str:
        """Return what sharing comes to, in a sentence."""
        advice, moment = self.advice, self.advice.moment
        if not advice.partners:
            unknown = any(each.reason in UNKNOWN for each in advice.obstacles)
            return "Too little is recorded to say who could share" if unknown else "None may share"
        if advice.replayed:
            part = 1 - advice.replayed[LIKELY].gpu_hours / advice.gpu_hours
            saved = f"{100 * part:.0f} % of {_amount(advice.gpu_hours)} GPU hours"
            return f"Sharing would likely save {saved}"
        return f"{moment.gpus[LIKELY]:,} of {moment.gpus_now:,} GPUs are likely to be enough"

    def proof(self) -> str:
        """Return what is proven of the busiest moment."""
        moment, likely = self.advice.moment, self.advice.moment.gpus[LIKELY]
        at_most = "in pairs at halves of the SMs" if self.advice.work.timed else "in pairs"
        if self.in_sets:
            at_most = f"with up to {self.advice.most} jobs on each"
        jobs, gpus = number(moment.jobs, "job"), number(moment.gpus_now, "GPU")
        if likely >= moment.gpus_now:
            return (
                f"At the busiest moment{self._when()}, {jobs} had {gpus}. None of them may share"
                f"{'' if self.in_sets else f' {at_most}'}, or too little is recorded of them."
            )
        proof = (
            "no fewer are possible for these numbers, proven"
            if likely == moment.bounds[LIKELY]
            else f"proven: no fewer than {moment.bounds[LIKELY]:,}"
        )
        return (
            f"At the busiest moment{self._when()}, {jobs} on {gpus} fit on {likely:,} {at_most}, "
            f"with no job slowed more than {self.advice.limit:.2f} times: {proof}."
        )

    def _when(self) -> str:
        at = self.advice.moment.at_s
        if not self.advice.work.timed or not _OLDEST_DATE_S <= at <= _NEWEST_DATE_S:
            return ""
        return f" ({datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC)"

    def left_out(self) -> list[str]:
        """Return what is not in the figures, and notes on the records."""
        return [*map(str, self.usage.left_out), *self.usage.notes, *self._remarks()]

    def _remarks(self) -> Iterator[str]:
        """Yield what else an owner must know of these pairs."""
        users = [
            {self.advice.work.users[kind] for kind in each.kinds} for each in self.advice.partners
        ]
        if self.in_sets:
            yield UNTESTED
        if any(len(each) > 1 for each in users):
            yield (
                "An MPS server runs the processes of one Unix user at a time. Jobs of two users "
                "need one that root has started with -multiuser-server, or a common account."
            )
        if self.cost is not None and not self.advice.replayed:
            yield "The records have no times, so there is no cost."

    def _partners(self) -> Iterator[RenderableType]:
        found = self.advice.partners
        if not found:
            return
        yield title("who could share (likely; sure: in the case low, too)")
        shown = found[:_MOST_PARTNERS]
        last = TableColumn("GPU h\nshared" if self.advice.replayed else "GPUs", right=True)
        yield self._set_table(shown, last) if self.in_sets else self._pair_table(shown, last)
        if len(found) > _MOST_PARTNERS:
            sets = "sets" if self.in_sets else "pairs"
            yield f"and {len(found) - _MOST_PARTNERS:,} more {sets} of kinds (--json, --report)"

    def _pair_table(self, shown: Sequence[Partners], last: TableColumn) -> RenderableType:
        columns = (
            TableColumn("job", folds=True),
            TableColumn("with", folds=True),
            TableColumn("SMs %", right=True),
            TableColumn("GiB", right=True),
            TableColumn("slowdowns", right=True),
            TableColumn("sure", silent=("",)),
            last,
        )
        return table(columns, [self._pair_row(each) for each in shown], names=2)

    def _pair_row(self, partners: Partners) -> list[str | Any]:
        a, b = partners.kinds
        ranges = " ".join(f"{low:.2f}-{high:.2f}" for low, high in partners.slowdown)
        return [
            Name(self.advice.work.label(a)),
            Name(self.advice.work.label(b)),
            "/".join(map(str, partners.split)),
            " + ".join(map(gib, partners.memory_mib)),
            ranges,
            "yes" if partners.sure else "",
            self.used(partners),
        ]

    def _set_table(self, shown: Sequence[Partners], last: TableColumn) -> RenderableType:
        """Return a table with a line for each kind of a set."""
        columns = (
            TableColumn("jobs on a GPU", folds=True),
            TableColumn("how\nmany", right=True),
            TableColumn("SMs %\neach", right=True),
            TableColumn("GiB\neach", right=True),
            TableColumn("slowdown", right=True),
            TableColumn("sure", silent=("",)),
            last,
        )
        return table(columns, [row for each in shown for row in self._set_rows(each)], names=1)

    def _set_rows(self, partners: Partners) -> Iterator[list[str | Any]]:
        for k, count in partners.alike.items():
            label = self.advice.work.label(partners.kinds[k])
            low, high = partners.slowdown[k]
            yield [
                Name(f"+ {label}" if k else label),
                str(count),
                str(partners.split[k]),
                gib(partners.memory_mib[k]),
                f"{low:.2f}-{high:.2f}",
                "yes" if partners.sure and not k else "",
                "" if k else self.used(partners),
            ]

    def used(self, partners: Partners) -> str:
        """Return for how long kinds share, or on how many GPUs without times."""
        hours = self.advice.replayed
        return _amount(partners.shared_hours) if hours else f"{partners.at_once:,}"

    def together(self, partners: Partners) -> list[str]:
        """Return the names of kinds that share, each with how many of it there are."""
        work, alike = self.advice.work, partners.alike
        if not self.in_sets:
            return [work.label(kind) for kind in partners.kinds]
        return [
            work.label(partners.kinds[k])
            if number == 1
            else f"{number} × {work.label(partners.kinds[k])}"
            for k, number in alike.items()
        ]

    def _others(self) -> Iterator[RenderableType]:
        first = self.first_settings()
        if first:
            name = self.advice.work.label(self.advice.partners[0].kinds[0])
            yield title(f"what to type in for {name} (all others: --report, --json)")
            yield named_lines(first)
        if self.advice.obstacles:
            yield title("may not share")
            yield named_lines(
                (self.amount(each), f"{self.reason(each)}: {self.named(each.kinds)}")
                for each in self.advice.obstacles
            )
        if self.advice.to_measure:
            yield title("measure next")
            yield named_lines(
                (
                    self.hours(each.gpu_hours, each.kinds),
                    f"{each.what}, of {self.named(each.kinds)}",
                )
                for each in self.advice.to_measure
            )
        left_out = self.left_out()
        if left_out:
            yield title("left out, and notes")
            yield stacked(*left_out)

    def first_settings(self) -> list[tuple[str, str]]:
        """Return the settings of the first job of the first set."""
        if not self.advice.partners:
            return []
        return self.typed(self.advice.partners[0], 0)

    def typed(self, partners: Partners, k: int) -> list[tuple[str, str]]:
        """Return the settings of one of the jobs that share as names and lines."""
        return [
            (each.system, f"{each.text} ({each.remark})" if each.remark else each.text)
            for each in self.settings(partners, k)
        ]

    def settings(self, partners: Partners, k: int) -> tuple[TypedSetting, ...]:
        """Return what to type in for one of the jobs that share."""
        work, kind = self.advice.work, partners.kinds[k]
        card, service = float(work.card_mib[kind]), bool(work.service[kind])
        gpus = int(work.gpus[kind])
        return settings(partners.split[k], partners.limit_mib[k], card, gpus, service)

    def amount(self, obstacle: Obstacle) -> str:
        """Return how much work an obstacle stops."""
        return self.hours(obstacle.gpu_hours, obstacle.kinds)

    def hours(self, hours: float, kinds: Sequence[int]) -> str:
        """Return an amount of work: GPU hours, or jobs without times."""
        if self.advice.work.timed:
            return f"{_amount(hours)} GPU h"
        return number(int(self.advice.work.runs[list(kinds)].sum()), "job")

    def reason(self, obstacle: Obstacle) -> str:
        """Return the reason of an obstacle as a clause."""
        return REASONS[obstacle.reason]

    def named(self, kinds: Sequence[int]) -> str:
        """Return the first of some kinds by name, and how many others there are."""
        names = [self.advice.work.label(kind) for kind in kinds[:_MOST_NAMED]]
        left = len(kinds) - len(names)
        return enumerated([*names, f"{left:,} more"] if left else names)

    def data(self) -> dict[str, Any]:
        """Return the advice as data."""
        advice, work = self.advice, self.advice.work
        cases = {}
        for k, name in enumerate(CASES):
            replayed = advice.replayed[k] if advice.replayed else None
            cases[name] = {
                "gpu_hours": replayed and round(replayed.gpu_hours, 3),
                "most_gpus": replayed and replayed.most_gpus,
                "mean_slowdown": replayed and round(replayed.mean_slowdown, 4),
                "gpus_needed": advice.moment.gpus[k],
                "gpus_needed_bound": advice.moment.bounds[k],
            }
        return {
            "files": list(self.files),
            "jobs": len(work.kind),
            "kinds": len(work.names),
            "hours": round(work.hours, 3) if work.timed else None,
            "basis": self.basis(),
            "limit": advice.limit,
            "max_jobs_per_gpu": advice.most,
            "now": {
                "gpu_hours": round(advice.gpu_hours, 3) if work.timed else None,
                "gpus": advice.moment.gpus_now,
                "jobs_at_the_peak": advice.moment.jobs,
            },
            "cost_per_gpu_hour": self.cost,
            "sharing": cases,
            "partners": [self._partners_data(each) for each in advice.partners],
            "may_not_share": [
                {
                    "reason": each.reason,
                    "text": REASONS[each.reason],
                    "gpu_hours": round(each.gpu_hours, 3),
                    "kinds": [work.label(kind) for kind in each.kinds],
                }
                for each in advice.obstacles
            ],
            "measure_next": [
                {
                    "what": each.what,
                    "gpu_hours": round(each.gpu_hours, 3),
                    "kinds": [work.label(kind) for kind in each.kinds],
                }
                for each in advice.to_measure
            ],
            "left_out": [each._asdict() for each in self.usage.left_out],
            "notes": [*self.usage.notes, *([UNTESTED] if self.in_sets else [])],
        }

    def _partners_data(self, partners: Partners) -> dict[str, Any]:
        work = self.advice.work
        jobs = []
        for k, count in partners.alike.items():
            kind = partners.kinds[k]
            jobs.append(
                {
                    "user": work.users[kind] or None,
                    "name": work.names[kind],
                    "gpus": int(work.gpus[kind]),
                    "count": count,
                    "share": partners.split[k],
                    "memory_mib": round(partners.memory_mib[k], 1),
                    "memory_limit_mib": round(partners.limit_mib[k], 1),
                    "slowdown": [round(each, 4) for each in partners.slowdown[k]],
                    "settings": {each.system: each.text for each in self.settings(partners, k)},
                }
            )
        return {
            "jobs": jobs,
            "gpu_model": work.models[partners.kinds[0]] or None,
            "sure": partners.sure,
            "gpu_hours_shared": round(partners.shared_hours, 3),
            "gpus_at_the_peak": partners.at_once,
        }


def _amount(value: float) -> str:
    """Return a figure without digits that nobody needs."""
    return f"{value:,.0f}" if value >= _LARGE or value == int(value) else f"{value:.2g}"


def _with_change(value: float, now: float) -> str:
    """Return a figure, and its change in per cent."""
    change = (value - now) / now if now else 0.0
    sign = "±" if abs(change) < _NOTHING else "+" if change > 0 else "−"
    return f"{_amount(value)} ({sign}{abs(change):.0%})".replace("%", " %")
