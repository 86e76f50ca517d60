"""The arguments of commands for live mode."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from dovetail.toolkit.durations import parsed_duration

_ASKING = "live.commands"
_JOB_HELP = "id of the job"
_MEASURE = (
    "Measure workloads alone and in pairs on a GPU; exit status 0: all is measured, 3: time was "
    "up, and the same command goes on."
)
MOST_ARRAY: Final = 10_000
"""Jobs of one array, as of any request."""

MOST_NICE: Final = 20

_DOCTOR = (
    "Tell what this machine has for live mode and what it lacks; exit status 0: jobs can share "
    "GPUs with SM shares, 3: without, 1: not at all."
)


_Commands: TypeAlias = "argparse._SubParsersAction[Any]"
_Command: TypeAlias = Callable[..., argparse.ArgumentParser]
"""Adds a command: (commands, name, text, function, module) to its parser."""


def add_live(name: str, commands: _Commands, command: _Command) -> None:
    """Add a command of live mode, one of ``LIVE``, to the parser of all.

    Parameters
    ----------
    name : str
        Of the command.
    commands : sub-parsers
        Where to.
    command : callable
        Adds one: (commands, name, text, function, module) to its parser.
    """
    text, module, add = LIVE[name]
    add(command(commands, name, text, name, module))


def _serve(serve: argparse.ArgumentParser) -> None:
    serve.add_argument(
        "--pool",
        metavar="POOL",
        default="gpu",
        help="gpu (this machine's) or gpu:ID,ID; cpu (its cores as stand-ins) or "
        "cpu:cores_per_device=N,devices=N,shares=HOW; ray:HOST:PORT (the nodes "
        "of a Ray cluster) or ray:HOST:PORT,OPTIONS; "
        "slurm:JOBID or slurm:nodes=N,... (pilots); simulated:INSTANCE (default: gpu)",
    )
    serve.add_argument(
        "--directory",
        metavar="DIR",
        help="where its state is kept (default: DOVETAIL_HOME; else /var/lib/dovetail for root, "
        "~/.local/state/dovetail for others)",
    )
    serve.add_argument(
        "--policy",
        metavar="P",
        default="dovetail",
        help="NAME or NAME:OPTION=VALUE,... (default: dovetail)",
    )
    serve.add_argument(
        "--model", metavar="FILE", help="predict with this fitted model (default: analytic)"
    )
    serve.add_argument(
        "--watch",
        metavar="NAME=VALUE,...",
        type=_changes,
        default=(),
        help="how long runs are measured: warm_up_s, profile_s, window_s, ... "
        "(docs/internals/profiling.md has all)",
    )
    serve.add_argument(
        "--socket",
        metavar="PATH",
        help="where it listens (default: api.sock in its directory; /run/dovetail/api.sock for "
        "root's)",
    )
    serve.add_argument(
        "--listen",
        metavar="HOST:PORT",
        type=_address,
        help="listen on TCP, too, without encryption; needs --tokens",
    )
    serve.add_argument(
        "--tokens", metavar="FILE", help="USER TOKEN on each line; only its owner may read it"
    )
    serve.add_argument(
        "--max-grace",
        metavar="TIME",
        type=_duration,
        default=3600.0,
        help="the longest --grace that jobs may have (default: 1 h)",
    )
    _keep(serve)
    serve.add_argument(
        "--notify",
        metavar="COMMAND",
        type=_words,
        help="run this for each job that is over, with DOVETAIL_JOB, DOVETAIL_STATE ... set",
    )
    serve.add_argument(
        "--private",
        action="store_true",
        help="show the command and folder of a job to its user and to administrators only",
    )
    serve.add_argument(
        "--user-jobs",
        metavar="N",
        type=_number(0),
        default=10_000,
        help="how many jobs of a user may wait, administrators' not counted (default: 10000)",
    )
    serve.add_argument(
        "--max-jobs-per-gpu",
        metavar="N",
        type=_number(1),
        help="how many jobs may share a device (default: as the pool says, 2 for real devices)",
    )
    serve.add_argument(
        "--dry-run", action="store_true", help="start nothing; plan --from-live tells what would be"
    )


def _measure(measure: argparse.ArgumentParser) -> None:
    measure.add_argument("campaign", metavar="CAMPAIGN.yaml", help="what is measured, and how")
    measure.add_argument(
        "--output",
        metavar="DIR",
        help="where results go, and where an earlier start is gone on with (default: the "
        "campaign's file name without its ending)",
    )
    measure.add_argument(
        "--device",
        metavar="DEVICE",
        type=_device,
        default="gpu",
        help="gpu (the first), gpu:UUID, cpu (one core as a stand-in), or simulated:INSTANCE (its "
        "first GPU, as its slowdowns say) (default: gpu)",
    )
    measure.add_argument(
        "--python",
        metavar="FILE",
        help="the Python whose PyTorch runs the workloads (default: this one)",
    )
    measure.add_argument(
        "--directory",
        metavar="DIR",
        help="where doctor --splits has kept which shares compute right (default: as serve has it)",
    )
    measure.add_argument(
        "--stages",
        metavar="N",
        type=_number(1),
        help="carry out the first N stages of the campaign only (default: all)",
    )
    measure.add_argument(
        "--minutes",
        metavar="M",
        type=_minutes,
        help="begin nothing that would take longer; exit status 3 if more is left",
    )
    measure.add_argument(
        "--dry-run", action="store_true", help="measure nothing; tell what would be"
    )
    measure.add_argument(
        "--verbose", action="store_true", help="a line for each result, on standard error"
    )


def _keep(keeping: argparse.ArgumentParser) -> None:
    keeping.add_argument(
        "--keep",
        metavar="TIME",
        type=_duration,
        default=30 * 86_400.0,
        help="how long logs and events of ended jobs are kept (default: 30 days)",
    )


def _doctor(doctor: argparse.ArgumentParser) -> None:
    doctor.add_argument(
        "--splits",
        action="store_true",
        help="measure which SM shares compute right on these GPUs first",
    )
    doctor.add_argument(
        "--sms",
        action="store_true",
        help="first count the SMs that a client sees at every share; computes nothing",
    )
    doctor.add_argument(
        "--shares",
        metavar="P,...",
        type=_shares,
        help="with --splits, --sms: these only (default: every fifth, each per cent)",
    )
    doctor.add_argument(
        "--again",
        action="store_true",
        help="with --splits: those that are measured already, too",
    )
    doctor.add_argument(
        "--python",
        metavar="FILE",
        help="a Python with the PyTorch that jobs use (default: this one)",
    )
    doctor.add_argument(
        "--directory", metavar="DIR", help="the service's (default: as serve has it)"
    )
    doctor.add_argument("--socket", metavar="PATH", help="the service's (default: as serve has it)")
    doctor.add_argument(
        "--listen",
        metavar="HOST:PORT",
        type=_address,
        help="see whether the service could listen there",
    )


def _ids(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _array(text: str) -> tuple[tuple[int, ...], int | None]:
    """Return the indices of ``0-9,12,20-30:5%4``, each once, and how many may run at once."""
    numbers, percent, most = text.partition("%")
    return _indices(numbers), _number(1)(most) if percent else None


def _indices(text: str) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for part in text.split(","):
        said = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::([1-9]\d{0,8}))?)?", part.strip(), re.ASCII)
        first, last = (int(said[1]), int(said[2] or said[1])) if said else (1, 0)
        numbers = range(first, last + 1, int(said[3] or 1) if said else 1)
        if not numbers or len(found) + len(numbers) > MOST_ARRAY:
            rule = f"must be numbers like 0-9,12,20-30:5, at most {MOST_ARRAY:,}, got {text!r}"
            raise argparse.ArgumentTypeError(rule)
        found |= dict.fromkeys(numbers)
    return tuple(found)


def _words(text: str) -> list[str]:
    import shlex

    try:
        words = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a command, got {text!r} ({error})") from None
    if not words:
        raise argparse.ArgumentTypeError(f"must name a program, got {text!r}")
    return words


def _shares(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and 1 <= int(part) <= 100 for part in parts):
        raise argparse.ArgumentTypeError(f"must be whole numbers from 1 to 100, got {text!r}")
    return tuple(dict.fromkeys(map(int, parts)))


def _describing(command: argparse.ArgumentParser) -> None:
    """Add what describes a job, but its program."""
    command.add_argument("--name", metavar="NAME", help="what people call it")
    command.add_argument(
        "--workload",
        metavar="NAME",
        help="jobs of one name behave alike (default: one of its own for each command and folder)",
    )
    command.add_argument(
        "--workers", metavar="N", type=_number(1), default=1, help="processes, a GPU each"
    )
    command.add_argument("--gsla", metavar="X", type=_finite, help="the largest slowdown accepted")
    command.add_argument(
        "--weight", metavar="W", type=_finite, default=1.0, help="how much it counts"
    )
    command.add_argument("--priority", choices=("batch", "latency"), default="batch")
    command.add_argument(
        "--nice",
        metavar="N",
        type=_nice,
        default=0,
        help="your jobs of a lower N start first: -20 to 20 (default: 0)",
    )
    command.add_argument(
        "--memory-mib", metavar="MIB", type=_finite, help="of a worker; becomes its limit"
    )
    command.add_argument(
        "--estimate", metavar="TIME", type=_duration, help="how long it runs alone: 90, 15m, 2h, 1d"
    )
    command.add_argument("--walltime", metavar="TIME", type=_duration, help="end it after that")
    command.add_argument(
        "--retries", metavar="N", type=_number(0), default=0, help="start it again so often"
    )
    command.add_argument(
        "--no-requeue",
        action="store_true",
        help="never stop it for another's sake to start it again later",
    )
    command.add_argument(
        "--grace",
        metavar="TIME",
        type=_duration,
        default=30.0,
        help="from being asked to end to being killed (default: 30 s)",
    )
    command.add_argument(
        "--progress",
        metavar="REGEX",
        type=_pattern,
        help="its first group is the number of iterations done, in a line that the job writes",
    )
    command.add_argument("--cwd", metavar="DIR", help="working directory (default: this one)")
    command.add_argument(
        "--output",
        metavar="FILE",
        help="append its output to this file, too; %%j: job, %%a: number in the array, %%t or %%r: "
        "rank, %%u: user, %%x: name",
    )
    command.add_argument(
        "--error", metavar="FILE", help="append its standard error to this file, not to --output"
    )
    command.add_argument("--public-log", action="store_true", help="let others read its output")


def _submit(submit: argparse.ArgumentParser) -> None:
    submit.usage = "dovetail submit [OPTION ...] -- COMMAND [ARGUMENT ...]"
    submit.add_argument(
        "job_command", metavar="COMMAND", nargs="+", help="program and arguments, after --"
    )
    _describing(submit)
    submit.add_argument(
        "--array",
        metavar="0-9,...",
        type=_array,
        default=((), None),
        help="a job for each number, which it finds in DOVETAIL_ARRAY_INDEX; 0-30:5: every fifth; "
        "0-99%%4: four of them run at once, at most",
    )
    submit.add_argument(
        "--after",
        metavar="JOB,...",
        type=_ids,
        default=(),
        help="start once these have finished; cancel it if one fails or is cancelled",
    )
    submit.add_argument(
        "--after-any",
        metavar="JOB,...",
        type=_ids,
        default=(),
        help="start once these are over, however they end",
    )
    submit.add_argument(
        "--hold", action="store_true", help="do not start it before dovetail release"
    )
    submit.add_argument(
        "--wait", action="store_true", help="return when it is over; 1 unless it finished"
    )
    submit.add_argument(
        "--key", metavar="KEY", help="submit once, however often this is asked under one key"
    )


def _edit(edit: argparse.ArgumentParser) -> None:
    edit.usage = "dovetail edit [OPTION ...] JOB [-- COMMAND [ARGUMENT ...]]"
    edit.add_argument("job", metavar="JOB", help=_JOB_HELP)
    edit.add_argument(
        "job_command", metavar="COMMAND", nargs="*", help="program and arguments, after --"
    )
    _describing(edit)
    # What is not said stays as it is.
    said = ("workers", "weight", "priority", "nice", "retries", "grace", "public_log")
    edit.set_defaults(**dict.fromkeys(said))


def _logs(logs: argparse.ArgumentParser) -> None:
    logs.add_argument("job", metavar="JOB", help=_JOB_HELP)
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the job is over")
    logs.add_argument(
        "-n", "--lines", metavar="N", type=_number(0), help="begin with the last N lines"
    )
    logs.add_argument(
        "--raw", action="store_true", help="give a terminal what would command it, too"
    )
    logs.add_argument(
        "--run",
        metavar="K",
        type=_number(1),
        help="of its first start, or its K-th (default: last)",
    )
    logs.add_argument(
        "--rank", metavar="K", type=_number(0), default=0, help="of this process (default: 0)"
    )


def _duration(text: str) -> float:
    time_s = parsed_duration(text)
    if time_s is None:
        raise argparse.ArgumentTypeError(f"must be a time like 90, 15m, 2h or 1d, got {text!r}")
    return time_s


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"must be a finite number, got {text!r}")
    return number


def _nice(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,2}", text, re.ASCII) or abs(int(text)) > MOST_NICE:
        rule = f"must be a whole number from -{MOST_NICE} to {MOST_NICE}, got {text!r}"
        raise argparse.ArgumentTypeError(rule)
    return int(text)


def _changes(text: str) -> tuple[tuple[str, float], ...]:
    found = []
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 <= number < math.inf:
            rule = f"must be NAME=VALUE,... with finite values >= 0, got {text!r}"
            raise argparse.ArgumentTypeError(rule)
        found.append((name.strip(), number))
    return tuple(found)


def _device(text: str) -> str:
    kind, colon, which = text.partition(":")
    named = bool(which) if colon else kind == "gpu"
    if text != "cpu" and not (named and kind in ("gpu", "simulated")):
        rule = f"must be gpu, gpu:UUID, cpu or simulated:INSTANCE, got {text!r}"
        raise argparse.ArgumentTypeError(rule)
    return text


def _minutes(text: str) -> float:
    number = _finite(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"must be > 0, got {text!r}")
    return number


def _pause(text: str) -> float:
    time_s = _duration(text)
    if not 0.1 <= time_s <= 86_400:
        raise argparse.ArgumentTypeError(f"must be >= 0.1 s and <= 1d, got {text!r}")
    return time_s


def _number(least: int) -> Callable[[str], int]:
    def parsed(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number >= {least}, got {text!r}")
        return int(text)

    return parsed


def _pattern(text: str) -> str:
    try:
        groups = re.compile(text).groups
    except (re.error, OverflowError, RecursionError) as error:
        rule = f"must be a regular expression, got {text!r} ({error})"
        raise argparse.ArgumentTypeError(rule) from None
    if groups < 1:
        raise argparse.ArgumentTypeError(f"must have a group for the iterations, got {text!r}")
    return text


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise argparse.ArgumentTypeError(f"must be HOST:PORT, got {text!r}")
    return host, int(port)


def _queue(queue: argparse.ArgumentParser) -> None:
    queue.add_argument("--all", action="store_true", help="those that are over, too")
    queue.add_argument("--user", metavar="NAME", help="this user's only")
    queue.add_argument("--name", metavar="NAME", help="those of this name")
    queue.add_argument(
        "--state", metavar="STATE", type=_any_state, help="those in this state: failed, waiting ..."
    )
    queue.add_argument(
        "--since",
        metavar="TIME",
        type=_duration,
        help="those that were over in the last 90, 2h, 1d",
    )
    queue.add_argument("--limit", metavar="N", type=_number(0), help="the last N of them")
    queue.add_argument(
        "--before", metavar="JOB", help="of those submitted before this: the page before"
    )


def _show(show: argparse.ArgumentParser) -> None:
    show.add_argument("job", metavar="JOB", nargs="?", help="default: tell of the service")


def _chosen(command: argparse.ArgumentParser) -> None:
    """Add what chooses jobs that are not over."""
    command.add_argument("jobs", metavar="JOB", nargs="*", help=_JOB_HELP)
    command.add_argument("--all", action="store_true", help="all of your jobs")
    command.add_argument("--name", metavar="NAME", help="those of this name")
    command.add_argument("--user", metavar="NAME", help="those of this user, not yours")
    command.add_argument("--state", metavar="STATE", type=_state, help="those in this state")


def _any_state(text: str) -> str:
    from dovetail.executor.jobs.states import JobState

    return _one_of([state.value for state in JobState], text)


def _requeue(requeue: argparse.ArgumentParser) -> None:
    _chosen(requeue)
    requeue.add_argument(
        "--hold", action="store_true", help="hold them, so that they wait for dovetail release"
    )


def _state(text: str) -> str:
    from dovetail.executor.jobs.states import OVER, JobState

    return _one_of([state.value for state in JobState if state not in OVER], text)


def _one_of(known: Sequence[str], text: str) -> str:
    if text not in known:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(known)}, got {text!r}")
    return text


def _cancel(cancel: argparse.ArgumentParser) -> None:
    _chosen(cancel)
    cancel.add_argument("--wait", action="store_true", help="return when they are gone")
    cancel.add_argument(
        "--now", dest="grace", action="store_const", const=0.0, help="kill them without grace"
    )
    cancel.add_argument(
        "--grace",
        metavar="TIME",
        type=_duration,
        help="kill them after this, if their own grace is longer; 0: now",
    )


def _drain(drain: argparse.ArgumentParser) -> None:
    drain.add_argument(
        "gpus", metavar="DEVICE", nargs="*", help="a device, or a node: all of its (default: all)"
    )
    drain.add_argument("--off", action="store_true", help="let them take jobs again")


def _top(top: argparse.ArgumentParser) -> None:
    top.add_argument(
        "--every", metavar="TIME", type=_pause, default=2.0, help="how often (default: 2 s)"
    )
    top.add_argument("--once", action="store_true", help="print it once")


LIVE: Final[Mapping[str, tuple[str, str, Callable[[argparse.ArgumentParser], None]]]] = {
    "serve": ("Run the jobs that people submit.", "live.serving", _serve),
    "submit": ("Submit a job to the live service.", _ASKING, _submit),
    "queue": ("List the jobs of the live service.", _ASKING, _queue),
    "show": ("Tell all of a job: where it stands, why, and how it came there.", _ASKING, _show),
    "wait": ("Wait until jobs are over; exit status 1 unless all finished.", _ASKING, _chosen),
    "logs": ("Print what a job writes.", _ASKING, _logs),
    "cancel": ("End jobs: asked first, killed when their grace is over.", _ASKING, _cancel),
    "hold": ("Let jobs that wait not start before they are released.", _ASKING, _chosen),
    "release": ("Let jobs that are held start.", _ASKING, _chosen),
    "pause": ("Stop the processes of jobs where they are.", _ASKING, _chosen),
    "resume": ("Let jobs go on that are paused.", _ASKING, _chosen),
    "edit": ("Change a job that waits.", _ASKING, _edit),
    "requeue": ("Stop the runs of jobs, so that they wait for devices again.", _ASKING, _requeue),
    "drain": ("Let devices take no new jobs; those that run go on.", _ASKING, _drain),
    "doctor": (_DOCTOR, "measuring.doctor", _doctor),
    "measure": (_MEASURE, "measuring.campaigns", _measure),
    "top": ("Show the service, its devices and its jobs as they change.", _ASKING, _top),
}
"""The commands: what each is for, the module that carries it out, what adds its arguments."""
