"""Tables of jobs and devices that several commands of the live service print."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dovetail.executor.jobs.states import QUEUED, JobState
from dovetail.executor.live.views import DeviceView, JobView, ServiceView
from dovetail.live.job_words import name_of, state_text
from dovetail.toolkit.tables import (
    WIDTH,
    TableColumn,
    fact_lines,
    stacked,
    styled,
    table,
    text_rows,
    title,
)
from dovetail.toolkit.wording import (
    NO_FIGURE,
    gib,
    lasting,
    number,
    percent,
    seconds,
    share_text,
    two_digits,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_NODES = 20
MOST_DEVICES = 24
MOST_RANGES = 8
MOST_PLACES = 8
"""Most devices of a job on several nodes that are named one by one."""
_METRICS_SHOWN = 2
_SILENT = (NO_FIGURE,)
_STYLES = {
    JobState.FAILED: "red",
    JobState.LOST: "red",
    JobState.RUNNING: "green",
    JobState.PROFILING: "cyan",
    JobState.STARTING: "cyan",
}


class NodeRow(NamedTuple):
    """A node and its devices."""

    name: str
    devices: Sequence[DeviceView]

    @property
    def busy(self) -> int:
        """How many of its devices have a job."""
        return sum(bool(device.jobs) for device in self.devices)

    @property
    def trouble(self) -> str:
        """Why its devices take no new jobs, and how many if not all."""
        troubles = Counter(device.trouble for device in self.devices if device.trouble)
        return ", ".join(
            why if count == len(self.devices) else f"{count} of {len(self.devices)}: {why}"
            for why, count in troubles.items()
        )

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of its row."""
        models = Counter(device.model for device in self.devices)
        used = [device.used_mib for device in self.devices if device.used_mib is not None]
        power = [device.power_w for device in self.devices if device.power_w is not None]
        whole = gib(sum(device.memory_mib for device in self.devices))
        return (
            self.name,
            self.devices[0].rack or NO_FIGURE,
            ", ".join(f"{count} {model}" for model, count in models.items()),
            str(self.busy),
            str(len({job for device in self.devices for job in device.jobs})),
            f"{gib(sum(used)) if used else NO_FIGURE}/{whole}",
            f"{sum(power):.0f}" if power else NO_FIGURE,
            self.trouble,
        )


def job_table(jobs: Iterable[JobView], now_s: float) -> RenderableType:
    """Return a table with a row per job; a job without a name shows its workload.

    Columns in which no job has anything are left out.
    """
    columns: tuple[TableColumn | str, ...] = (
        TableColumn("job", folds=True),
        TableColumn("user", folds=True, most=WIDTH // 4),
        TableColumn("name", folds=True, most=WIDTH // 4),
        TableColumn("state"),
        "for",
        *(TableColumn(head, folds=True, silent=_SILENT) for head in ("on", "with")),
        TableColumn("slowdown\n(predicted)", right=True, silent=_SILENT),
        TableColumn("done", right=True, silent=_SILENT),
    )
    rows = (
        (
            job.id,
            job.owner,
            name_of(job),
            styled(state_text(job), _STYLES.get(job.state, "")),
            lasting(now_s - job.since_s),
            places(job),
            co_runners(job),
            slowdown(job),
            done(job),
        )
        for job in jobs
    )
    return table(columns, rows, names=4)


def service_view(service: ServiceView) -> RenderableType:
    """Return the service and its devices."""
    return stacked(service_lines(service), "", devices_view(service.devices))


def service_lines(service: ServiceView) -> RenderableType:
    """Return the facts about the service in a few lines."""
    counts = ", ".join(
        f"{service.jobs[state.value]} {state.value}"
        for state in JobState
        if service.jobs.get(state.value)
    )
    dry = "dry run: nothing is started" if service.dry_run else ""
    decided = "" if service.decide_s is None else f"decided in {seconds(service.decide_s)}"
    gap = "" if service.gap is None else f"gap {percent(service.gap)}"
    facts = [
        ("Dovetail", ", ".join(filter(None, (f"pool {service.pool}", dry)))),
        ("policy", ", ".join(filter(None, (service.policy, decided, gap)))),
        ("up for", f"{lasting(service.now_s - service.started_s)} (process {service.pid})"),
        ("jobs", counts or "none"),
    ]
    nodes = by_node(service.devices)
    if len(nodes) > 1:
        facts.append(("nodes", _of_nodes(nodes)))
    shares = service.evidence.text if service.evidence is not None else ""
    notes = [("shares", shares), ("note", service.notice), ("trouble", service.trouble)]
    return fact_lines(*facts, *(each for each in notes if each[1]))


def by_node(devices: Iterable[DeviceView]) -> list[NodeRow]:
    """Return the nodes of the devices."""
    of_node: dict[str, list[DeviceView]] = {}
    for device in devices:
        of_node.setdefault(device.node, []).append(device)
    return [NodeRow(name, found) for name, found in of_node.items()]


def devices_view(devices: Sequence[DeviceView]) -> RenderableType:
    """Return a row per device, or a row per node if there are many devices on several nodes."""
    nodes = by_node(devices)
    if len(nodes) == 1 or len(devices) <= MOST_DEVICES:
        return device_table(devices)
    return node_table(nodes)


def device_lines(devices: Sequence[DeviceView]) -> int:
    """Return how many lines `devices_view` takes for its rows."""
    nodes = by_node(devices)
    few = len(nodes) <= 1 or len(devices) <= MOST_DEVICES
    return len(devices) if few else min(len(nodes), MOST_NODES + 1)


def node_table(nodes: Sequence[NodeRow]) -> RenderableType:
    """Return a row per node, first nodes in trouble, then the busiest, up to ``MOST_NODES``."""
    names = (TableColumn(name, folds=True, silent=_SILENT) for name in ("node", "rack", "devices"))
    power = TableColumn("power\nW", right=True, silent=_SILENT)
    figures: tuple[TableColumn | str, ...] = ("busy", "jobs", "memory\nGiB", power)
    first = sorted(nodes, key=lambda node: (not node.trouble, -node.busy))[:MOST_NODES]
    made = table(
        (*names, *figures, TableColumn("", folds=True, silent=("",))),
        (node.cells for node in first),
        names=3,
    )
    return stacked(made, more_line(len(nodes) - MOST_NODES, "more nodes", "show"))


def _of_nodes(nodes: Sequence[NodeRow]) -> str:
    devices, busy = sum(len(node.devices) for node in nodes), sum(node.busy for node in nodes)
    troubled = sum(bool(node.trouble) for node in nodes)
    line = f"{len(nodes)}, {number(devices, 'device')}, {busy} of them busy"
    return f"{line}; {troubled} of the nodes in trouble" if troubled else line


def device_table(devices: Sequence[DeviceView]) -> RenderableType:
    """Return a table with a row per device."""
    names = (TableColumn(name, folds=True) for name in ("device", "model", "jobs"))
    columns: tuple[TableColumn | str, ...] = (
        *names,
        "memory\nGiB",
        TableColumn("power\nW", right=True, silent=_SILENT),
        TableColumn("activity", folds=True, silent=_SILENT),
        TableColumn("", folds=True, silent=("",)),
    )
    rows = ((device.id, device.model, _use(device), *_figures(device)) for device in devices)
    sources = ", ".join(dict.fromkeys(d.source for d in devices if d.source and d.metrics))
    made = table(columns, rows, names=3)
    return stacked(made, styled(f"activity by {sources}", "dim") if sources else None)


def _use(device: DeviceView) -> str:
    """Return the jobs of a device, or what else it does."""
    if device.measuring is not None and not device.jobs:
        return f"(measuring {device.measuring} %)"
    return ", ".join(device.jobs) or "(idle)"


def _figures(device: DeviceView) -> tuple[str, str, str, str]:
    used = NO_FIGURE if device.used_mib is None else gib(device.used_mib)
    activity = ", ".join(
        f"{name} {figure:.2f}" for name, figure in list(device.metrics.items())[:_METRICS_SHOWN]
    )
    power = NO_FIGURE if device.power_w is None else f"{device.power_w:.0f}"
    return f"{used}/{gib(device.memory_mib)}", power, activity or NO_FIGURE, device.trouble


def waiting_lines(jobs: Sequence[JobView], most: int) -> Iterator[RenderableType | None]:
    """Yield the number of waiting jobs, and each reason with its jobs."""
    waiting = [job for job in jobs if job.state in QUEUED]
    if not waiting:
        return
    alike: dict[str, list[str]] = {}
    for job in waiting:
        alike.setdefault(job.waiting_for or job.why, []).append(job.id)
    verb = "waits" if len(waiting) == 1 else "wait"
    yield title(f"{number(len(waiting), 'job')} {verb} for")
    first = itertools.islice(alike.items(), most)
    yield text_rows((in_ranges(names), reason) for reason, names in first)
    yield more_line(sum(map(len, [*alike.values()][most:])), "more waiting")


def more_line(amount: int, what: str, command: str = "queue") -> str | None:
    """Return how many are left out, and what prints all; None if none is."""
    return f"... {amount:,} {what}: dovetail {command} --json" if amount > 0 else None


def in_ranges(names: Sequence[str]) -> str:
    """Return ids of jobs, in the order of submission, with consecutive ones as ranges."""
    runs: list[list[str]] = []
    for name in names:
        if runs and int(name[1:]) == int(runs[-1][-1][1:]) + 1:
            runs[-1].append(name)
        else:
            runs.append([name])
    parts = [run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    more = sum(map(len, runs[MOST_RANGES:]))
    return ", ".join(parts[:MOST_RANGES]) + (f" and {more:,} more" if more else "")


def places(job: JobView) -> str:
    """Return the devices of a job with its caps there, or a count if many are on several nodes.

    Those of its last run if it is over; none if it waits.
    """
    if not job.gpus or job.state in QUEUED:
        return NO_FIGURE
    nodes = {gpu.partition("/")[0] for gpu in job.gpus}
    if len(job.gpus) > MOST_PLACES and len(nodes) > 1:
        return f"{len(job.gpus)} devices of {len(nodes)} nodes"
    shares = job.shares or (None,) * len(job.gpus)
    return ", ".join(
        gpu if share is None else f"{gpu} {share_text(share)}"
        for gpu, share in zip(job.gpus, shares, strict=True)
    )


def co_runners(job: JobView) -> str:
    """Return the co-runners of a job, each once."""
    others = dict.fromkeys(other for device in job.co_runners for other in device)
    return ", ".join(others) or NO_FIGURE


def slowdown(job: JobView) -> str:
    """Return the measured slowdown and in brackets the predicted one, ``est.`` if estimated."""
    if job.slowdown is None and job.predicted is None:
        return NO_FIGURE
    kind = "est. " if job.predicted_by.startswith("estimate") else ""
    predicted = "" if job.predicted is None else f" ({kind}{two_digits(job.predicted)})"
    return f"{two_digits(job.slowdown)}{predicted}"


def done(job: JobView) -> str:
    """Return how far a job is: the fraction done, or its iterations."""
    if job.iterations is None:
        return NO_FIGURE
    if job.total:
        return f"{min(job.iterations / job.total, 1):.0%}".replace("%", " %")
    return f"{job.iterations:,.0f} it."
