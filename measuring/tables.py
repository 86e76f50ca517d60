"""Tables of a campaign for ``dovetail measure``; all strings pass through `rich.text.Text`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dovetail.instances._record import IDLE, AnyShare, listed
from dovetail.measuring.campaign import Stage
from dovetail.measuring.noise import CampaignNoise
from dovetail.measuring.results import Machine
from dovetail.measuring.summary import (
    Alone,
    Cover,
    RequestsSummary,
    SharingSummary,
    Summary,
    Tail,
    TogetherSummary,
    WorkloadKernels,
)
from dovetail.toolkit.tables import Fitting, fact_lines, plain_table, row_lines
from dovetail.toolkit.wording import NO_FIGURE, figure, number, percent, two_digits

MOST_SHOWN: Final = 3
"""Number of least slowed and of most slowed pairs shown for each way to share."""

MOST_REASONS: Final = 8

STAND_IN_WORDS: Final = (
    "Without a GPU, MPS and time-sliced are only names: the device is shared in the same way."
)
"""How to read the modes if there is no GPU."""

_MODES: Final = {"mps": "MPS", "time-sliced": "time-sliced", "isolated": "isolated"}
_Rows = Sequence[tuple[str, ...]]


def campaign_view(found: Summary) -> RenderableType:
    """Return all tables of a campaign."""
    parts: list[RenderableType] = [machine_lines(found), Text(), stage_table(found.stages)]
    if found.windows:
        parts += [Text(), noise_lines(found)]
    if found.alone:
        parts += [Text(), solo_table(found.alone)]
    if found.kernels:
        parts += [Text(), kernel_table(found.kernels)]
    if found.requests:
        parts += [Text(), requests_table(found.requests)]
    if found.escapes:
        parts += [Text(), escape_lines(found.escapes)]
    if found.sharing:
        parts += [Text(), sharing_table(found.sharing)]
    if found.together:
        parts += [Text(), pair_table(found.together)]
    if found.tails:
        parts += [Text(), tail_table(found.tails)]
    if found.left_out:
        parts += [Text(), *_left_out(found)]
    return Group(*parts)


def machine_lines(found: Summary) -> RenderableType:
    """Return facts about the machine; a stand-in is named first."""
    machine = found.machine
    stand_in: list[RenderableType] = []
    if machine.stand_in:
        heading = Text(f"NO GPU: {machine.stand_in}", "bold red")
        stand_in = [heading, Text(STAND_IN_WORDS), Text()]
    facts = [
        ("measured on", machine.gpu_model),
        ("device", ", ".join(_device(machine))),
        ("software", ", ".join(_software(machine))),
        ("campaign", f"{machine.campaign}, {machine.date}"),
    ]
    if found.machines > 1:
        line = f"by turns: {found.machines} sittings, on equal machines or software"
        facts.append(("machines", line))
    return Group(*stand_in, fact_lines(*((name, line) for name, line in facts if line)))


def _device(machine: Machine) -> Iterator[str]:
    if machine.sms:
        yield f"{machine.sms} SMs"
    if machine.memory_mib:
        yield f"{machine.memory_mib:,.0f} MiB"
    if machine.uuid:
        yield machine.uuid
    yield number(machine.host_cores, "host core")


def _software(machine: Machine) -> Iterator[str]:
    named = (("driver", machine.driver), ("cuBLAS", machine.cublas), ("PyTorch", machine.torch))
    yield from (f"{name} {version}" for name, version in named if version)
    yield f"Dovetail {machine.dovetail}"


def stage_table(stages: Iterable[Cover]) -> RenderableType:
    """Return the table of the progress of each stage, in experiments."""
    stages = tuple(stages)
    some = [name for name in ("known", "starved") if any(getattr(one, name) for one in stages)]
    names = ("planned", "done", *some, "out_of_memory", "failed", "refused", "disturbed", "left")
    rows = [
        (stage_text(one.stage, one, one.shares), *(_count(getattr(one, name)) for name in names))
        for one in stages
    ]
    columns = [name.replace("out_of_memory", "out of\nmemory") for name in names]
    return _table(("stage",), columns, rows)


def stage_text(at: int, stage: Stage | Cover, shares: Sequence[int | None]) -> str:
    """Return a stage in words."""
    what = f"{stage.measure} of {listed(stage.workloads)}" if stage.workloads else stage.measure
    preferred = f"; preferred: {listed(stage.first)}" if stage.first else ""
    requests = ""
    if stage.latency and stage.load is not None:
        requests = f"; requests to {listed(stage.latency)} at load {stage.load:g}"
    return f"{at}  {what}, {_way(stage.mode, shares)}{preferred}{requests}"


def noise_lines(found: Summary) -> RenderableType:
    """Return the noise between repeats, and how much of it their windows explain."""
    line = f"{found.unstable:,} of {found.windows:,} ended before they were stable"
    facts = [("windows", f"{line} to {percent(found.relative_error)}")]
    if found.others_busy is not None:
        amount = percent(found.others_busy)
        facts.append(
            (
                "others",
                f"used {amount} of the device's time: the more, the less reliable the slowdowns",
            )
        )
    return fact_lines(*facts, *(_noise_facts(found.noise) if found.noise else ()))


def _noise_facts(found: CampaignNoise) -> Iterator[tuple[str, str]]:
    worst = found.worst
    where = f"{worst.workload} in {worst.setting}" if worst.setting != worst.workload else ""
    yield "noise", f"{percent(found.pooled)} between repeats of one setting (pooled)"
    yield "", f"{percent(found.typical)} median of {number(found.settings, 'setting')}"
    yield "", f"{percent(worst.deviation)} worst: {where or worst.workload}"
    yield "", f"{percent(found.within)} expected from the windows' own errors alone"
    if found.drift is not None:
        changed = "longer" if found.drift > 0 else "shorter"
        yield "drift", f"iterations alone took {percent(abs(found.drift))} {changed} at the end"


def solo_table(alone: Iterable[Alone]) -> RenderableType:
    """Return the table of workloads alone, by setting."""
    columns = ("iterations\n/s", "W", "J/iteration", "MiB", "p50 ms", "p99 ms", "repeats")
    rows = [
        (
            one.workload,
            _way(one.mode, (one.share,)),
            figure(one.iterations_s, 4),
            _rounded(one.power_w, 0),
            NO_FIGURE if one.energy_j is None else figure(one.energy_j, 3),
            _rounded(one.memory_mib, 0),
            _ms(one.p50_s),
            _ms(one.p99_s),
            str(one.repeats),
        )
        for one in alone
    ]
    return _table(("alone", "setting"), columns, rows)


def kernel_table(found: Iterable[WorkloadKernels]) -> RenderableType:
    """Return the table of what workloads launch, with what profiling it cost."""
    columns = ("an\niteration", "mean us", "weighted us", "time in\nfull ones", "profiled\ns")
    rows, lacks = [], []
    for one in found:
        if one.kernels is None:
            lacks.append(Text(f"kernels of {one.workload}: {one.lack}", overflow="fold"))
            continue
        metrics = one.kernels.metrics
        full = metrics.get("kernel_full")
        rows.append(
            (
                one.workload,
                figure(one.kernels.launches, 4),
                _us(metrics.get("kernel_mean_s")),
                _us(metrics.get("kernel_weighted_s")),
                NO_FIGURE if full is None else percent(full),
                f"{one.kernels.cost_s:.1f}",
            )
        )
    return Group(*([_table(("kernels",), columns, rows)] if rows else []), *lacks)


def requests_table(found: Iterable[RequestsSummary]) -> RenderableType:
    """Return a table for each workload and load: latency, and what the others did meanwhile."""
    columns = ("answered\n/s", "p50\nms", "p99\nms", "p99 over\nalone", "others\n/s", "of\nalone")
    parts: list[RenderableType] = []
    for (workload, load), group in groupby(found, key=lambda one: (one.workload, one.load)):
        ways = list(group)
        arrivals = "at random times" if load.arrivals == "poisson" else "at equal distances"
        line = f"requests to {workload} at load {load.part:g}: {figure(ways[0].due_s, 4)} a second,"
        rows = [
            (
                " + ".join(one.beside) or "alone",
                _way(one.mode, (one.share, *one.other_shares)),
                figure(one.answered_s, 4),
                _ms(one.p50_s),
                _ms(one.p99_s),
                _ratio(one.growth),
                " / ".join(figure(rate, 4) for rate in one.others_iterations_s) or NO_FIGURE,
                " / ".join(map(_ratio, one.others_part)) or NO_FIGURE,
            )
            for one in ways
        ]
        parts += [Text(f"{line} {arrivals}"), _table(("beside", "setting"), columns, rows), Text()]
    return Group(*parts[:-1])


def escape_lines(escapes: Mapping[str, int]) -> RenderableType:
    """Return how many kernels could not be isolated, or not in some form, by reason."""
    lines = (
        Text(f"  {number(kernels, 'kernel')}: {why}", overflow="fold")
        for why, kernels in escapes.items()
    )
    return Group(Text("not isolated, or not in some form:"), *lines)


def sharing_table(ways: Iterable[SharingSummary]) -> RenderableType:
    """Return the table of ways to share; combined throughput is the sum of 1 / slowdown."""
    columns = ("sets", "out of\nmemory", "combined\nmean", "least", "most", "over\ntime-sliced")
    rows = [
        (
            _way(one.mode, one.shares, one.preferred),
            str(one.pairs),
            _count(one.out_of_memory),
            two_digits(one.combined),
            two_digits(one.combined_least),
            two_digits(one.combined_most),
            NO_FIGURE
            if one.over_time_sliced is None
            else f"{one.over_time_sliced:.2f} x of {one.compared}",
        )
        for one in ways
    ]
    table = _table(("combined throughput",), columns, rows)
    return Group(table, Text("1.00: as fast as one after the other, each alone", "dim"))


def pair_table(together: Iterable[TogetherSummary]) -> RenderableType:
    """Return the table of the least and the most slowed pairs of each way to share."""
    columns = ("slowdowns", "combined", "W", "p99 ms", "repeats")
    ways: dict[str, list[TogetherSummary]] = defaultdict(list)
    for one in together:
        ways[_way(one.mode, one.shares, any(one.first))].append(one)
    rows = [_pair_row(one) for group in ways.values() for one in _extremes(group)]
    line = f"the {MOST_SHOWN} least and the {MOST_SHOWN} most slowed of each setting"
    return Group(_table(("pair", "setting"), columns, rows), Text(line, "dim"))


def _extremes(group: Iterable[TogetherSummary]) -> list[TogetherSummary]:
    """Return the pairs at both ends, or all pairs if they are few."""
    ordered = sorted(group, key=lambda one: one.combined, reverse=True)
    if len(ordered) <= 2 * MOST_SHOWN:
        return ordered
    return ordered[:MOST_SHOWN] + ordered[-MOST_SHOWN:]


def _pair_row(one: TogetherSummary) -> tuple[str, ...]:
    marked = (
        f"{name}{' (preferred)' if first else ''}"
        for name, first in zip(one.workloads, one.first, strict=True)
    )
    tails = " / ".join(map(_ms, one.p99_s)) if any(one.p99_s) else NO_FIGURE
    return (
        " + ".join(marked),
        _way(one.mode, one.shares),
        " / ".join(map(two_digits, one.slowdown)),
        two_digits(one.combined),
        _rounded(one.power_w, 0),
        tails,
        str(one.repeats),
    )


def tail_table(tails: Iterable[Tail]) -> RenderableType:
    """Return the table of tail latencies, alone and with partners."""
    columns = ("partners", "p99 ms\nmean", "worst")
    rows = [
        (
            one.workload,
            _tail_setting(one),
            f"with {one.worst}" if one.worst else "alone",
            _count(one.partners),
            _ms(one.p99_s),
            _ms(one.worst_s),
        )
        for one in tails
    ]
    return _table(("latency", "setting", "worst"), columns, rows)


def _tail_setting(one: Tail) -> str:
    shares = (one.share, one.other_share) if one.partners else (one.share,)
    return f"{_way(one.mode, shares)}{', preferred' if one.preferred else ''}"


def _left_out(found: Summary) -> Iterator[RenderableType]:
    """Yield why results are not in the data set, most frequent reasons first."""
    reasons = Counter(one.why for one in found.left_out)
    amount = number(len(found.left_out), "result")
    yield Text(f"{amount} not in the data set:")
    for why, times in reasons.most_common(MOST_REASONS):
        yield Text(f"  {times} x {why}", overflow="fold")
    if len(reasons) > MOST_REASONS:
        yield Text(f"  {number(len(reasons) - MOST_REASONS, 'more reason')}")


def _way(mode: str, shares: Sequence[AnyShare], preferred: bool = False) -> str:
    texts = ("none" if share is None else f"{share} %" for share in shares)
    caps = "no cap" if set(shares) == {None} else " + ".join(texts)
    if mode == "isolated":  # whoever is idle is so beside another
        caps = "in idle time" if set(shares) == {IDLE} else ""
    return ", ".join(filter(None, (_MODES[mode], caps, "one preferred" if preferred else "")))


def _count(amount: int) -> str:
    return str(amount) if amount else NO_FIGURE


def _rounded(value: float | None, digits: int) -> str:
    return NO_FIGURE if value is None else f"{value:.{digits}f}"


def _ratio(value: float | None) -> str:
    return NO_FIGURE if value is None else two_digits(value)


def _ms(time_s: float | None) -> str:
    return NO_FIGURE if time_s is None else figure(time_s * 1000, 4)


def _table(names: Sequence[str], columns: Sequence[str], rows: _Rows) -> RenderableType:
    table: Table = plain_table(*names)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    heads = tuple(column.replace("\n", " ") for column in columns)
    return Fitting(table, row_lines(rows, len(names), heads))


def _us(time_s: float | None) -> str:
    return NO_FIGURE if time_s is None else figure(time_s * 1e6, 4)
