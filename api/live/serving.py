"""``dovetail serve``: the service in this thread, its HTTP server in another."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from socket import socketpair
from typing import TYPE_CHECKING, Final

from dovetail.executor.jobs.journal import Journal
from dovetail.executor.live.observation.tracks import WatchOptions
from dovetail.executor.live.requests.admission import AdmissionLimits
from dovetail.executor.live.rounds.gathering import GatherOptions
from dovetail.executor.live.service import Service, ServiceOptions
from dovetail.executor.pools.pool import SAMPLE_S, NodePool, awaited_text
from dovetail.executor.system.descriptors import take_all
from dovetail.executor.system.small_files import write_kept
from dovetail.instances._children import module_command
from dovetail.instances.datasets.repository import REPOSITORY, Repository
from dovetail.instances.errors import InputError
from dovetail.instances.files import write_data
from dovetail.instances.plugins import require_package
from dovetail.live.places import SERVICE_FILE, default_directory, default_socket
from dovetail.live.pools import pool_named

if TYPE_CHECKING:
    from dovetail.live.peers import Tokens
    from dovetail.live.server import Listening
    from dovetail.predictors.fitted.trained import TrainedPredictor

COMPILE_AFTER_S: Final = 10.0
"""Seconds from the start of a service until the matching engine is compiled."""

_LOOK_S: Final = 0.5
_LOWEST_PRIORITY: Final = 19
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_SAMPLE: Final = "sample_s"
_LOG: Final = logging.getLogger("dovetail.live")


def serve(options: Namespace) -> int:
    """Run a service until it gets a signal; its jobs continue."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    directory = Path(os.path.abspath(options.directory or default_directory()))
    where, tokens = _listening(options, directory)
    watching, sample_s = _watching(options.watch or ())
    take_all()
    from dovetail.live.application import application
    from dovetail.live.server import serving

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
                notify=options.notify,
                private=options.private,
                gathering=_gathering(options),
            ),
        )
        answering = application(service.api, tokens)
        with (
            ended_by_signals(service.stop),
            compiling_ahead(),
            serving(answering, where, service.ready) as port,
            announced(directory, where.path),
        ):
            _tell(options, pool, where, port)
            service.run()
    return 0


def _listening(options: Namespace, directory: Path) -> tuple[Listening, Tokens | None]:
    for package in ("fastapi", "prometheus_client", "uvicorn"):
        require_package(package, "live", "dovetail serve")
    from dovetail.live.peers import Tokens
    from dovetail.live.server import Listening

    if (options.listen is None) != (options.tokens is None):
        missing = "--tokens" if options.tokens is None else "--listen"
        raise InputError("is required, too: over TCP, a token identifies the user", missing)
    path = Path(os.path.abspath(options.socket)) if options.socket else default_socket(directory)
    tokens = Tokens.read(options.tokens) if options.tokens else None
    return Listening(path, os.geteuid() == 0, options.listen), tokens


def _watching(changes: Sequence[tuple[str, float]]) -> tuple[WatchOptions, float]:
    """Return how long runs are watched, and how often, with some of the times changed."""
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


def _gathering(options: Namespace) -> GatherOptions | None:
    """Return how shares without evidence are measured; None: not by the service."""
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


@contextmanager
def compiling_ahead(after_s: float = COMPILE_AFTER_S) -> Iterator[None]:
    """Compile the matching engine while the block runs, so that no large round waits for it.

    A process of low priority compiles it, unless machine code of an earlier run is cached; a
    failure is logged. It starts after ``after_s`` seconds: a service that ends soon compiles
    nothing.
    """
    ending = threading.Event()

    def compiled() -> None:
        if ending.wait(after_s):
            return
        program, quiet = module_command("dovetail.solver.pairing"), subprocess.DEVNULL
        process = subprocess.Popen(program, stdin=quiet, stdout=quiet, stderr=subprocess.PIPE)
        os.setpriority(os.PRIO_PROCESS, process.pid, _LOWEST_PRIORITY)
        while process.poll() is None and not ending.wait(_LOOK_S):
            pass
        status = process.poll()
        process.kill()
        _, text = process.communicate()
        if status:
            lines = text.decode(errors="replace").strip().splitlines() or [f"status {status}"]
            _LOG.warning("the matching engine is not compiled: %s", lines[-1])

    thread = threading.Thread(target=compiled, name="compiling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


@contextmanager
def ended_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` on SIGTERM and SIGINT while the block runs."""
    # Python runs handlers only in this thread, once it is awake; a signal that arrives as it falls
    # asleep, or in another thread, would wait for that. Its number is written immediately.
    reading, writing = socketpair()
    writing.setblocking(False)

    def listen() -> None:
        while number := reading.recv(1):
            if number[0] in _SIGNALS:
                stop()

    before = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
    earlier = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    listening = threading.Thread(target=listen, name="signals", daemon=True)
    listening.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(earlier)
        for number, handler in before.items():
            signal.signal(number, handler)
        writing.close()
        listening.join()
        reading.close()


@contextmanager
def announced(directory: Path, socket: Path) -> Iterator[None]:
    """Let clients of a directory find its service while the block runs.

    If its file cannot be written, they still find the service at its default socket.
    """
    note = directory / SERVICE_FILE
    try:
        write_kept({"pid": os.getpid(), "socket": str(socket)}, note)
    except InputError as error:
        _LOG.warning("%s", error)
    try:
        yield
    finally:
        note.unlink(missing_ok=True)


def _tell(options: Namespace, pool: NodePool, where: Listening, port: int | None) -> None:
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
