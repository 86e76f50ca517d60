"""A latency-critical process beside a best-effort one: latencies and throughput by way of sharing.

Both are real processes (``clients.py``). Isolated, they run below
``python -m dovetail.isolation.interception``, with a scheduler of their own.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from blocks.clients import programs
from blocks.cuda import Stream
from blocks.setting import ApartError, Setting, apart
from dovetail.isolation.server import status

_CLIENTS: Final = "blocks.clients"
_READY_S: Final = 60.0
_ANSWER_S: Final = 20.0
_SETTLE_S: Final = 0.5
_LISTENS_S: Final = 10.0
_IDLE_S: Final = 60
_MPS: Final = "CUDA_MPS_"

Record = dict[str, Any]


class Way(NamedTuple):
    """How two processes share the GPU: under MPS, with what share, isolated, with which forms."""

    mps: bool = True
    share: int | None = None
    isolated: bool = False
    unproven: bool = False


WAYS: Final[Mapping[str, Way]] = {
    "turns": Way(mps=False),
    "MPS": Way(),
    "halves": Way(share=50),
    "isolated": Way(isolated=True),
    "unproven": Way(isolated=True, unproven=True),
}
"""Time slices without MPS; MPS; at 50 % each; isolated with proven forms; with all forms."""

KINDS: Final[Mapping[str, tuple[float, ...]]] = {
    "10 us": 20 * (10.0,),
    "50 us": 20 * (50.0,),
    "200 us": 5 * (200.0,),
    "1 ms": 2 * (1000.0,),
    "10 ms": (10_000.0,),
    "mixed": 10 * (5.0, 5.0, 50.0) + 2 * (200.0,),
    "graph": 10 * (5.0, 5.0, 50.0) + 2 * (200.0,),
}
"""Microseconds of the kernels of a best-effort iteration; all fill the GPU."""

_BLOCK_US: Final = 25.0
"""Blocks take no longer: longer kernels have more of them than run at once."""

PYTORCH: Final = "PyTorch"


class Client:
    """A process of ``clients.py``."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._name = command[command.index(_CLIENTS) + 1]
        self._process = subprocess.Popen(
            command,
            cwd=Path(__file__).parents[1],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answers: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def ready(self) -> None:
        """Wait until it can be asked."""
        self._answer(_READY_S)

    def ask(self, within_s: float = _ANSWER_S, **asked: object) -> Record:
        """Return its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise ApartError(f"{self._name} ended ({self._process.wait()})") from None
        return self._answer(within_s)

    def end(self) -> None:
        """End it."""
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_ANSWER_S)

    def _answer(self, within_s: float) -> Record:
        try:
            answer = self._answers.get(timeout=within_s)
        except queue.Empty:
            raise ApartError(f"{self._name} said nothing within {within_s:g} s") from None
        if answer is None:
            raise ApartError(f"{self._name} ended ({self._process.wait()})")
        return answer

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # What a library prints is no answer.
            if line.startswith("{"):
                self._answers.put(json.loads(line))
        self._answers.put(None)


class Pair:
    """A latency-critical process, and best-effort ones of which at most one is busy.

    Parameters
    ----------
    setting : Setting
        Where it runs.
    start : callable
        Starts a client of a role: ``requests``, ``training`` or ``pytorch``.
    rounds_a_us : float
        Rounds of work in a microsecond.
    pytorch : bool
        Whether a PyTorch training is among the best-effort ones.
    socket : Path, optional
        The socket of their scheduler, if they are isolated.
    """

    def __init__(
        self,
        setting: Setting,
        start: Callable[[str], Client],
        rounds_a_us: float,
        pytorch: bool,
        socket: Path | None,
    ) -> None:
        self._socket = socket
        self._setting, self._rounds_a_us, self._start = setting, rounds_a_us, start
        self._trainings = {"": start("training")}
        if pytorch:
            self._trainings[PYTORCH] = start("pytorch")
        self._critical: Client | None = None
        for client in self._trainings.values():
            client.ready()

    def join(self) -> None:
        """Let the latency-critical process begin."""
        self._critical = self._start("requests")
        self._critical.ready()

    def begin(self, kind: str | None) -> None:
        """Let the best-effort iterations be of a kind, or none."""
        for name, client in self._trainings.items():
            mine = kind is not None and name == (PYTORCH if kind == PYTORCH else "")
            kernels = [self._kernel(us) for us in KINDS.get(kind or "", ())]
            client.ask(iterate={"kernels": kernels, "graph": kind == "graph"} if mine else None)
        if kind:
            time.sleep(_SETTLE_S)

    def serve(self, kernels: int, us: float, rate: float | None, seconds: float) -> Record:
        """Let the latency-critical process serve requests (`clients.Requests`)."""
        assert self._critical is not None
        asked = {"kernels": kernels, "rounds": self._rounds(us), "seconds": seconds}
        asked |= {"rate": rate} if rate else {}
        return self._critical.ask(seconds + _ANSWER_S, **asked)

    def rate(self, kind: str, during: Callable[[], object]) -> float:
        """Return the iterations a second of a kind while something is done."""
        client = self._trainings[PYTORCH if kind == PYTORCH else ""]
        before = client.ask()
        during()
        after = client.ask()
        return float((after["done"] - before["done"]) / (after["at"] - before["at"]))

    def rest(self, seconds: float) -> None:
        """Ask nothing for some seconds."""
        time.sleep(seconds)

    def status(self) -> Record | None:
        """Return what the scheduler says of launches, or None without one."""
        return None if self._socket is None else dict(status(self._socket))

    def _kernel(self, us: float) -> tuple[int, int]:
        """Return the rounds of a block, and how many waves of blocks a kernel has."""
        waves = max(1, round(us / _BLOCK_US))
        return self._rounds(us / waves), waves

    def _rounds(self, us: float) -> int:
        return self._setting.of(max(1, round(us * self._rounds_a_us)), 2)


class Machine:
    """MPS, schedulers and processes on the GPU."""

    def __init__(self, setting: Setting) -> None:
        from dovetail.executor.mps.manager import MpsManager

        self._setting = setting
        self._uid = os.geteuid()
        self._base = Path(tempfile.gettempdir()) / f"dovetail-steps-{self._uid}"
        self._manager = MpsManager(self._base)
        self._uuid = "" if setting.stand_in else _uuid()

    @functools.cached_property
    def rounds_a_us(self) -> float:
        """Rounds of work in a microsecond, alone on the GPU."""
        if self._setting.stand_in:
            return 1.0
        return next(apart(_rounds_a_us, self._setting, within_s=30.0))

    @property
    def has_pytorch(self) -> bool:
        """Whether PyTorch trains here."""
        return not self._setting.stand_in and importlib.util.find_spec("torch") is not None

    @contextmanager
    def pair(self, way: Way, pytorch: bool = False) -> Iterator[Pair]:
        """Start the processes of a pair, and end them."""
        with ExitStack() as last:
            # Before MPS and others are on the GPU.
            rounds_a_us = self.rounds_a_us
            environment = self.environment(way)
            socket: Path | None = None
            if way.isolated:
                folder = Path(last.enter_context(tempfile.TemporaryDirectory(prefix="dt")))
                socket = folder / "socket"
                last.enter_context(_scheduler(socket, way.unproven))

            def start(role: str) -> Client:
                command = [sys.executable, "-m", _CLIENTS, role]
                command += ["--stand-in"] if self._setting.stand_in else []
                if socket is not None:
                    priority = "latency" if role == "requests" else "best-effort"
                    library = [sys.executable, "-m", "dovetail.isolation.interception"]
                    kept = ["--kept", str(socket.with_name("kept"))]
                    command = [*library, *kept, str(socket), priority, *command]
                client = Client(command, environment)
                last.callback(client.end)
                return client

            yield Pair(self._setting, start, rounds_a_us, pytorch, socket)

    def close(self) -> None:
        """End MPS."""
        if not self._setting.stand_in:
            self._manager.close()

    def environment(self, way: Way) -> dict[str, str]:
        """Return the environment of a process that shares so; MPS is started if it needs it."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(_MPS)}
        if self._setting.stand_in:
            return own
        if way.mps:
            if lack := self._manager.why_not():
                raise ApartError(lack)
            return own | self._manager.environment(self._uuid, self._uid, way.share, None)
        return own | self._manager.without_mps(self._uuid)


@contextmanager
def _scheduler(socket: Path, unproven: bool) -> Iterator[None]:
    """Run a scheduler of the project at a socket."""
    command = [sys.executable, "-m", "dovetail.isolation.server", str(socket)]
    command += ["--kept", str(socket.with_name("kept")), "--idle-s", str(_IDLE_S)]
    command += ["--unproven"] if unproven else []
    process = subprocess.Popen(command)
    try:
        until_s = time.monotonic() + _LISTENS_S
        while not socket.exists():
            if process.poll() is not None or time.monotonic() > until_s:
                raise ApartError("the scheduler did not start")
            time.sleep(0.02)
        yield
    finally:
        process.kill()
        process.wait()


def _rounds_a_us(setting: Setting) -> Iterator[float]:
    cuda = setting.cuda()
    yield programs(cuda, setting.stand_in).rounds_a_us(Stream(cuda))


def _uuid() -> str:
    """Return the GPU that processes here see first."""
    from dovetail.executor.gpus.nvml import Nvml

    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
    if visible.startswith("GPU-"):
        return visible
    with Nvml() as nvml:
        return nvml.gpus()[int(visible or 0)].uuid
