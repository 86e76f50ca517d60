"""The commands that call a live service: options in, output out, exit status."""

from __future__ import annotations

import os
import re
import sys
import time
from argparse import Namespace
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import chain, takewhile
from typing import Any, Final

from dovetail.executor.jobs.states import OVER, QUEUED, JobState
from dovetail.executor.live.errors import RefusedError, UnknownJobError
from dovetail.executor.live.views import Chosen, JobView, ServiceView
from dovetail.instances.errors import InputError
from dovetail.instances.reading.json_text import json_text
from dovetail.live.cli import MOST_ARRAY
from dovetail.live.client import Client
from dovetail.live.places import NoServiceError
from dovetail.toolkit.wording import lasting

_INTERPRETERS: Final = ("bash", "python", "sh", "torchrun")
_MOST_LABEL: Final = 60

_COMMANDING: Final = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
    r"\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)
"""Control characters except tab and line ends; characters that are invisible or turn the text."""

_FIELDS: Final = {
    **{name: name for name in ("name", "workload", "workers", "gsla", "weight", "priority")},
    **{name: name for name in ("isolation", "nice", "memory_mib", "retries", "output", "error")},
    "estimate": "estimate_s",
    "walltime": "walltime_s",
    "grace": "grace_s",
    "checkpoint": "checkpoint_s",
    "stops_apart": "stops_apart_s",
    "progress": "progress_pattern",
}
"""The field of ``JobSpec`` that each of these options sets."""

_AGAIN_S: Final = 1.0
_PATIENCE_S: Final = 300.0
"""Seconds to wait for a service that is being restarted."""


def submit(options: Namespace) -> int:
    """Submit a job; with ``--wait``, return 1 unless it finishes."""
    job = _job(options)
    with Client() as client:
        job |= {
            name: _awaited(client, getattr(options, name), f"--{name.replace('_', '-')}")
            for name in ("after", "after_any")
        }
        if client.on_this_machine:
            _require_folder(job["cwd"])
        names = client.submit([job], options.key)
        line = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        if not options.wait:
            _tell({"ids": names} if options.array else {"id": names[0]}, line, options.json)
            return 0
        print(f"dovetail: submitted {line}", file=sys.stderr)
        return max(_ended(_waited(client, name), options.json) for name in names)


def queue(options: Namespace) -> int:
    """List the jobs that are not over, or all jobs, as options select."""
    chosen = Chosen(
        user=options.user,
        name=options.name,
        state=options.state,
        within_s=options.since,
        before=options.before,
        limit=options.limit,
    )
    with Client() as client:
        found = client.jobs(options.all, chosen)
        service = client.service()
    if options.json:
        _write(found)
        return 0
    from dovetail.live.tables import capped_line, evidence_line, queue_view
    from dovetail.toolkit.tables import console

    console().print(queue_view(found, service.now_s))
    for line in filter(None, (capped_line(found), evidence_line(service))):
        console().print(line, markup=False, highlight=False)
    return 0


def show(options: Namespace) -> int:
    """Show everything about a job, or the service if no job is named."""
    from dovetail.live.tables import job_view, service_view
    from dovetail.toolkit.tables import console

    with Client() as client:
        service = client.service()
        if options.job is None:
            view: Any = service_view(service)
            record: JobView | ServiceView = service
        else:
            record = job = client.job(options.job)
            why = client.explain(job.id) if job.state in QUEUED else ""
            # Unlike Path.exists, this is False if the folder may not be entered.
            log = job.log if os.path.exists(job.log) else ""
            view = job_view(job, service.now_s, why, log)
    if options.json:
        _write(record)
    else:
        console().print(view)
    return 0


def wait(options: Namespace) -> int:
    """Wait until jobs are over; 1 unless all of them finished."""
    with Client() as client:
        chosen = _chosen(client, options, lambda job: True)
        if not chosen:
            return 2
        return max(_ended(_waited(client, name), options.json) for name in chosen)


def logs(options: Namespace) -> int:
    """Print the output of a rank of a job."""
    with Client() as client:
        chunks = client.log(options.job, options.rank, options.lines, options.follow, options.run)
        if options.json:
            text = b"".join(chunks).decode(errors="replace")
            _write({"job": options.job, "rank": options.rank, "text": text})
            return 0
        if sys.stdout.isatty() and not options.raw:
            chunks = _harmless(chunks)
        empty = True
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
            empty = empty and not chunk
        if empty:
            print(f"dovetail: {_no_output(client.job(options.job))}", file=sys.stderr)
    return 0


def _no_output(job: JobView) -> str:
    if job.ended_s is None or not job.runs or job.log:
        return f"{job.id} has written nothing"
    return f"{job.id} has no output: it wrote nothing, or the service has removed it since"


def _harmless(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield text in which characters that control a terminal or are invisible are escaped."""
    decoder = getincrementaldecoder("utf-8")("replace")
    for chunk in chunks:
        text = decoder.decode(chunk)
        yield _COMMANDING.sub(lambda one: ascii(one[0])[1:-1], text).encode()


def cancel(options: Namespace) -> int:
    """Begin to cancel jobs."""
    grace_s = 0.0 if options.now else options.grace
    with Client() as client:
        found, status = _changed(
            client, options, lambda name: client.cancel(name, grace_s), lambda job: True
        )
        if options.wait:
            found = [_waited(client, job.id) for job in found]
    _tell_states(found, options.json)
    for job in found if not options.json else ():
        if job.run is not None and (grace_s or 0.0) > job.grace_s:
            own = f"its own grace of {lasting(job.grace_s)}, which --grace cannot lengthen"
            print(f"dovetail: {job.id} is killed after {own}", file=sys.stderr)
    return status


def hold(options: Namespace) -> int:
    """Keep waiting jobs from starting until they are released."""
    return _order(options, Client.hold, lambda job: job.state in QUEUED and not job.held)


def release(options: Namespace) -> int:
    """Let held jobs start."""
    return _order(options, Client.release, lambda job: bool(job.held))


def pause(options: Namespace) -> int:
    """Stop the processes of running jobs where they are."""
    runs = (JobState.PROFILING, JobState.RUNNING)
    return _order(options, Client.pause, lambda job: job.state in runs)


def resume(options: Namespace) -> int:
    """Continue the processes of paused jobs."""
    return _order(options, Client.resume, lambda job: job.state is JobState.PAUSED)


def edit(options: Namespace) -> int:
    """Change a waiting job."""
    changes = _described(options)
    if options.cwd is not None:
        changes["cwd"] = _utf8([os.path.abspath(options.cwd)], "--cwd")[0]
    if options.job_command:
        changes["command"] = _utf8(options.job_command, "COMMAND")
    if not changes:
        raise InputError("needs an option to change, or a new command after --", "JOB")
    with Client() as client:
        job = client.job(options.job)
        if job.workload == default_workload(job.command, job.cwd):
            program = changes.get("command", job.command), changes.get("cwd", job.cwd)
            changes.setdefault("workload", default_workload(*program))
        found = client.edit(job.id, changes)
    _tell_states([found], options.json)
    return 0


def requeue(options: Namespace) -> int:
    """Stop the runs of jobs, so that they wait for devices again."""
    stop = partial(Client.requeue, hold=options.hold)
    return _order(options, stop, lambda job: job.state not in QUEUED)


def _order(
    options: Namespace,
    change: Callable[[Client, str], JobView],
    fits: Callable[[JobView], bool],
) -> int:
    """Change the jobs that options select, print their new states; return the exit status."""
    with Client() as client:
        found, status = _changed(client, options, partial(change, client), fits)
    _tell_states(found, options.json)
    return status


def _changed(
    client: Client,
    options: Namespace,
    change: Callable[[str], JobView],
    fits: Callable[[JobView], bool],
) -> tuple[list[JobView], int]:
    """Change the jobs that options select; return the changed jobs and the exit status.

    A job that cannot be changed is reported in one line; the others are still changed.
    """
    found, status = [], 0
    for name in _chosen(client, options, fits):
        try:
            found.append(change(name))
        except (UnknownJobError, RefusedError) as error:
            print(f"dovetail: {error}", file=sys.stderr)
            status = 2
    return found, status


def _tell_states(jobs: Sequence[JobView], as_json: bool) -> None:
    if as_json:
        _write(jobs)
        return
    for job in jobs:
        held = f", held by {job.held}" if job.held else ""
        why = "" if job.why == job.state.value else f": {job.why}"
        print(f"{job.id}: {job.state.value}{held}{why}")


def _chosen(client: Client, options: Namespace, fits: Callable[[JobView], bool]) -> list[str]:
    """Return the ids of the jobs that options name, or of jobs not over that they describe."""
    described = options.all or options.name or options.user or options.state
    if options.jobs and described:
        raise InputError("cannot be combined with --all, --name, --user or --state", "JOB")
    if options.jobs:
        return list(dict.fromkeys(chain.from_iterable(map(_ids, options.jobs))))
    if not described:
        rule = "is required, unless --all, --name, --user or --state selects jobs"
        raise InputError(rule, "JOB")
    found = [
        job.id
        for job in client.jobs(chosen=Chosen(options.user, options.name, options.state))
        if (options.user or job.uid == os.getuid()) and fits(job)
    ]
    if not found:
        print("dovetail: no job matches", file=sys.stderr)
    return found


def _ids(text: str) -> Sequence[str]:
    """Return the ids in a text: one id, or a range like ``j3-j7``."""
    said = re.fullmatch(r"j([1-9]\d{0,17})-j([1-9]\d{0,17})", text, re.ASCII)
    if said is None:
        return (text,)
    first, last = int(said[1]), int(said[2])
    if not 0 <= last - first < MOST_ARRAY:
        rule = f"must be a range like j3-j7 of at most {MOST_ARRAY:,} jobs, got {text!r}"
        raise InputError(rule, "JOB")
    return [f"j{number}" for number in range(first, last + 1)]


def _awaited(client: Client, said: Sequence[str], option: str) -> list[str]:
    """Return the ids of the jobs that an option names by id, by range or by name.

    A name selects the user's jobs of that name that are not over.
    """
    found: dict[str, None] = {}
    for text in said:
        ids = _ids(text)
        if ids == (text,) and not re.fullmatch(r"j\d+", text, re.ASCII):
            named = client.jobs(chosen=Chosen(name=text))
            ids = [job.id for job in named if job.uid == os.getuid()]
            if not ids:
                rule = (
                    f"must be a job, a range like j3-j7 or the name of jobs not over, got {text!r}"
                )
                raise InputError(rule, option)
        found |= dict.fromkeys(ids)
    return list(found)


def drain(options: Namespace) -> int:
    """Keep devices from taking new jobs, or let them take jobs again."""
    with Client() as client:
        service = client.drain(options.gpus, not options.off)
    named = {*options.gpus}
    chosen = [d for d in service.devices if not named or named & {d.id, d.node}]
    if options.json:
        _write(chosen)
        return 0
    for device in chosen:
        stay = f", still held by {', '.join(device.jobs)}" if device.jobs else ""
        print(f"{device.id}: {device.trouble or 'takes new jobs'}{stay}")
    return 0


def top(options: Namespace) -> int:
    """Show the service, its devices and its jobs; on a terminal, keep refreshing them."""
    from dovetail.live.tables import dashboard
    from dovetail.toolkit.tables import console

    screen = console()
    with Client() as client:
        if options.json:
            _write({"service": client.service(), "jobs": client.jobs()})
        elif options.once or not screen.is_terminal:
            screen.print(dashboard(client.service(), client.jobs(), _most_jobs(10_000)))
        else:
            _watch(client, options.every)
    return 0


def _watch(client: Client, every_s: float) -> None:
    """Redraw until the user ends it."""
    from rich.live import Live
    from rich.text import Text

    from dovetail.live.tables import dashboard, device_lines
    from dovetail.toolkit.tables import console

    screen = console()
    try:
        with Live(console=screen, screen=True, auto_refresh=False) as live:
            while True:
                height = screen.size.height
                try:
                    service = client.service()
                    most = _most_jobs(height - device_lines(service.devices))
                    view = dashboard(service, client.jobs(), most)
                except NoServiceError as error:
                    # It may be being restarted: its jobs continue.
                    view = Text(str(error))
                live.update(view, refresh=True)
                time.sleep(every_s)
    except KeyboardInterrupt:
        return


def _most_jobs(lines: int) -> int:
    """Return how many jobs fit on a screen of ``lines`` lines."""
    heads = 16
    return max(lines - heads, 3)


def _job(options: Namespace) -> dict[str, Any]:
    """Return the job that the options describe, as ``JobSpec`` without its owner."""
    command = _utf8(options.job_command, "COMMAND")
    cwd = _utf8([os.path.abspath(options.cwd or os.getcwd())], "--cwd")[0]
    indices, most_running = options.array or ((), None)
    return {
        "command": command,
        "workload": default_workload(command, cwd),
        "cwd": cwd,
        "env": _environment(os.environ),
        **_described(options),
        "array": indices,
        "held": options.hold,
        **({} if most_running is None else {"most_running": most_running}),
    }


def _described(options: Namespace) -> dict[str, Any]:
    """Return the fields of ``JobSpec`` that options set, except the program."""
    said = {field: getattr(options, name) for name, field in _FIELDS.items()}
    # For `edit`, a flag that is not given changes nothing.
    if options.no_requeue:
        said["requeue"] = False
    if options.public_log:
        said["public_log"] = True
    return {field: value for field, value in said.items() if value is not None}


def _require_folder(cwd: str) -> None:
    """Refuse a folder that this user, as whom the job will run, may not enter."""
    if not (os.path.isdir(cwd) and os.access(cwd, os.X_OK)):
        raise InputError(f"must be a folder that you can enter, got {cwd!r}", "--cwd")


def default_workload(command: Sequence[str], cwd: str) -> str:
    """Return a name that jobs share only if command and folder are the same.

    The program's name is for readers, the digest distinguishes programs of one name.
    """
    from hashlib import sha256

    digest = sha256("\0".join([cwd, *command]).encode()).hexdigest()
    label = "".join(c if c.isprintable() else "?" for c in _label(command))
    return f"{label[:_MOST_LABEL] or 'job'}-{digest[:8]}"


def _label(command: Sequence[str]) -> str:
    """Return the name of the program, or of the script that an interpreter runs."""
    program = os.path.basename(command[0])
    options = list(takewhile(lambda word: word.startswith("-"), command[1:]))
    script = command[1 + len(options) : 2 + len(options)]
    interpreted = program.rstrip("0123456789.") in _INTERPRETERS and "-c" not in options
    return os.path.basename(script[0]) if interpreted and script else program


def _utf8(texts: Iterable[str], what: str) -> list[str]:
    found = list(texts)
    for text in found:
        if not _is_utf8(text):
            raise InputError(f"must be UTF-8 text, got {os.fsencode(text)!r}", what)
    return found


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without variables that JSON cannot carry, and report these."""
    kept = {name: value for name, value in env.items() if _is_utf8(name + value)}
    for name in env.keys() - kept.keys():
        line = os.fsencode(name).decode(errors="replace")
        print(f"dovetail: the job does not get {line}, which is not UTF-8 text", file=sys.stderr)
    return kept


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _waited(client: Client, name: str) -> JobView:
    """Return a job once it is over; the service may be restarted meanwhile."""
    missed_s = 0.0
    while True:
        try:
            return client.wait(name)
        except NoServiceError as error:
            if missed_s >= _PATIENCE_S:
                raise
            if missed_s == 0:
                print(f"dovetail: {error}; waiting for it to come back", file=sys.stderr)
            missed_s += _AGAIN_S
            time.sleep(_AGAIN_S)


def _ended(job: JobView, as_json: bool) -> int:
    """Print how a job ended; return the corresponding exit status."""
    assert job.state in OVER
    line = f"{job.id}: {job.state.value}: {job.why}"
    _tell(job, line, as_json)
    return 0 if job.state is JobState.FINISHED else 1


def _tell(data: object, text: str, as_json: bool) -> None:
    if as_json:
        _write(data)
    else:
        print(text)


def _write(data: object) -> None:
    """Print data or views as JSON, including fields at their default, for programs."""
    sys.stdout.write(json_text(_plain(data)))


def _plain(data: object) -> object:
    match data:
        case list() | tuple():
            return [_plain(each) for each in data]
        case Mapping():
            return {name: _plain(each) for name, each in data.items()}
    if is_dataclass(data) and not isinstance(data, type):
        return {field.name: _plain(getattr(data, field.name)) for field in fields(data)}
    return data
