"""``dovetail submit``: submit a job to the live service."""

from __future__ import annotations

import os
import re
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from dovetail.instances.errors import InputError
from dovetail.live.choosing import MOST_ARRAY, job_ids, waited_for
from dovetail.live.printing import ended_status, tell
from dovetail.toolkit.commands import Command, argument, duration, finite, names, option, whole

if TYPE_CHECKING:
    from dovetail.live.client import Client

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


def _nice(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,2}", text, re.ASCII) or abs(int(text)) > MOST_NICE:
        rule = f"must be a whole number from -{MOST_NICE} to {MOST_NICE}, got {text!r}"
        raise ArgumentTypeError(rule)
    return int(text)


def _pattern(text: str) -> str:
    try:
        groups = re.compile(text).groups
    except (re.error, OverflowError, RecursionError) as error:
        rule = f"must be a regular expression, got {text!r} ({error})"
        raise ArgumentTypeError(rule) from None
    if groups < 1:
        raise ArgumentTypeError(f"must have a group for the iterations, got {text!r}")
    return text


DESCRIBING: Final = (
    option("--name NAME", "name of the job in lists"),
    option(
        "--workload NAME",
        "workload; jobs of one workload behave alike (default: one for each command and folder)",
    ),
    option("--workers N", "number of processes, one GPU each", whole(1), "1"),
    option("--workers-per-node N", "exactly N of them on each node that it uses", whole(1)),
    option("--workers-together N", "groups of N of them, each group on one node", whole(1)),
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
    option("--memory-percent P", "or in per cent of what its GPU offers to jobs", finite),
    option("--estimate TIME", "expected run time alone: 90, 15m, 2h, 1d", duration),
    option("--walltime TIME", "end it after this time", duration),
    option(
        "--retries N",
        "start it again up to N times if it fails; a service: N times in a row soon after its "
        "start (0: without limit)",
        whole(0),
        "0",
    ),
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
    option(
        "--probe HOW",
        "ask a service this way whether it answers, and how fast: an address like "
        "http://127.0.0.1:{port}/health, or a command that ends with status 0",
    ),
    option(
        "--probe-rate N",
        "probes per second, at fixed times (default: 10; of a command or a histogram, 1)",
        finite,
    ),
    option(
        "--probe-histogram NAME",
        "take its latencies from this Prometheus histogram in the answer, "
        "such as vllm:time_to_first_token_seconds",
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


SUBMIT: Final = Command(
    "submit",
    "Submit a job to the live service.",
    "dovetail.live.submit:submit",
    (
        argument("COMMAND ...", "program and arguments, after --", "job_command"),
        option(
            "--service",
            "it has no end and is latency-critical: start it again whenever it ends, until it is "
            "cancelled; it finds its port in DOVETAIL_PORT",
        ),
        option("--replicas N", "run a service N times, each on GPUs of its own", whole(1)),
        *DESCRIBING,
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


_INTERPRETERS: Final = ("bash", "python", "sh", "torchrun")
_MOST_LABEL: Final = 60
_FIELDS: Final = {
    **{name: name for name in ("name", "workload", "workers", "gsla", "weight", "priority")},
    **{name: name for name in ("workers_per_node", "workers_together")},
    **{name: name for name in ("isolation", "nice", "retries", "output", "error")},
    **{name: name for name in ("memory_mib", "memory_percent")},
    **{name: name for name in ("probe", "probe_rate", "probe_histogram")},
    "estimate": "estimate_s",
    "walltime": "walltime_s",
    "grace": "grace_s",
    "checkpoint": "checkpoint_s",
    "stops_apart": "stops_apart_s",
    "progress": "progress_pattern",
}
"""The field of ``JobSpec`` that each of these options sets."""


def submit(options: Namespace) -> int:
    """Submit a job; with ``--wait``, return 1 unless it finishes."""
    from dovetail.live.client import Client

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
            tell({"ids": names} if job["array"] else {"id": names[0]}, line, options.json)
            return 0
        print(f"dovetail: submitted {line}", file=sys.stderr)
        return max(ended_status(waited_for(client, name), options.json) for name in names)


def _awaited(client: Client, said: Sequence[str], option: str) -> list[str]:
    """Return the ids of the jobs that an option names by id, by range or by name.

    A name selects the user's jobs of that name that are not over.
    """
    from dovetail.executor.live.views import Chosen

    found: dict[str, None] = {}
    for text in said:
        ids = job_ids(text)
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


def _job(options: Namespace) -> dict[str, Any]:
    """Return the job that the options describe, as ``JobSpec`` without its owner."""
    command = utf8_texts(options.job_command, "COMMAND")
    cwd = utf8_texts([os.path.abspath(options.cwd or os.getcwd())], "--cwd")[0]
    indices, most_running = _replicas(options) or options.array or ((), None)
    served = {"service": True, "priority": "latency"} if options.service else {}
    return {
        "command": command,
        "workload": default_workload(command, cwd),
        "cwd": cwd,
        "env": _environment(os.environ),
        **described(options),
        **served,
        "array": indices,
        "held": options.hold,
        **({} if most_running is None else {"most_running": most_running}),
    }


def _replicas(options: Namespace) -> tuple[tuple[int, ...], None] | None:
    """Return the numbers of a service's replicas; None if ``--replicas`` is not given."""
    if options.replicas is None:
        return None
    if not options.service:
        raise InputError("needs --service", "--replicas")
    if options.array:
        raise InputError("cannot be combined with --array", "--replicas")
    if options.replicas > MOST_ARRAY:
        raise InputError(f"must be <= {MOST_ARRAY:,}, got {options.replicas}", "--replicas")
    return tuple(range(options.replicas)), None


def described(options: Namespace) -> dict[str, Any]:
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


def utf8_texts(texts: Iterable[str], what: str) -> list[str]:
    """Return texts; refuse one that JSON cannot carry."""
    found = list(texts)
    for text in found:
        if not _isutf8_texts(text):
            raise InputError(f"must be UTF-8 text, got {os.fsencode(text)!r}", what)
    return found


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without variables that JSON cannot carry, and report these."""
    kept = {name: value for name, value in env.items() if _isutf8_texts(name + value)}
    for name in env.keys() - kept.keys():
        line = os.fsencode(name).decode(errors="replace")
        print(f"dovetail: the job does not get {line}, which is not UTF-8 text", file=sys.stderr)
    return kept


def _isutf8_texts(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
