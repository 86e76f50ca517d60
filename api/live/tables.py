"""Tables of the commands about a live service; every text goes through `rich.text.Text`."""

from __future__ import annotations

import itertools
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dovetail.executor.jobs.states import OVER, QUEUED, JobState
from dovetail.executor.live.views import DeviceView, JobView, ServiceView, StepView
from dovetail.toolkit.tables import WIDTH, Fitting, fact_lines, plain_table, row_lines
from dovetail.toolkit.wording import (
    NO_FIGURE,
    figure,
    gib,
    gsla,
    lasting,
    number,
    percent,
    seconds,
    share_text,
    two_digits,
)

MOST_JOBS = 200
NOT_SHOWN = "(not shown to others)"
"""Shown in place of another user's command and workload in a private service."""

MOST_WAITING = 20
"""Most reasons for waiting, each with its jobs."""

MOST_RANGES = 8
MOST_DEVICES = 24
MOST_NODES = 20
MOST_PLACES = 8
"""Most devices of a job on several nodes that are named one by one."""

_METRICS_SHOWN = 2
_TOLD = ("measuring", "waiting", "failed", "lacking")
"""States of the measuring of shares that a list of jobs tells."""
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


def queue_view(jobs: Sequence[JobView], now_s: float) -> RenderableType:
    """Return the first jobs as a table, and below it the reasons why jobs wait."""
    if not jobs:
        return Text("no jobs")
    more = _more(len(jobs) - MOST_JOBS, "more jobs")
    return Group(job_table(jobs[:MOST_JOBS], now_s), *more, *_waiting(jobs, MOST_WAITING))


def job_table(jobs: Iterable[JobView], now_s: float) -> RenderableType:
    """Return a table with a row per job; a job without a name shows its workload."""
    names = ("job", "user", "name", "state")
    columns = ("for", "on", "with", "slowdown\n(predicted)", "done")
    table = plain_table(*names[:1])
    for name in names[1:3]:
        table.add_column(name, overflow="fold", max_width=WIDTH // 4)
    table.add_column(names[3], no_wrap=True)
    table.add_column(columns[0], no_wrap=True, justify="right")
    for name in columns[1:3]:
        table.add_column(name, overflow="fold")
    for name in columns[3:]:
        table.add_column(name, no_wrap=True, justify="right")
    rows = []
    for job in jobs:
        state = Text(_state(job), _STYLES.get(job.state, ""))
        cells = (
            lasting(now_s - job.since_s),
            places(job),
            co_runners(job),
            slowdown(job),
            done(job),
        )
        table.add_row(Text(job.id), Text(job.owner), Text(_name(job)), state, *map(Text, cells))
        rows.append((job.id, job.owner, _name(job), _state(job), *cells))
    heads = tuple(column.replace("\n", " ") for column in columns)
    return Fitting(table, row_lines(rows, len(names), heads))


def _name(job: JobView) -> str:
    """Return the name of a job, with its index in an array."""
    place = "" if job.index is None else f"[{job.index}]"
    return f"{job.name or job.workload}{place}"


def _state(job: JobView) -> str:
    """Return the state of a job, or ``held`` for a waiting job that is held."""
    return "held" if job.held and job.state in QUEUED else job.state.value


def job_view(job: JobView, now_s: float, explanation: str, log: str = "") -> RenderableType:
    """Return everything about a job, with the path of its log if it is on this machine."""
    facts = fact_lines(*_facts(job, now_s, log))
    parts: list[RenderableType] = [facts]
    if job.gpus and job.state not in OVER:
        parts += [Text(), _ranks(job)]
    if explanation:
        parts += [Text(), Text(explanation)]
    return Group(*parts, Text(), _history(job))


def service_view(service: ServiceView) -> RenderableType:
    """Return the service and its devices."""
    return Group(service_lines(service), Text(), devices_view(service.devices))


def service_lines(service: ServiceView) -> Table:
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
    table = plain_table("node", "rack", "devices")
    columns = ("busy", "jobs", "memory\nGiB", "power\nW", "")
    for name in columns[:4]:
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("", overflow="fold")
    first = sorted(nodes, key=lambda node: (not node.trouble, -node.busy))[:MOST_NODES]
    rows = [node.cells for node in first]
    for row in rows:
        table.add_row(*map(Text, row))
    heads = tuple(column.replace("\n", " ") for column in columns)
    more = _more(len(nodes) - MOST_NODES, "more nodes", "show")
    return Group(Fitting(table, row_lines(rows, 3, heads)), *more)


def _of_nodes(nodes: Sequence[NodeRow]) -> str:
    devices, busy = sum(len(node.devices) for node in nodes), sum(node.busy for node in nodes)
    troubled = sum(bool(node.trouble) for node in nodes)
    line = f"{len(nodes)}, {number(devices, 'device')}, {busy} of them busy"
    return f"{line}; {troubled} of the nodes in trouble" if troubled else line


def device_table(devices: Sequence[DeviceView]) -> RenderableType:
    """Return a table with a row per device."""
    table = plain_table("device", "model", "jobs")
    columns = ("memory\nGiB", "power\nW", "activity", "")
    for name in columns[:2]:
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column(columns[2], overflow="fold")
    table.add_column("", overflow="fold")
    rows = [(device.id, device.model, _use(device), *_figures(device)) for device in devices]
    for row in rows:
        table.add_row(*map(Text, row))
    heads = tuple(column.replace("\n", " ") for column in columns)
    sources = ", ".join(dict.fromkeys(d.source for d in devices if d.source))
    sources_line = [Text(f"activity by {sources}", "dim")] if sources else []
    return Group(Fitting(table, row_lines(rows, 3, heads)), *sources_line)


def dashboard(service: ServiceView, jobs: Sequence[JobView], most: int) -> RenderableType:
    """Return the service, its devices and at most ``most`` of its jobs."""
    running = [job for job in jobs if job.state not in QUEUED]
    parts: list[RenderableType] = [service_view(service), Text()]
    if running:
        parts.append(job_table(running[:most], service.now_s))
        parts += _more(len(running) - most, "more holding devices")
    else:
        parts.append(Text("no job runs"))
    return Group(*parts, *_waiting(jobs, max(most - len(running), 3)))


def _use(device: DeviceView) -> str:
    """Return the jobs of a device, or what else it does."""
    if device.measuring is not None and not device.jobs:
        return f"(measuring {device.measuring} %)"
    return ", ".join(device.jobs) or "(idle)"


def capped_line(jobs: Sequence[JobView]) -> str:
    """Return which jobs have an SM share because they never ran without; empty if none has."""
    capped = [job.id for job in jobs if job.capped]
    verb = "has an SM share" if len(capped) == 1 else "have SM shares"
    why = "never measured without beside the co-runners (dovetail show JOB)"
    return f"{in_ranges(capped)} {verb}: {why}" if capped else ""


def evidence_line(service: ServiceView) -> str:
    """Return what users should know about shares that are not measured; empty if nothing."""
    told = service.evidence
    return f"shares: {told.text}" if told is not None and told.state in _TOLD else ""


def _figures(device: DeviceView) -> tuple[str, str, str, str]:
    used = NO_FIGURE if device.used_mib is None else gib(device.used_mib)
    activity = ", ".join(
        f"{name} {figure:.2f}" for name, figure in list(device.metrics.items())[:_METRICS_SHOWN]
    )
    power = NO_FIGURE if device.power_w is None else f"{device.power_w:.0f}"
    return f"{used}/{gib(device.memory_mib)}", power, activity or NO_FIGURE, device.trouble


def _waiting(jobs: Sequence[JobView], most: int) -> Iterator[RenderableType]:
    waiting = [job for job in jobs if job.state in QUEUED]
    if not waiting:
        return
    alike: dict[str, list[str]] = {}
    for job in waiting:
        alike.setdefault(job.waiting_for or job.why, []).append(job.id)
    lines = Table.grid(padding=(0, 2))
    lines.add_column(overflow="fold", max_width=WIDTH // 3)
    lines.add_column(overflow="fold")
    for reason, names in itertools.islice(alike.items(), most):
        lines.add_row(Text(in_ranges(names)), Text(reason))
    verb = "waits" if len(waiting) == 1 else "wait"
    yield Text(f"\n{number(len(waiting), 'job')} {verb} for", "bold")
    yield lines
    yield from _more(sum(map(len, [*alike.values()][most:])), "more waiting")


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


def _more(amount: int, what: str, command: str = "queue") -> list[RenderableType]:
    return [Text(f"... {amount:,} {what}: dovetail {command} --json")] if amount > 0 else []


def _facts(job: JobView, now_s: float, log: str) -> Iterator[tuple[str, str]]:
    yield job.id, _name(job) or NO_FIGURE
    lasted = f"{job.state.value} for {lasting(now_s - job.since_s)}"
    yield "state", f"{lasted}: {job.why}" if job.why != job.state.value else lasted
    if job.waiting_for:
        yield "waits for", job.waiting_for
    yield "user", f"{job.owner} ({job.uid})"
    yield "command", printable(shlex.join(job.command)) or NOT_SHOWN
    if job.cwd:
        yield "folder", printable(job.cwd)
    yield "workload", job.workload or NOT_SHOWN
    yield "workers", f"{job.workers}, {job.priority}" + (f", nice {job.nice}" if job.nice else "")
    yield "gSLA", gsla(job.gsla, job.priority)
    if job.isolation is not None:
        yield "isolation", "; ".join(_isolation(job))
    yield "limits", _limits(job)
    if job.memory_used_mib is not None:
        yield "memory", f"{job.memory_used_mib:,.0f} MiB at most by one worker so far"
    yield "submitted", clock_time(job.submitted_s)
    if job.started_s is not None:
        line = f", as run {job.run}" if job.run else ""
        yield "started", f"{clock_time(job.started_s)}{line}, {number(job.runs, 'start')} in all"
    if job.ended_s is not None:
        yield "ended", clock_time(job.ended_s)
    if any(status is not None for status in job.statuses):
        yield "exit status", ", ".join(map(_status, job.statuses))
    if job.iterations is not None:
        yield "done", _progress(job)
    if job.slowdown is not None or job.predicted is not None:
        figures = (("measured", job.slowdown), ("predicted", job.predicted), ("at most", job.upper))
        known = (f"{name} {two_digits(figure)}" for name, figure in figures if figure is not None)
        by = f" ({job.predicted_by})" if job.predicted is not None and job.predicted_by else ""
        yield "slowdown", f"{', '.join(known)}{by}"
    if job.capped:
        yield "SM share", job.capped
    readers = "everybody" if job.public_log else f"{job.owner} and administrators"
    yield "log", f"dovetail logs {job.id}, readable by {readers}"
    for name, pattern in (("output", job.output), ("errors", job.error)):
        if pattern is not None:
            yield name, printable(os.path.join(job.cwd, pattern))
    if log:
        more = f" (of rank 0; {job.workers} ranks)" if job.workers > 1 else ""
        yield "log file", log + more


_MOST_ESCAPES = 5


def _isolation(job: JobView) -> Iterator[str]:
    yield job.isolation or ""
    if job.unisolated:
        yield f"not isolated: {printable(job.unisolated)}"
    counted = [f"{count:,} {name}" for name, count in job.launches.items() if count]
    if counted:
        yield f"launches: {', '.join(counted)}"
    for name, why in itertools.islice(job.escapes.items(), _MOST_ESCAPES):
        yield printable(f"{name}: {why}")
    if len(job.escapes) > _MOST_ESCAPES:
        yield f"{len(job.escapes) - _MOST_ESCAPES} more"


def _limits(job: JobView) -> str:
    most = "no walltime" if job.walltime_s is None else f"walltime {lasting(job.walltime_s)}"
    memory = "" if job.memory_mib is None else f", {job.memory_mib:,.0f} MiB a worker"
    retries = "1 retry" if job.retries == 1 else f"{job.retries} retries"
    return f"{most}{memory}, {retries}, grace {lasting(job.grace_s)}{_stops(job)}"


def _stops(job: JobView) -> str:
    """Return whether the policy may stop a job for others."""
    if job.checkpoint_s is None:
        return ""
    every = f"every {lasting(job.checkpoint_s)}" if job.checkpoint_s else "on SIGTERM"
    apart = "" if job.stops_apart_s is None else f" at most every {lasting(job.stops_apart_s)}"
    return f"; checkpoint {every}, may be stopped for other jobs{apart}"


def _status(status: int | None) -> str:
    return NO_FIGURE if status is None else str(status)


def _progress(job: JobView) -> str:
    total = "" if job.total is None else f" of {job.total:,.0f}"
    rate = "" if job.rate is None else f", {figure(job.rate, 3)} a second"
    alone = "" if job.solo_rate is None else f" (alone {figure(job.solo_rate, 3)})"
    return f"{job.iterations:,.0f}{total} iterations{rate}{alone}"


def _ranks(job: JobView) -> RenderableType:
    table = plain_table("rank", "device", "SM share", "process", "with")
    shares = job.shares or (None,) * len(job.gpus)
    pids = job.pids or (None,) * len(job.gpus)
    others = job.co_runners or ((),) * len(job.gpus)
    for rank, (gpu, share, pid, with_whom) in enumerate(
        zip(job.gpus, shares, pids, others, strict=True)
    ):
        line = (
            share_text(share),
            NO_FIGURE if pid is None else str(pid),
            ", ".join(with_whom) or NO_FIGURE,
        )
        table.add_row(Text(str(rank)), Text(gpu), *map(Text, line))
    return table


def _history(job: JobView) -> RenderableType:
    lines = Table.grid(padding=(0, 2))
    for _ in range(2):
        lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    for step in job.history:
        lines.add_row(Text(clock_time(step.at_s)), Text(step.state.value), Text(_reason(step)))
    return lines


def _reason(step: StepView) -> str:
    """Return why a job entered a state; empty if that says no more than the state."""
    return "" if step.why == step.state.value else step.why


def clock_time(at_s: float) -> str:
    """Return a moment in this machine's time zone."""
    return datetime.fromtimestamp(at_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def printable(text: str) -> str:
    """Return another user's text without control characters."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def places(job: JobView) -> str:
    """Return the devices of a job with its caps there, or a count if many are on several nodes."""
    if not job.gpus:
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
