"""The bench of a check: daemons, clients and what they say; nothing outlives it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, Self, TypeVar

from dovetail.executor.live.first_contact.records import Command, Line
from dovetail.executor.live.mps import processes
from dovetail.executor.live.mps.client import MEMORY, client_environment
from dovetail.executor.live.mps.control import PROGRAM, Control, ServerStatus, Spoken
from dovetail.executor.live.mps.directories import place_of
from dovetail.executor.live.mps.errors import MpsError, NoServerError
from dovetail.executor.live.mps.manager import MpsManager
from dovetail.executor.live.mps.recovery import Patience
from dovetail.executor.live.nvml import Gpu, Nvml
from dovetail.instances.errors import DovetailError

CLIENT: Final = Path(__file__).with_name("client.py")

READY_S: Final = 30.0
"""For a client's first word after its context: the first on a machine may load much."""

LEAVES_S: Final = 3.0
KILLED_S: Final = 10.0
"""A process that waits for a broken driver may not even die by SIGKILL."""

ANSWER_S: Final = 10.0
_ENDS: Final = Patience(answer_s=5.0, active_s=1.0, terminate_s=5.0, shutdown_s=5.0, quit_s=2.0)
_CUTTING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
_KEPT: Final = ("PATH", "LD_LIBRARY_PATH", "HOME", "LANG")

Event = Mapping[str, Any]
_Found = TypeVar("_Found")


class CouldNotTryError(DovetailError):
    """A check could not be made to its end, and why."""


class Notes:
    """The transcript of one check."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self.commands: list[Command] = []
        self.lines: list[Line] = []
        self.pids: dict[str, int] = {}

    def now(self) -> float:
        """Return the seconds since the check began."""
        return time.monotonic() - self._begun

    def heard(self, spoken: Spoken) -> None:
        """Keep a run of the control program."""
        told = spoken._asdict()
        at = max(0.0, self.now() - spoken.seconds)
        self.commands.append(Command(at_s=at, pids=dict(self.pids), **told))

    def line(self, source: str, text: str) -> None:
        """Keep a line that somebody said."""
        self.lines.append(Line(at_s=self.now(), source=source, text=text.rstrip("\n")))


class Client:
    """A process of ``client.py`` (or another program that speaks as it does)."""

    def __init__(
        self,
        name: str,
        mode: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        notes: Notes,
        uid: int | None = None,
    ) -> None:
        self.name, self.mode, self._notes = name, mode, notes
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            arguments,
            env={**{key: os.environ[key] for key in _KEPT if key in os.environ}, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd="/",
            user=uid,
            # Ctrl-C is for us alone: a busy client must not be killed by it.
            start_new_session=True,
        )
        self.pid = self.process.pid
        notes.pids[name] = self.pid
        self._events: list[Event] = []
        self._said = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def events(self, kind: str) -> list[Event]:
        """Return the events of a kind so far."""
        with self._said:
            return [event for event in self._events if event["event"] == kind]

    def wait(self, *kinds: str, within_s: float = READY_S) -> Event | None:
        """Wait for the first event of these kinds; None where none came, or none will."""
        end = time.monotonic() + within_s
        with self._said:
            while True:
                for event in self._events:
                    if event["event"] in kinds:
                        return event
                left = end - time.monotonic()
                if self._ended or left <= 0:
                    return None
                self._said.wait(left)

    def ready(self) -> Event:
        """Wait until it holds a context.

        Raises
        ------
        CouldNotTryError
            It was told an error, or nothing.
        """
        event = self.wait("ready", "error")
        if event is None:
            raise CouldNotTryError(f"{self.name} did not come to a context in {READY_S:.0f} s")
        if event["event"] == "error":
            raise CouldNotTryError(f"{self.name}: {error_told(event)}")
        return event

    def error(self, within_s: float) -> Event | None:
        """Return the error it was told, None where there was none in time."""
        return self.wait("error", within_s=within_s)

    def order(self) -> None:
        """Tell it to go on."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.write("go\n")
            self.process.stdin.flush()

    def leave(self, within_s: float = LEAVES_S) -> bool:
        """Tell it to quit, and return whether it did."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(within_s)
        return self.process.returncode is not None

    def leave_later(self, seconds: float) -> None:
        """Tell it to quit in some seconds."""
        timer = threading.Timer(seconds, self.leave)
        timer.daemon = True
        timer.start()

    def send(self, sent: signal.Signals) -> None:
        """Send it a signal, and note that."""
        self._notes.line("signal", f"{sent.name} to {self.name} ({self.pid})")
        self.process.send_signal(sent)

    def alive(self) -> bool:
        """Whether the process still lives."""
        return self.process.poll() is None

    def end(self) -> None:
        """Make sure that it is gone, or note that it does not die."""
        if self.alive():
            self.process.kill()
        try:
            self.process.wait(KILLED_S)
        except subprocess.TimeoutExpired:
            self._notes.line("signal", f"{self.name} ({self.pid}) does not die")
            return
        self._reader.join(1.0)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with suppress(ValueError):
            for line in self.process.stdout:
                self._notes.line(f"{self.name} {self.pid}", line)
                event = _event(line)
                if event is not None:
                    with self._said:
                        self._events.append(event)
                        self._said.notify_all()
        with self._said:
            self._ended = True
            self._said.notify_all()


class Daemon:
    """A control daemon of a check, in a directory of its own."""

    def __init__(self, bench: Bench, patience: Patience) -> None:
        self._bench, self._notes = bench, bench.notes
        program = bench.program
        if program is None:
            raise CouldNotTryError(f"{PROGRAM} is not installed")
        base = Path(tempfile.mkdtemp(prefix="dt", dir="/tmp"))
        self.base = base
        self.manager = MpsManager(base, program=program, patience=patience, heard=self._notes.heard)
        place = place_of(base, bench.gpu.uuid, os.geteuid())
        self.control = Control(
            place, bench.gpu.uuid, os.geteuid(), program, ANSWER_S, self._notes.heard
        )
        self._read: dict[str, int] = {}

    def start(self) -> float:
        """Start it and return the seconds that took."""
        begun = time.monotonic()
        self.manager.environment(self._bench.gpu.uuid, os.geteuid(), None, None, latency=False)
        return time.monotonic() - begun

    def client(
        self,
        mode: str,
        *options: str,
        share: int | None = None,
        memory: str | None = None,
        latency: bool = False,
        name: str = "",
        within: Mapping[str, str] | None = None,
    ) -> Client:
        """Start a client; ``memory`` is the limit as the variable has it."""
        environment = self.environment(share, latency)
        if memory is not None:
            environment[MEMORY] = memory
        return self._bench.start(name, [mode, *options], {**environment, **(within or {})})

    def environment(self, share: int | None = None, latency: bool = False) -> dict[str, str]:
        """Return what a client has in its environment."""
        uuid = self._bench.gpu.uuid
        return client_environment(self.control.directory, uuid, share, None, latency)

    def say(self, command: str, *options: str) -> Spoken:
        """Send a command, whatever comes of it."""
        return self.control.say(options, command, ANSWER_S)

    def server(self, within_s: float = 10.0) -> int:
        """Return the pid of its server, once there is one."""
        found = self._bench.until(self.control.servers, within_s, "no server was listed")
        self._notes.pids["server"] = found[0]
        return found[0]

    def status(self, server: int) -> str:
        """Return a server's state in words."""
        try:
            told = self.control.status(server)
        except NoServerError:
            return "gone"
        except MpsError as error:
            return f"error: {error}"
        return "not told" if told is None else told.value

    def healthy_again(self, server: int, within_s: float) -> float | None:
        """Wait until no server is in fault; return the seconds that took, None for too long."""
        begun = time.monotonic()
        while time.monotonic() - begun < within_s:
            if self.status(server) in (ServerStatus.ACTIVE.value, "gone"):
                return time.monotonic() - begun
            time.sleep(0.05)
        return None

    def listen(self) -> None:
        """Keep the new lines of its logs."""
        for name in ("control.log", "server.log"):
            with suppress(OSError):
                text = (self.control.directory / name).read_text(errors="replace")
                for line in text[self._read.get(name, 0) :].splitlines():
                    self._notes.line(name, line)
                self._read[name] = len(text)

    def end(self) -> None:
        """End it and its servers for certain."""
        left = [*self.control.server_processes()]
        if (daemon := self.control.daemon()) is not None:
            left.append(daemon)
            with suppress(MpsError):
                self.control.quit(_ENDS.quit_s)
        self.listen()
        for process in (*left, *self.control.server_processes()):
            processes.kill(process, 5.0)
        shutil.rmtree(self.base, ignore_errors=True)


class Bench:
    """What a check works with; a context manager that leaves nothing behind.

    Attributes
    ----------
    gpu : Gpu
        The GPU, free of others.
    nvml : Nvml
        A session.
    program : str or None
        Path of the control program; None: there is none, and no check that needs MPS can be made.
    python : str or None
        A Python with PyTorch, where one was named.
    notes : Notes
        The transcript.
    clients : list of Client
        Those started so far.
    """

    def __init__(self, gpu: Gpu, nvml: Nvml, program: str | None, python: str | None) -> None:
        self.gpu, self.nvml, self.program, self.python = gpu, nvml, program, python
        self.notes = Notes()
        self.clients: list[Client] = []
        self._daemons: list[Daemon] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with _undisturbed(), ExitStack() as last:
            for daemon in self._daemons:
                last.callback(daemon.end)
            for client in self.clients:
                last.callback(client.end)
            self._dismiss()

    def daemon(self, patience: Patience = _ENDS) -> Daemon:
        """Start a control daemon in a directory of its own."""
        found = self.unstarted(patience)
        with _undisturbed():
            found.start()
        return found

    def unstarted(self, patience: Patience = _ENDS) -> Daemon:
        """Return a control daemon that does not run yet."""
        found = Daemon(self, patience)
        self._daemons.append(found)
        return found

    def alone(self, mode: str, *options: str, name: str = "") -> Client:
        """Start a client that meets no daemon."""
        nowhere = MpsManager(Path(tempfile.gettempdir()) / "dt-none", program=PROGRAM)
        return self.start(name, [mode, *options], nowhere.without_mps(self.gpu.uuid))

    def start(
        self,
        name: str,
        words: Sequence[str],
        environment: Mapping[str, str],
        uid: int | None = None,
        program: Sequence[str] | None = None,
    ) -> Client:
        """Start a client with an environment."""
        called = name or ("client" if not self.clients else f"client {len(self.clients) + 1}")
        before = [sys.executable, "-I", "-S", str(CLIENT)] if program is None else program
        with _undisturbed():
            client = Client(called, words[0], [*before, *words], environment, self.notes, uid)
            self.clients.append(client)
        return client

    def until(self, look: Callable[[], _Found], within_s: float, why_not: str) -> _Found:
        """Look until there is something, and return it.

        Raises
        ------
        CouldNotTryError
            There was nothing in time.
        """
        end = time.monotonic() + within_s
        while not (found := look()):
            if time.monotonic() > end:
                raise CouldNotTryError(f"{why_not} within {within_s:.0f} s")
            time.sleep(0.02)
        return found

    def _dismiss(self) -> None:
        """Ask clients to leave, and end their work on the GPU before they are killed."""
        for client in self.clients:
            if client.alive():
                client.process.send_signal(signal.SIGCONT)
                assert client.process.stdin is not None
                with suppress(OSError):
                    client.process.stdin.close()
        end = time.monotonic() + LEAVES_S
        for client in self.clients:
            client.leave(max(0.0, end - time.monotonic()))
        for client in self.clients:
            for daemon in self._daemons:
                if client.alive():
                    with suppress(MpsError):
                        daemon.manager.terminate(self.gpu.uuid, client.pid)


def rates(clients: Sequence[Client], seconds: float) -> list[float]:
    """Return how many kernels a second each busy client finishes from now on."""
    begun = time.monotonic()
    time.sleep(seconds)
    return [_rate(client, begun) for client in clients]


def _rate(client: Client, since: float) -> float:
    steps = [step for step in client.events("steps") if step["at"] >= since]
    if len(steps) < 2:
        return 0.0
    first, last = steps[0], steps[-1]
    return float((last["n"] - first["n"]) / (last["at"] - first["at"]))


def error_told(event: Event | None) -> str:
    """Return an error of CUDA in words."""
    return (
        "no error" if event is None else f"{event['name']} ({event['number']}) of {event['call']}"
    )


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise ``CouldNotTryError`` in here when the time is over; for the main thread."""

    def over(_: int, __: FrameType | None) -> NoReturn:
        raise CouldNotTryError(f"it took longer than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let neither Ctrl-C nor a limit cut short what would leave processes; they count after it."""
    if threading.current_thread() is not threading.main_thread():
        # Handlers of signals never run here.
        yield
        return
    came: list[int] = []

    def later(number: int, _: FrameType | None) -> None:
        came.append(number)

    before = {one: signal.signal(one, later) for one in _CUTTING}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        if came:
            signal.raise_signal(came[0])


def _event(line: str) -> Event | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "event" in found else None
