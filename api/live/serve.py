"""``dovetail serve``: run the live service."""

from __future__ import annotations

import math
import os
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dovetail.instances.errors import InputError
from dovetail.instances.plugins import plugins, require_package
from dovetail.toolkit.commands import Command, duration, finite, host_and_port, option, whole

if TYPE_CHECKING:
    from dovetail.executor.live.observation.tracks import WatchOptions
    from dovetail.executor.live.rounds.gathering import GatherOptions
    from dovetail.executor.pools.pool import NodePool
    from dovetail.instances.instance import Assumed
    from dovetail.live.http.connections import Tokens
    from dovetail.live.http.server import Listening
    from dovetail.live.page.sessions import Sessions
    from dovetail.predictors.fitted.trained import TrainedPredictor


def _words(text: str) -> list[str]:
    import shlex

    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ArgumentTypeError(f"must be a command, got {text!r} ({error})") from None
    if not words:
        raise ArgumentTypeError(f"must name a program, got {text!r}")
    return words


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


def _slowdown(text: str) -> float:
    from dovetail.instances.instance import Assumed

    try:
        return float(Assumed(pair=float(text)).pair or 1.0)
    except ValueError:
        rule = f"must be a slowdown from 1 to 1000, got {text!r}"
        raise ArgumentTypeError(rule) from None


SERVE: Final = Command(
    "serve",
    "Run the jobs that users submit.",
    "dovetail.live.serve:serve",
    (
        option(
            "--pool POOL",
            "gpu (this machine's) or gpu:ID,ID,partitions=static; cpu (its cores as stand-ins) or "
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
            "--listen HOST:PORT",
            "also listen on TCP, without encryption, for programs and for browsers (the page); "
            "without --tokens on this machine's own address only (127.0.0.1)",
            host_and_port,
        ),
        option("--tokens FILE", "USER TOKEN on each line; only its owner may read it"),
        option(
            "--page-name HOST",
            "also answer browsers under this name, as that of a proxy; may be repeated",
            repeated=True,
        ),
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
            "--assume-pair X",
            "slowdown of each of two jobs without SM shares, in place of predictions, until it was "
            "measured",
            _slowdown,
        ),
        option(
            "--assume-sets RULE",
            "product: three and more jobs without SM shares slow each by the product of its pairs",
            choices=("product",),
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

_SAMPLE: Final = "sample_s"
_SWITCH_S: Final = 0.0005
"""Seconds after which a computing thread lets another run: answers do not wait for decisions."""


def serve(options: Namespace) -> int:
    """Run a service until it gets a signal; its jobs continue."""
    import logging

    from dovetail.executor.jobs.journal import Journal
    from dovetail.executor.live.requests.admission import AdmissionLimits
    from dovetail.executor.live.service import Service, ServiceOptions
    from dovetail.executor.system.descriptors import take_all
    from dovetail.instances.datasets.repository import REPOSITORY, Repository
    from dovetail.live.places import default_directory
    from dovetail.live.pools import pool_named
    from dovetail.live.serving import announced, compiling_ahead, ended_by_signals

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    directory = Path(os.path.abspath(options.directory or default_directory()))
    where, tokens = _listening(options, directory)
    watching, sample_s = _watching(options.watch or ())
    take_all()
    sys.setswitchinterval(_SWITCH_S)
    from dovetail.live.http.application import application
    from dovetail.live.http.server import serving
    from dovetail.live.page.sessions import Sessions

    with Journal(directory, options.accept_loss) as journal:
        pool = pool_named(options.pool, directory, sample_s)
        service = Service(
            journal,
            pool,
            Repository(directory / REPOSITORY),
            ServiceOptions(
                policy=options.policy,
                model=_model(options.model),
                watching=watching,
                sample_s=sample_s,
                directory=directory,
                dry_run=options.dry_run,
                limits=AdmissionLimits(options.max_grace, options.user_jobs, options.user_mib),
                keep_s=options.keep,
                max_jobs_per_gpu=options.max_jobs_per_gpu,
                uncapped=options.uncapped,
                assumed=_assumed(options),
                notify=options.notify,
                private=options.private,
                gathering=_gathering(options),
            ),
        )
        sessions = Sessions()
        answering = application(service.api, tokens, sessions, options.page_name)
        with (
            ended_by_signals(service.stop),
            compiling_ahead(),
            serving(answering, where, service.ready) as port,
            announced(directory, where.path),
        ):
            _tell(options, pool, where, port)
            if port is not None and not options.json:
                _tell_page(where, port, sessions if tokens is None else None)
            service.run()
    return 0


def _listening(options: Namespace, directory: Path) -> tuple[Listening, Tokens | None]:
    from dovetail.live.places import default_socket

    for package in ("fastapi", "prometheus_client", "uvicorn"):
        require_package(package, "live", "dovetail serve")
    from dovetail.live.http.connections import Tokens
    from dovetail.live.http.server import Listening

    if options.listen is None and options.tokens is not None:
        raise InputError("is required, too: over TCP, a token identifies the user", "--listen")
    if options.listen is not None and options.tokens is None and not _is_own(options.listen[0]):
        rule = "is required, too, unless --listen is at 127.0.0.1: a token identifies the user"
        raise InputError(rule, "--tokens")
    path = Path(os.path.abspath(options.socket)) if options.socket else default_socket(directory)
    tokens = Tokens.read(options.tokens) if options.tokens else None
    return Listening(path, os.geteuid() == 0, options.listen), tokens


def _is_own(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _watching(changes: Sequence[tuple[str, float]]) -> tuple[WatchOptions, float]:
    """Return how long runs are watched, and how often, with some of the times changed."""
    from dataclasses import fields, replace

    from dovetail.executor.live.observation.tracks import WatchOptions
    from dovetail.executor.pools.pool import SAMPLE_S

    changed = dict(changes)
    sample_s = changed.pop(_SAMPLE, SAMPLE_S)
    if not sample_s > 0:
        raise InputError(f"must be > 0, got {sample_s:g}", f"--watch {_SAMPLE}")
    usual = WatchOptions()
    kinds = {field.name: type(getattr(usual, field.name)) for field in fields(usual)}
    for name in changed:
        if name not in kinds:
            known = ", ".join([*kinds, _SAMPLE])
            raise InputError(f"must be one of {known}, got {name!r}", "--watch")
    times = {name: kinds[name](value) for name, value in changed.items()}
    return replace(usual, **times), sample_s


def _assumed(options: Namespace) -> Assumed | None:
    """Return the slowdowns that are declared; None: none."""
    from dovetail.instances.instance import Assumed

    if options.assume_pair is None and options.assume_sets is None:
        return None
    return Assumed(pair=options.assume_pair, sets=options.assume_sets)


def _gathering(options: Namespace) -> GatherOptions | None:
    """Return how shares without evidence are measured; None: not by the service."""
    from dovetail.executor.live.rounds.gathering import GatherOptions

    if options.measure_shares == "off":
        if options.python is not None:
            raise InputError("has no effect with --measure-shares off", "--python")
        return None
    return GatherOptions(python=options.python)


def _model(path: str | None) -> TrainedPredictor | None:
    if path is None:
        return None
    from dovetail.predictors.fitted.model_file import load_model

    return load_model(path)


def _tell(options: Namespace, pool: NodePool, where: Listening, port: int | None) -> None:
    from dovetail.executor.pools.pool import awaited_text
    from dovetail.instances.files import write_data

    devices = [gpu.id for node in pool.cluster().nodes for gpu in node.devices]
    if options.json:
        facts = {"pid": os.getpid(), "pool": pool.name, "devices": devices}
        write_data({**facts, "socket": str(where.path), "port": port}, "-")
        return
    dry = " (dry run: nothing is started)" if options.dry_run else ""
    tcp = f" and TCP port {port}" if port is not None else ""
    count = f"{len(devices)} device{'' if len(devices) == 1 else 's'}"
    print(f"serving the {pool.name} pool, {count}, at {where.path}{tcp}{dry}", flush=True)
    for line in filter(None, (pool.notice, awaited_text(pool))):
        print(f"dovetail: {line}", file=sys.stderr)


def _tell_page(where: Listening, port: int, sessions: Sessions | None) -> None:
    """Print where the page is and, on a terminal, a link for the service's own user.

    Elsewhere a link would stay in a log. ``sessions`` is None if users log in with tokens.
    """
    import socket

    from dovetail.live.http.connections import owner_of

    assert where.address is not None
    host = where.address[0]
    name = socket.gethostname() if host in ("", "0.0.0.0", "::") else host
    page = f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"
    if sessions is None:
        print(f"its page: {page}/ (log in with a token)", flush=True)
    elif sys.stdout.isatty():
        secret = sessions.link(owner_of(os.geteuid(), os.getegid()))
        said = "its page, with a link for you that works once, within an hour"
        print(f"{said}: {page}/login/{secret}", flush=True)
    else:
        print(f"its page: {page}/ (dovetail page prints a link)", flush=True)
