"""The commands of live mode."""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from typing import Final

from dovetail.instances.plugins import plugins
from dovetail.toolkit.commands import Argument, Command, argument, option
from dovetail.toolkit.values import address, duration, finite, names, one_of, whole

MOST_ARRAY: Final = 10_000
"""Most jobs of an array, as of any request."""

MOST_NICE: Final = 20


def _array(text: str) -> tuple[tuple[int, ...], int | None]:
    """Return the indices of ``0-9,12,20-30:5%4``, each once, and how many may run at once."""
    numbers, percent, most = text.partition("%")
    return _indices(numbers), whole(1)(most) if percent else None


def _indices(text: str) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for part in text.split(","):
        said = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::([1-9]\d{0,8}))?)?", part.strip(), re.ASCII)
        first, last = (int(said[1]), int(said[2] or said[1])) if said else (1, 0)
        numbers = range(first, last + 1, int(said[3] or 1) if said else 1)
        if not numbers or len(found) + len(numbers) > MOST_ARRAY:
            rule = f"must be indices like 0-9,12,20-30:5, at most {MOST_ARRAY:,}, got {text!r}"
            raise ArgumentTypeError(rule)
        found |= dict.fromkeys(numbers)
    return tuple(found)


def _words(text: str) -> list[str]:
    import shlex

    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ArgumentTypeError(f"must be a command, got {text!r} ({error})") from None
    if not words:
        raise ArgumentTypeError(f"must name a program, got {text!r}")
    return words


def _nice(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,2}", text, re.ASCII) or abs(int(text)) > MOST_NICE:
        rule = f"must be a whole number from -{MOST_NICE} to {MOST_NICE}, got {text!r}"
        raise ArgumentTypeError(rule)
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
            raise ArgumentTypeError(rule)
        found.append((name.strip(), number))
    return tuple(found)


def _pause(text: str) -> float:
    time_s = duration(text)
    if not 0.1 <= time_s <= 86_400:
        raise ArgumentTypeError(f"must be >= 0.1 s and <= 1d, got {text!r}")
    return time_s


def _pattern(text: str) -> str:
    try:
        groups = re.compile(text).groups
    except (re.error, OverflowError, RecursionError) as error:
        rule = f"must be a regular expression, got {text!r} ({error})"
        raise ArgumentTypeError(rule) from None
    if groups < 1:
        raise ArgumentTypeError(f"must have a group for the iterations, got {text!r}")
    return text


def _any_state(text: str) -> str:
    from dovetail.executor.jobs.states import JobState

    return one_of([state.value for state in JobState], text)


def _state(text: str) -> str:
    from dovetail.executor.jobs.states import OVER, JobState

    return one_of([state.value for state in JobState if state not in OVER], text)


_SERVE = Command(
    "serve",
    "Run the jobs that users submit.",
    "dovetail.live.serving:serve",
    (
        option(
            "--pool POOL",
            "gpu (this machine's) or gpu:ID,ID; cpu (its cores as stand-ins) or "
            "cpu:cores_per_device=N,devices=N,shares=HOW; simulated:INSTANCE"
            + "".join(f"; {name}:..." for name in plugins("pool"))
            + " (cpu and simulated with ,gate=made-up: shares need made-up evidence)",
            default="gpu",
        ),
        option(
            "--directory DIR",
            "directory of its state (default: DOVETAIL_HOME; else /var/lib/dovetail for root, "
            "~/.local/state/dovetail for others)",
        ),
        option("--policy P", "NAME or NAME:OPTION=VALUE,...", default="dovetail"),
        option("--model FILE", "predict with this fitted model (default: the law of MPS)"),
        option(
            "--watch NAME=VALUE,...",
            "how long runs are measured: warm_up_s, profile_s, window_s, ... "
            "(docs/internals/profiling.md has all)",
            _changes,
        ),
        option(
            "--socket PATH",
            "socket on which it listens (default: api.sock in its directory; "
            "/run/dovetail/api.sock for root's)",
        ),
        option(
            "--listen HOST:PORT", "also listen on TCP, without encryption; needs --tokens", address
        ),
        option("--tokens FILE", "USER TOKEN on each line; only its owner may read it"),
        option("--max-grace TIME", "the longest --grace that jobs may have", duration, "1h"),
        option("--keep TIME", "how long to keep logs and events of ended jobs", duration, "30d"),
        option(
            "--notify COMMAND",
            "run this for each job that ends, with DOVETAIL_JOB, DOVETAIL_STATE ... set",
            _words,
        ),
        option(
            "--private",
            "show a job's command, folder, name, workload, files and reasons only to its user and "
            "to administrators",
        ),
        option(
            "--user-jobs N",
            "most waiting jobs of a user; administrators have no limit",
            whole(0),
            "10000",
        ),
        option(
            "--user-mib MIB",
            "most memory for commands and environments of a user's jobs that are not over; "
            "administrators have no limit",
            finite,
            "128",
        ),
        option(
            "--max-jobs-per-gpu N",
            "most jobs on a device (default: the pool's; 4 on GPUs under MPS, where three and more "
            "need a share each; else 2)",
            whole(1),
        ),
        option(
            "--uncapped",
            "let jobs that never ran together share without SM shares on an estimate",
        ),
        option(
            "--measure-shares WHEN",
            "idle: measure on idle GPUs which SM shares compute correctly, and make way for jobs; "
            "off: only dovetail doctor --splits does",
            default="idle",
            choices=("idle", "off"),
        ),
        option(
            "--python FILE",
            "a Python with the PyTorch that jobs use, to measure shares (default: those of jobs of "
            "the service's user, once they have run)",
        ),
        option("--accept-loss", "start even if the journal lacks events that were on disk"),
        option("--dry-run", "start nothing; plan --from-live prints what would start"),
    ),
)

_DESCRIBING = (
    option("--name NAME", "name of the job in lists"),
    option(
        "--workload NAME",
        "workload; jobs of one workload behave alike (default: one for each command and folder)",
    ),
    option("--workers N", "number of processes, one GPU each", whole(1), "1"),
    option("--gsla X", "largest slowdown accepted", finite),
    option("--weight W", "how much the job counts", finite, "1"),
    option("--priority CLASS", "batch or latency", default="batch", choices=("batch", "latency")),
    option(
        "--isolation HOW",
        "blocks: a latency-critical job lets others run in its idle time, "
        "a batch job may be one of them",
        choices=("blocks",),
    ),
    option("--nice N", "priority among your jobs, -20 to 20: lower ones start first", _nice, "0"),
    option("--memory-mib MIB", "memory limit of a worker", finite),
    option("--estimate TIME", "expected run time alone: 90, 15m, 2h, 1d", duration),
    option("--walltime TIME", "end it after this time", duration),
    option("--retries N", "start it again up to N times if it fails", whole(0), "0"),
    option("--no-requeue", "never stop it to start it again later"),
    option(
        "--checkpoint TIME",
        "it resumes from a checkpoint that it writes at least this often (0: on SIGTERM): the "
        "policy dovetail may stop it for other jobs",
        duration,
    ),
    option("--stops-apart TIME", "least time between two such stops (default: an hour)", duration),
    option("--grace TIME", "time between the signal to end and the kill", duration, "30s"),
    option(
        "--progress REGEX",
        "regular expression for lines of its output; its first group is the number of iterations "
        "done",
        _pattern,
    ),
    option("--cwd DIR", "working directory (default: this one)"),
    option(
        "--output FILE",
        "also append its output to this file; %j: job, %a: number in the array, %t or %r: rank, "
        "%u: user, %x: name",
    ),
    option("--error FILE", "append its standard error to this file, not to --output"),
    option("--public-log", "let others read its output"),
)
"""Options that describe a job, except its program."""

_UNCHANGED = tuple(each._replace(default=None) for each in _DESCRIBING)
"""The same for a submitted job; fields that are not given stay as they are."""

_SUBMIT = Command(
    "submit",
    "Submit a job to the live service.",
    "dovetail.live.commands:submit",
    (
        argument("COMMAND ...", "program and arguments, after --", "job_command"),
        *_DESCRIBING,
        option(
            "--array 0-9,...",
            "submit a job for each number, which is its DOVETAIL_ARRAY_INDEX; 0-30:5: every fifth; "
            "0-99%4: at most four run at once",
            _array,
        ),
        option(
            "--after JOB,...",
            "start once these jobs have finished (ids, ranges like j3-j7, or names); cancel it if "
            "one fails or is cancelled",
            names,
            "",
        ),
        option(
            "--after-any JOB,...", "start once these jobs are over, however they end", names, ""
        ),
        option("--hold", "do not start it until dovetail release"),
        option("--wait", "return when it is over, with exit status 1 unless it finished"),
        option("--key KEY", "submit once only, even if repeated with the same key"),
    ),
    usage="dovetail submit [OPTION ...] -- COMMAND [ARGUMENT ...]",
)

_JOB = argument("JOB", "id of the job")
_CHOSEN = (
    argument("[JOB ...]", "ids of jobs, or ranges like j3-j7", "jobs"),
    option("--all", "all of your jobs"),
    option("--name NAME", "jobs of this name"),
    option("--user NAME", "jobs of this user instead of yours"),
    option("--state STATE", "jobs in this state", _state),
)
"""Options that select jobs that are not over."""


def _order(name: str, text: str, *arguments: Argument) -> Command:
    """Declare a command that changes jobs."""
    return Command(name, text, f"dovetail.live.commands:{name}", (*_CHOSEN, *arguments))


COMMANDS: Final = (
    _SERVE,
    _SUBMIT,
    Command(
        "queue",
        "List the jobs of the live service.",
        "dovetail.live.commands:queue",
        (
            option("--all", "also jobs that are over"),
            option("--user NAME", "jobs of this user"),
            option("--name NAME", "jobs of this name"),
            option("--state STATE", "jobs in this state: failed, waiting ...", _any_state),
            option("--since TIME", "jobs that ended within this time: 90, 2h, 1d", duration),
            option("--limit N", "the last N of them", whole(0)),
            option("--before JOB", "jobs submitted before this one: the previous page"),
        ),
    ),
    Command(
        "show",
        "Show everything about a job: its state, why, and how it got there.",
        "dovetail.live.commands:show",
        (argument("[JOB]", "id of the job (default: show the service)"),),
    ),
    _order("wait", "Wait until jobs are over; exit status 1 unless all finished."),
    Command(
        "logs",
        "Print what a job writes.",
        "dovetail.live.commands:logs",
        (
            _JOB,
            option("-f, --follow", "continue until the job is over"),
            option("-n, --lines N", "begin with the last N lines", whole(0)),
            option("--raw", "also pass control characters to a terminal"),
            option("--run K", "output of its K-th start (default: the last)", whole(1)),
            option("--rank K", "output of this process", whole(0), "0"),
        ),
    ),
    _order(
        "cancel",
        "End jobs: first by a signal, after their grace by a kill.",
        option("--wait", "return when they are gone"),
        option("--now", "kill them without grace"),
        option(
            "--grace TIME", "kill them after this, if their own grace is longer; 0: now", duration
        ),
    ),
    _order("hold", "Keep waiting jobs from starting before they are released."),
    _order("release", "Let held jobs start."),
    _order("pause", "Stop the processes of jobs where they are."),
    _order("resume", "Continue paused jobs."),
    Command(
        "edit",
        "Change a waiting job; fields that are not given stay as they are.",
        "dovetail.live.commands:edit",
        (
            _JOB,
            argument("[COMMAND ...]", "program and arguments, after --", "job_command"),
            *_UNCHANGED,
        ),
        usage="dovetail edit [OPTION ...] JOB [-- COMMAND [ARGUMENT ...]]",
    ),
    _order(
        "requeue",
        "Stop the runs of jobs, so that they wait for devices again.",
        option("--hold", "also hold them until dovetail release"),
    ),
    Command(
        "drain",
        "Keep devices from taking new jobs; running jobs continue.",
        "dovetail.live.commands:drain",
        (
            argument("[DEVICE ...]", "device, or node with all its devices (default: all)", "gpus"),
            option("--off", "let them take jobs again"),
        ),
    ),
    Command(
        "top",
        "Show the service, its devices and its jobs as they change.",
        "dovetail.live.commands:top",
        (
            option("--every TIME", "time between refreshes", _pause, "2s"),
            option("--once", "print it once"),
        ),
    ),
)
