"""What each page shows, taken from the service's views: rows, boxes and lines, not yet HTML.

A page has parts, each with a template. A part is rendered by itself, and replaced by itself in the
browser when it changes.
"""

from __future__ import annotations

import logging
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup

from dovetail.executor.jobs.specs import Owner
from dovetail.executor.jobs.states import HOLDING, OVER, QUEUED, JobState
from dovetail.executor.live.errors import UnknownJobError
from dovetail.executor.live.promises import Promise, promise_margin, promise_of
from dovetail.executor.live.requests.service_api import ServiceApi
from dovetail.executor.live.views import (
    HORIZON_S,
    Chosen,
    DeviceView,
    ExpectedStay,
    HourAhead,
    JobView,
    ServiceView,
)
from dovetail.instances.errors import DovetailError
from dovetail.live.http.logs import last_lines, require_own
from dovetail.live.job_words import (
    is_failing,
    is_silent,
    memory_limit,
    name_of,
    p99_text,
    service_facts,
    state_text,
)
from dovetail.live.page import words
from dovetail.live.page.actions import allowed
from dovetail.live.page.aside import Aside
from dovetail.live.page.drawings import (
    Span,
    gantt,
    hue,
    part_bar,
    promise_bar,
    promise_text,
    split_bar,
)
from dovetail.toolkit.wording import (
    figure,
    gib,
    lasting,
    percent,
    seconds,
    share_text,
    two_digits,
)

MOST_ROWS: Final = 50
"""Jobs in a table of a page."""

MOST_DEVICES: Final = 64
"""Devices that the overview draws."""

MOST_SEARCHED: Final = 2000
"""Jobs among which a text is searched."""

LOG_LINES: Final = 40
_LOG: Final = logging.getLogger("dovetail.live")
_LOG_CHARACTERS: Final = 8000
_MOST_TROUBLES: Final = 12
_MOST_STEPS: Final = 100
_RECENT_S: Final = 3600.0
_FAILED_S: Final = 86_400.0
_ASIDE_S: Final = 10.0
"""Seconds for which an explanation is shown before it is worked out again."""


class PagePart(NamedTuple):
    """A part of a page: the id of its element, its template, and what that needs."""

    name: str
    template: str
    facts: Mapping[str, object]


class PageView(NamedTuple):
    """A page: its title, the section of the site to which it belongs, and its parts."""

    title: str
    section: str
    parts: tuple[PagePart, ...]


class PageSource(NamedTuple):
    """Where a page's figures come from: the service, the user who asks, and slow answers."""

    api: ServiceApi
    by: Owner
    aside: Aside


class PromiseRow(NamedTuple):
    """The promise of a job: in a word, its class, as a bar and in figures."""

    word: str
    kind: str
    bar: Markup
    figures: str
    slowdown: str


class JobRow(NamedTuple):
    """A job in a table."""

    job: JobView
    name: str
    state: str
    lasted: str
    where: str
    beside: tuple[str, ...]
    promise: PromiseRow
    done: Markup
    done_text: str
    ends: str
    why: str
    hue: str


def job_row(job: JobView, now_s: float) -> JobRow:
    """Return a job as a row; its texts are safe to show."""
    part, left_s = words.part_done(job), words.left_s(job)
    why = job.waiting_for if job.state in QUEUED else ""
    if job.state in OVER or job.state in (JobState.LOST, JobState.STOPPING):
        why = "" if job.why == job.state.value else job.why
    return JobRow(
        job=job,
        name=name_of(job),
        state=state_text(job),
        lasted=words.so_far(now_s - job.since_s),
        where=words.places_of(job) if job.state in HOLDING else "",
        beside=words.others_of(job),
        promise=promise_row(job),
        done=Markup() if part is None else part_bar(part),
        done_text=_done(job, part),
        ends="" if left_s is None else f"{words.about(left_s)} left",
        why=words.line(why),
        hue=hue(job.id),
    )


def promise_row(job: JobView) -> PromiseRow:
    """Return the promise of a job."""
    promise = promise_of(job)
    kind = promise.name.lower().replace("_", "")
    word = "" if promise is Promise.NONE else promise.value
    return PromiseRow(word, kind, promise_bar(job, kind), promise_text(job), words.slowdown_of(job))


def _done(job: JobView, part: float | None) -> str:
    if part is not None:
        return f"{part:.0%}".replace("%", " %")
    return "" if job.iterations is None else f"{job.iterations:,.0f} it."


# The overview.


def overview(source: PageSource) -> PageView:
    """Return what is going on: troubles, devices, my jobs, the jobs of others, the service."""
    api, by = source.api, source.by
    service = api.service(by)
    held = list(api.holding(by))
    waiting = [
        job
        for job in api.jobs(False, Chosen(limit=4 * MOST_ROWS), by)
        if job.state in QUEUED and job.uid != by.uid
    ]
    mine = [job for job in held if job.uid == by.uid]
    mine += [j for j in api.jobs(False, Chosen(by.name, limit=200), by) if j.state in QUEUED]
    ended = _ended(source, _RECENT_S, 10)
    others = [job for job in held if job.uid != by.uid]
    failed = _ended(source, _FAILED_S, 20, JobState.FAILED)
    services = [job for job in (*held, *mine, *waiting) if job.service]
    now_s = service.now_s
    return PageView(
        "overview",
        "/",
        (
            PagePart("attention", "attention.html.j2", _attention(service, held, services, failed)),
            PagePart("gpus", "gpus.html.j2", _gpus(service, held)),
            PagePart(
                "mine",
                "mine.html.j2",
                {
                    **_listed(mine, now_s),
                    "ended": [job_row(job, now_s) for job in reversed(ended)],
                },
            ),
            PagePart("others", "others.html.j2", _listed([*others, *waiting], now_s)),
            PagePart("service", "service.html.j2", {"facts": list(_service(service))}),
        ),
    )


class Waits(NamedTuple):
    """Jobs that wait for the same."""

    reason: str
    rows: list[JobRow]


def _listed(jobs: Sequence[JobView], now_s: float) -> dict[str, object]:
    """Return jobs in the order given: rows of running ones, and waiting ones by what they lack."""
    rows = [job_row(job, now_s) for job in jobs[:MOST_ROWS]]
    waiting: dict[str, list[JobRow]] = {}
    for row in rows:
        if row.job.state in QUEUED:
            waiting.setdefault(row.why or "a decision", []).append(row)
    return {
        "rows": [row for row in rows if row.job.state not in QUEUED],
        "waits": [Waits(reason, found) for reason, found in waiting.items()],
        "more": max(len(jobs) - MOST_ROWS, 0),
    }


def _ended(
    source: PageSource, within_s: float, limit: int, state: JobState | None = None
) -> Sequence[JobView]:
    wanted = None if state is None else state.value
    chosen = Chosen(user=source.by.name, state=wanted, within_s=within_s, limit=limit)
    found = source.api.jobs(False, chosen, source.by)
    return [job for job in found if job.state in OVER]


class Concern(NamedTuple):
    """Something that needs attention: how badly (``bad`` or ``warn``), what, and where."""

    kind: str
    text: str
    link: str = ""
    name: str = ""


def _attention(
    service: ServiceView,
    held: Sequence[JobView],
    services: Sequence[JobView],
    failed: Sequence[JobView],
) -> Mapping[str, object]:
    concerns = [*_concerns(service, held, services, failed)]
    return {
        "concerns": concerns[:_MOST_TROUBLES],
        "more": max(len(concerns) - _MOST_TROUBLES, 0),
        "promised": sum(job.gsla is not None for job in held),
        "running": len(held),
        "notice": words.line(service.notice),
    }


def _concerns(
    service: ServiceView,
    held: Sequence[JobView],
    services: Sequence[JobView],
    failed: Sequence[JobView],
) -> Iterator[Concern]:
    if service.trouble:
        yield Concern("bad", words.line(service.trouble), "", "service")
    for device in service.devices:
        if device.trouble:
            yield Concern(
                "warn", f"takes no new jobs: {words.line(device.trouble)}", _gpu(device), device.id
            )
    for wanted, kind in ((Promise.BROKEN, "bad"), (Promise.AT_RISK, "warn")):
        for job in held:
            if promise_of(job) is wanted:
                said = f"promise {wanted.value}: {promise_text(job)}"
                yield Concern(kind, f"{said} ({job.owner})", f"/jobs/{job.id}", job.id)
    for job in held:
        if job.state is JobState.LOST:
            yield Concern("bad", words.line(job.why), f"/jobs/{job.id}", job.id)
    for job in {job.id: job for job in services}.values():
        if is_failing(job):
            said = f"failing: its service has ended quickly {job.quick_ends} times in a row"
            yield Concern("bad", said, f"/jobs/{job.id}", job.id)
        elif is_silent(job):
            said = "its service does not answer the probe"
            yield Concern("warn", said, f"/jobs/{job.id}", job.id)
    for job in reversed(failed):
        ago = words.so_far(service.now_s - job.since_s)
        yield Concern("warn", f"failed {ago} ago: {words.line(job.why)}", f"/jobs/{job.id}", job.id)
    if service.dry_run:
        yield Concern("warn", "a dry run: it accepts jobs and starts none", "", "service")
    told = service.evidence
    if told is not None and told.state in ("failed", "lacking"):
        yield Concern("warn", words.line(told.text), "", "shares")


def _gpu(device: DeviceView) -> str:
    return f"/gpus/{device.id}"


class SeatRow(NamedTuple):
    """A job on a device, and what the device's sharing costs it."""

    job: str
    name: str
    share: str
    promise: PromiseRow
    hue: str
    owner: str
    done: str


class DeviceBox(NamedTuple):
    """A device and its jobs."""

    device: DeviceView
    link: str
    seats: tuple[SeatRow, ...]
    bar: Markup
    free: str
    memory: Markup
    memory_text: str
    power: str
    activity: str
    trouble: str


def _gpus(service: ServiceView, held: Sequence[JobView]) -> Mapping[str, object]:
    # Devices in trouble come first, then the busy ones.
    first = (
        sorted(service.devices, key=lambda device: (not device.trouble, not device.jobs))
        if len(service.devices) > MOST_DEVICES
        else service.devices
    )
    boxes = [device_box(device, held) for device in first[:MOST_DEVICES]]
    nodes: dict[str, list[DeviceBox]] = {}
    for box in boxes:
        nodes.setdefault(box.device.node, []).append(box)
    return {
        "nodes": list(nodes.items()),
        "more": max(len(service.devices) - MOST_DEVICES, 0),
        "sources": ", ".join(dict.fromkeys(d.source for d in service.devices if d.source)),
    }


def device_box(device: DeviceView, jobs: Iterable[JobView]) -> DeviceBox:
    """Return a device with those of these jobs that it holds."""
    on = [job for job in jobs if device.id in job.gpus and job.state in HOLDING]
    shares = [_share_on(job, device.id) for job in on]
    seats = tuple(
        SeatRow(
            job.id,
            name_of(job),
            share_text(share),
            promise_row(job),
            hue(job.id),
            job.owner,
            _done(job, words.part_done(job)),
        )
        for job, share in zip(on, shares, strict=True)
    )
    used = device.used_mib
    memory = "" if used is None else f"{gib(used)} of "
    free = "idle" if device.measuring is None else f"measuring a share of {device.measuring} %"
    return DeviceBox(
        device=device,
        link=_gpu(device),
        seats=seats,
        bar=split_bar(zip((job.id for job in on), shares, strict=True)),
        free="" if seats else free,
        memory=Markup() if used is None else part_bar(used / max(device.memory_mib, 1.0), "dim"),
        memory_text=f"{memory}{gib(device.memory_mib)} GiB",
        power="" if device.power_w is None else f"{device.power_w:.0f} W",
        activity=", ".join(f"{name} {value:.2f}" for name, value in device.metrics.items()),
        trouble=words.line(device.trouble),
    )


def _share_on(job: JobView, gpu: str) -> int | str | None:
    return job.shares[job.gpus.index(gpu)] if job.shares else None


def _service(service: ServiceView) -> Iterator[tuple[str, str]]:
    counts = ", ".join(
        f"{service.jobs[state.value]} {state.value}"
        for state in JobState
        if service.jobs.get(state.value)
    )
    yield "jobs", counts or "none"
    yield "pool", f"{service.pool}{' (dry run)' if service.dry_run else ''}"
    yield "policy", words.line(service.policy)
    if service.decide_s is not None:
        gap = ""
        if service.gap is not None:
            known = not math.isnan(service.gap)
            proven = f"gap at most {percent(service.gap)}" if known else "no bound proven"
            gap = f", {'proven optimal' if service.gap == 0 else proven}"
        yield "last decision", f"{seconds(service.decide_s)}{gap}"
    if service.evidence is not None:
        yield "SM shares", words.line(service.evidence.text)
    yield "up for", words.so_far(service.now_s - service.started_s)
    yield "version", service.version


# Lists of jobs.


class Filter(NamedTuple):
    """What a list of jobs is to show; empty texts do not restrict."""

    mine: bool = False
    user: str = ""
    state: str = ""
    text: str = ""
    over: bool = False
    before: str = ""

    @property
    def address(self) -> str:
        """The address of the list."""
        said = {
            name: "1" if value is True else value for name, value in self._asdict().items() if value
        }
        return f"/jobs?{urlencode(said, errors='replace')}" if said else "/jobs"


def jobs(source: PageSource, asked: Filter) -> PageView:
    """Return the jobs that a filter selects, page by page."""
    found, older = _found(source, asked)
    now_s = source.api.service(source.by).now_s
    facts = {
        "rows": [job_row(job, now_s) for job in reversed(found)],
        "older": asked._replace(before=older).address if older else "",
        "asked": asked,
    }
    return PageView("jobs", "/jobs", (PagePart("list", "jobs.html.j2", facts),))


def _found(source: PageSource, asked: Filter) -> tuple[list[JobView], str]:
    """Return the last jobs that fit, and the first job of the next page; empty if none is left."""
    user = source.by.name if asked.mine else asked.user or None
    step = 200 if asked.text else MOST_ROWS + 1
    before, fits, searched = asked.before or None, list[JobView](), 0
    while True:
        chosen = Chosen(user=user, state=asked.state or None, before=before, limit=step)
        page = source.api.jobs(asked.over, chosen, source.by)
        searched += len(page)
        fits = [*(job for job in page if _has(job, asked.text.casefold())), *fits]
        if len(fits) > MOST_ROWS:
            return fits[-MOST_ROWS:], fits[-MOST_ROWS].id
        if len(page) < step:
            return fits, ""
        before = page[0].id
        if searched >= MOST_SEARCHED:
            return fits, before


def _has(job: JobView, text: str) -> bool:
    fields = (job.id, job.owner, name_of(job), job.workload, *job.gpus, *job.command)
    return not text or any(text in each.casefold() for each in fields)


# A job.


def job(source: PageSource, name: str) -> PageView:
    """Return everything about a job."""
    api, by = source.api, source.by
    seen = api.job(name, by)
    service = api.service(by)
    now_s = service.now_s
    row = job_row(seen, now_s)
    parts = [
        PagePart("state", "job_state.html.j2", {"row": row, "actions": allowed(seen, by)}),
    ]
    if seen.service:
        said = ((name, words.line(text)) for name, text in service_facts(seen, now_s))
        facts = {"facts": [fact for fact in said if fact[1]]}
        parts.append(PagePart("serving", "job_serving.html.j2", facts))
    if seen.state in QUEUED:
        text = _explanation(source, seen)
        parts.append(PagePart("explanation", "job_explanation.html.j2", {"lines": text}))
    else:
        parts.append(PagePart("promise", "job_promise.html.j2", _promise(seen, row)))
    if seen.gpus and seen.state in HOLDING:
        parts.append(PagePart("where", "job_where.html.j2", _where(source, seen, service)))
    parts += [
        PagePart("log", "job_log.html.j2", _log(source, seen)),
        PagePart("history", "job_history.html.j2", {"steps": list(_history(seen))}),
        PagePart("facts", "job_facts.html.j2", {"facts": list(_facts(seen))}),
    ]
    return PageView(seen.id, "/jobs", tuple(parts))


def _explanation(source: PageSource, job: JobView) -> list[str]:
    """Return why a job waits and what would let it start; one line saying so until it is ready."""
    by, api = source.by, source.api
    key = ("explanation", job.id, by.uid)

    def made() -> str:
        try:
            return api.explain(job.id, by)
        except DovetailError as error:
            return f"\n{error}"

    text = source.aside.get(key, made, _ASIDE_S)
    if text is None:
        return ["is being worked out"]
    # Its first line is the state, which is shown anyway.
    return [words.line(line, 1000) for line in str(text).split("\n")[1:] if line]


def _promise(job: JobView, row: JobRow) -> Mapping[str, object]:
    margin = promise_margin(job)
    facts = [
        ("measured", two_digits(job.slowdown) if job.slowdown is not None else "not yet"),
        ("predicted", _predicted(job)),
        ("at most", two_digits(job.upper) if job.upper is not None else ""),
        ("gSLA", _gsla(job)),
        ("p99 latency", p99_text(job)),
        ("margin", "" if margin is None else f"{100 * (margin - 1):+.0f} %"),
    ]
    progress = [
        ("done", _progress(job)),
        ("rate", _rate(job)),
        ("expected end", _end(job)),
        ("memory", _memory(job)),
    ]
    return {
        "row": row,
        "facts": [fact for fact in facts if fact[1]],
        "progress": [fact for fact in progress if fact[1]],
    }


def _gsla(job: JobView) -> str:
    if job.gsla is None:
        return "none: any slowdown is accepted"
    return f"{'p99 ' if job.priority == 'latency' else ''}{two_digits(job.gsla)}"


def _predicted(job: JobView) -> str:
    if job.predicted is None:
        return ""
    by = f" ({words.line(job.predicted_by, 100)})" if job.predicted_by else ""
    return f"{two_digits(job.predicted)}{by}"


def _progress(job: JobView) -> str:
    if job.iterations is None:
        return ""
    total = "" if job.total is None else f" of {job.total:,.0f}"
    return f"{job.iterations:,.0f}{total} iterations"


def _rate(job: JobView) -> str:
    if job.rate is None:
        return ""
    alone = "" if job.solo_rate is None else f" (alone {figure(job.solo_rate, 3)})"
    return f"{figure(job.rate, 3)} iterations a second{alone}"


def _end(job: JobView) -> str:
    left_s = words.left_s(job)
    return "" if left_s is None else f"in {words.about(left_s)}, at its present rate"


def _memory(job: JobView) -> str:
    if job.memory_used_mib is None:
        return ""
    limit = job.memory_limit_mib or job.memory_mib
    of = "" if limit is None else f" of {limit:,.0f} MiB"
    return f"{job.memory_used_mib:,.0f} MiB{of} at most by one worker"


class RankRow(NamedTuple):
    """A rank of a job: its device and share, and who is beside it."""

    rank: int
    gpu: str
    share: str
    pid: str
    beside: tuple[str, ...]


def _where(source: PageSource, job: JobView, service: ServiceView) -> Mapping[str, object]:
    shares = job.shares or (None,) * len(job.gpus)
    pids = job.pids or (None,) * len(job.gpus)
    beside = job.co_runners or ((),) * len(job.gpus)
    rows = [
        RankRow(rank, gpu, share_text(share), "" if pid is None else str(pid), others)
        for rank, (gpu, share, pid, others) in enumerate(
            zip(job.gpus, shares, pids, beside, strict=True)
        )
    ][:MOST_DEVICES]
    held = [*source.api.holding(source.by)] if words.others_of(job) else [job]
    boxes = [device_box(d, held) for d in service.devices if d.id in job.gpus][:8]
    return {"ranks": rows, "boxes": boxes, "capped": words.line(job.capped)}


def _log(source: PageSource, job: JobView) -> Mapping[str, object]:
    try:
        newest = source.api.log_path(job.id, 0, source.by)
        lack = source.api.log_lack(job.id, 0, source.by)
        note = f"newer output may be missing: {lack}" if lack else ""
        if newest is None:
            none = "no output yet" if job.runs else "it has not started"
            return {"text": "", "note": words.line(note) or none}
        require_own(newest, job.uid)
        text = last_lines(newest, job.uid, LOG_LINES).decode(errors="replace")
    except DovetailError as error:
        return {"text": "", "note": words.line(str(error))}
    except OSError as error:
        return {"text": "", "note": f"cannot be read: {error.strerror}"}
    lines = (words.printed(each.rpartition("\r")[2], 500) for each in text.split("\n"))
    return {"text": "\n".join(lines)[-_LOG_CHARACTERS:], "note": words.line(note)}


def _history(job: JobView) -> Iterator[tuple[str, str, str]]:
    said = ""
    for step in job.history[-_MOST_STEPS:]:
        new = step.why not in (step.state.value, said)
        yield words.clock(step.at_s), step.state.value, words.line(step.why) if new else ""
        said = step.why


def _facts(job: JobView) -> Iterator[tuple[str, str]]:
    hidden = not job.command
    statuses = ", ".join("-" if each is None else str(each) for each in job.statuses)
    escapes = "; ".join(f"{name}: {why}" for name, why in job.escapes.items())
    facts = (
        ("user", f"{job.owner} ({job.uid})"),
        ("command", "not shown to others" if hidden else words.line(shlex.join(job.command), 2000)),
        ("folder", words.line(job.cwd)),
        ("workload", words.line(job.workload)),
        ("workers", str(job.workers)),
        ("priority", job.priority),
        ("nice", str(job.nice or "")),
        ("isolation", job.isolation or ""),
        ("not isolated", words.line(job.unisolated)),
        ("escapes", words.line(escapes)),
        ("its owner expects", "" if job.estimate_s is None else lasting(job.estimate_s)),
        ("walltime", "" if job.walltime_s is None else lasting(job.walltime_s)),
        ("memory limit", memory_limit(job)),
        ("held to it by", words.line(job.memory_held_by)),
        ("retries", str(job.retries or "")),
        ("grace", lasting(job.grace_s)),
        ("starts", str(job.runs or "")),
        ("exit status", statuses if any(each is not None for each in job.statuses) else ""),
        ("submitted", words.clock(job.submitted_s)),
        ("output", words.line(job.output or "")),
    )
    yield from (fact for fact in facts if fact[1])


# Devices.


def gpu(source: PageSource, name: str) -> PageView:
    """Return everything about a device: who runs there, at which split, at what cost."""
    service = source.api.service(source.by)
    found = next((device for device in service.devices if device.id == name), None)
    if found is None:
        raise UnknownDeviceError(f"no device {words.line(name, 60)!r}")
    held = [job for job in source.api.holding(source.by) if name in job.gpus]
    box = device_box(found, held)
    rows = [job_row(job, service.now_s) for job in held]
    facts = [
        ("model", found.model),
        ("node", found.node),
        ("rack", found.rack or ""),
        ("memory", box.memory_text),
        ("power", box.power),
        ("activity", f"{box.activity} (by {found.source})" if box.activity else ""),
        ("trouble", box.trouble),
    ]
    shown = {"box": box, "rows": rows, "facts": [fact for fact in facts if fact[1]]}
    return PageView(found.id, "/gpus", (PagePart("gpu", "gpu.html.j2", shown),))


class UnknownDeviceError(UnknownJobError):
    """There is no such device."""


def gpus(source: PageSource) -> PageView:
    """Return all devices, by node, as a table."""
    service = source.api.service(source.by)
    rows = [device_box(device, ()) for device in service.devices[:1000]]
    facts = {"rows": rows, "more": max(len(service.devices) - 1000, 0)}
    return PageView("GPUs", "/gpus", (PagePart("devices", "devices.html.j2", facts),))


# The plan for the next hour.

_OUTLOOK_S: Final = 15.0
_TICKS: Final = 5
_FROM: Final[Mapping[str, str]] = {
    "rate": "measured rate",
    "estimate": "its owner's estimate",
    "service": "a service",
}


class StayRow(NamedTuple):
    """A job of the plan: where, from when, until when, and from what that is known."""

    job: str
    where: str
    begins: str
    ends: str
    by: str


def plan(source: PageSource) -> PageView:
    """Return what is expected to start and end within the next hour."""
    api, by = source.api, source.by
    facts: dict[str, object] = {"ready": False, "failed": ""}
    made: object = None
    try:
        made = source.aside.get(("outlook", by.uid), lambda: api.outlook(by), _OUTLOOK_S)
    except DovetailError as error:
        facts["failed"] = words.line(str(error))
    except Exception as error:
        _LOG.exception("the plan for the next hour is not worked out")
        facts["failed"] = type(error).__name__
    if isinstance(made, HourAhead):
        facts |= {"ready": True, **_hour(made, api.service(by))}
    return PageView("The next hour", "/plan", (PagePart("hour", "plan.html.j2", facts),))


def _hour(made: HourAhead, service: ServiceView) -> Mapping[str, object]:
    busy = {gpu for stay in made.stays for gpu in stay.gpus}
    rows = [device.id for device in service.devices if device.id in busy][:MOST_DEVICES]
    ticks = [words.hour(made.made_s + k * HORIZON_S / (_TICKS - 1)) for k in range(_TICKS)]
    stays = [stay for stay in made.stays if stay.from_s < HORIZON_S]
    table = [_stay(stay, made.made_s) for stay in stays]
    return {
        "chart": gantt(rows, _spans(stays, rows), HORIZON_S, ticks) if rows else "",
        "rows": table[: 2 * MOST_ROWS],
        "more": max(len(table) - 2 * MOST_ROWS, 0),
        "waiting": made.waiting[:MOST_ROWS],
        "more_waiting": max(len(made.waiting) - MOST_ROWS, 0),
        "why": words.line(made.why),
        "until": "" if made.until_s >= HORIZON_S else words.hour(made.made_s + made.until_s),
        "made": words.clock(made.made_s),
    }


def _stay(stay: ExpectedStay, made_s: float) -> StayRow:
    begins = words.hour(made_s + stay.from_s) if stay.from_s else "now"
    ends = "later than this hour"
    if math.isinf(stay.to_s):
        ends = "never" if stay.by == "service" else "unknown"
    elif stay.to_s <= HORIZON_S:
        ends = words.hour(made_s + stay.to_s)
    where = ", ".join(
        gpu if share is None else f"{gpu} at {share_text(share)}"
        for gpu, share in zip(stay.gpus[:8], stay.shares, strict=False)
    )
    return StayRow(stay.job, where, begins if stay.starts else "runs", ends, _FROM.get(stay.by, ""))


def _spans(stays: Sequence[ExpectedStay], rows: Sequence[str]) -> Iterator[Span]:
    """Yield a bar for each job on each device, in lanes so that none hides another."""
    for row, gpu in enumerate(rows):
        here = [stay for stay in stays if gpu in stay.gpus]
        free_s: list[float] = []
        lanes = []
        for stay in here:
            lane = next((k for k, at_s in enumerate(free_s) if at_s <= stay.from_s), len(free_s))
            free_s[lane : lane + 1] = [stay.to_s]
            lanes.append(lane)
        for stay, lane in zip(here, lanes, strict=True):
            yield Span(
                row=row,
                job=stay.job,
                from_s=stay.from_s,
                to_s=min(stay.to_s, HORIZON_S),
                lane=lane,
                lanes=len(free_s),
                open=math.isinf(stay.to_s) and stay.by != "service",
                starts=stay.starts,
            )
