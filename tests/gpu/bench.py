"""The tools of a test: daemons and clients of its own, and a transcript of all their output."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from dovetail.executor.mps import processes
from dovetail.executor.mps.control import Control, HealthState, MpsError, NoServerError
from dovetail.executor.mps.manager import (
    MpsManager,
    client_environment,
    make_base,
    make_private,
    pipe_directory,
)
from dovetail.executor.mps.processes import PROGRAM
from dovetail.executor.mps.recovery import RecoveryTimeouts

CLIENT = Path(__file__).with_name("client.py")

READY_S = 30.0
"""Timeout of a client's ``ready`` event; the first client on a machine may load much."""

LEAVES_S = 3.0
KILLED_S = 10.0
"""Timeout after SIGKILL: a process that waits for a broken driver may not die."""

ANSWER_S = 10.0
GOES_S = 2.0
"""Timeout of the next completed kernels of a client that goes on."""

WINDOW_S, SETTLE_S = 4.0, 0.3
"""Length of a rate measurement, and of the time before it."""

LATE_S = 30.0
"""Timeout of a server's recovery from a fault."""

COUNTED_S = 5.0
"""Length of the observation of the energy counter."""

NOTICES_S = 6.0
"""Timeout for errors, states and Xids to appear."""

QUICK = RecoveryTimeouts(answer_s=5.0, active_s=8.0, terminate_s=10.0, quit_s=5.0)
"""Shorter than the service's, so that a step that does not help ends soon."""

_ENDS = RecoveryTimeouts(answer_s=5.0, active_s=1.0, terminate_s=5.0, quit_s=2.0)
_CUTTING = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
_KEPT = ("PATH", "LD_LIBRARY_PATH", "HOME", "LANG")


class Client:
    """A process of ``client.py``, or of another program with the same protocol."""

    def __init__(self, bench, name, command, environment, uid=None):
        self.name, self._bench = name, bench
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command,
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
        self.pid = bench.pids[name] = self.process.pid
        self._events = []
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def events(self, *kinds):
        return [event for event in list(self._events) if event["event"] in kinds]

    def wait(self, *kinds, within_s=READY_S):
        """Wait for the first event of these kinds; None if none comes."""
        awaited(lambda: self.events(*kinds) or not self._reader.is_alive(), within_s)
        return next(iter(self.events(*kinds)), None)

    def wait_or_skip(self, *kinds, within_s=READY_S):
        """Wait for an event; skip the test after an error or a timeout."""
        event = self.wait(*kinds, "error", within_s=within_s)
        if event is None:
            pytest.skip(f"{self.name}: no {' or '.join(kinds)} within {within_s:.0f} s")
        if event["event"] == "error":
            pytest.skip(f"{self.name}: {error_text(event)}")
        return event

    def ready(self):
        """Wait until it has a context, and return its ``ready`` event."""
        return self.wait_or_skip("ready")

    def error(self, within_s=0.0):
        return self.wait("error", within_s=within_s)

    def order(self):
        """Send it the order to proceed."""
        with suppress(OSError):
            self.process.stdin.write("go\n")
            self.process.stdin.flush()

    def leave(self, within_s=LEAVES_S):
        """Ask it to quit, and return whether it did."""
        with suppress(OSError):
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(within_s)
        return not self.alive()

    def send(self, sent):
        self._bench.line("signal", f"{sent.name} to {self.name} ({self.pid})")
        self.process.send_signal(sent)

    def alive(self):
        return self.process.poll() is None

    def goes_on(self):
        """Return whether a busy client still completes kernels."""
        soon = time.monotonic() + 0.2
        return awaited(lambda: any(step["at"] > soon for step in self.events("steps")), GOES_S)

    def end(self):
        """Kill it, or note that it does not die."""
        self.process.kill()
        try:
            self.process.wait(KILLED_S)
        except subprocess.TimeoutExpired:
            self._bench.line("signal", f"{self.name} ({self.pid}) does not die")
            return
        self._reader.join(1.0)
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                stream.close()

    def _listen(self):
        with suppress(ValueError):
            for line in self.process.stdout:
                self._bench.line(f"{self.name} {self.pid}", line)
                # Output of the interpreter or a library is no event.
                if line.startswith('{"event"'):
                    self._events.append(json.loads(line))


class Daemon:
    """A control daemon in a directory of its own, not yet running."""

    def __init__(self, bench, patience, static=False):
        self._bench, self._uuid, uid = bench, bench.gpu.uuid, os.geteuid()
        self.base = Path(tempfile.mkdtemp(prefix="dt", dir="/tmp"))
        modes = {"patience": patience, "static": static}
        self.manager = MpsManager(self.base, program=bench.program, **modes)
        place = pipe_directory(self.base, self._uuid, uid)
        make_base(self.base)
        make_private(place, uid)
        self.control = Control(place, self._uuid, uid, bench.program, ANSWER_S, static)

    def start(self):
        """Start it and return the seconds that took."""
        begun = time.monotonic()
        self.manager.environment(self._uuid, os.geteuid(), None, None)
        return time.monotonic() - begun

    def client(self, mode, *options, name="", share=None, latency=False, more=None):
        """Start a client, with ``more`` in its environment."""
        environment = self.environment(share, latency) | (more or {})
        return self._bench.start(name, [mode, *options], environment)

    def environment(self, share=None, latency=False):
        return client_environment(self.control.directory, self._uuid, share, None, latency)

    def say(self, command, *options, within_s=None):
        """Send a command, and return the reply whatever it is."""
        return self.control.say(options, command, ANSWER_S if within_s is None else within_s)

    def server(self):
        """Wait for its server, and return the pid."""
        found = awaited(self.control.servers, ANSWER_S) or pytest.skip("no server was listed")
        self._bench.pids["server"] = found[0]
        return found[0]

    def status(self, server):
        """Return a server's state in words."""
        try:
            state = self.control.status(server)
        except NoServerError:
            return "gone"
        except MpsError as error:
            return f"error: {error}"
        return "unknown" if state is HealthState.UNREPORTED else state.value

    def is_healthy_again(self, server):
        """Wait until the server is active again or has ended."""
        return awaited(lambda: self.status(server) in ("active", "gone"), LATE_S)

    def newcomer(self, name="newcomer", within_s=READY_S):
        """Start a client that reports, and return its first event."""
        return self.client("report", name=name).wait("ready", "error", within_s=within_s)

    def end(self):
        """End it and its servers, by force if need be."""
        left = [*self.control.server_processes()]
        if (daemon := self.control.daemon()) is not None:
            left.append(daemon)
            with suppress(MpsError):
                self.control.quit(_ENDS.quit_s)
        for name in ("control.log", "server.log"):
            with suppress(OSError):
                text = (self.control.directory / name).read_text(errors="replace")
                for line in text.splitlines():
                    self._bench.line(name, line)
        for process in (*left, *self.control.server_processes()):
            processes.kill(process, 5.0)
        shutil.rmtree(self.base, ignore_errors=True)


class Bench:
    """Daemons, clients and the transcript of one test.

    Attributes
    ----------
    gpu, nvml : Gpu, Nvml
        The GPU, free of others, and a session.
    program : str or None
        Path of the control program; None: there is none, and nothing that needs MPS can be tried.
    seen, values : str, dict
        Findings of the test, in words (long values shortened) and as data.
    commands, lines : list of dict
        Every run of the control program, and lines of logs, clients, NVML and the test.
    pids : dict
        Present pids by role: ``server``, ``client``, ``client 2``.
    """

    def __init__(self, gpu, nvml, program):
        self.gpu, self.nvml, self.program = gpu, nvml, program
        self.seen, self.values = "", {}
        self.commands, self.lines, self.pids = [], [], {}
        self.clients, self._daemons = [], []
        self._begun = time.monotonic()

    def now(self):
        """Return the seconds since the test began."""
        return time.monotonic() - self._begun

    def saw(self, **values):
        """Record findings before they are judged; their names contain the unit."""
        texts = (f"{name.replace('_', ' ')}: {shown(value)}" for name, value in values.items())
        self.seen, self.values = "; ".join(texts), values

    def heard(self, spoken):
        """Record a run of the control program."""
        at_s = max(0.0, self.now() - spoken.seconds)
        self.commands.append({"at_s": at_s, "pids": dict(self.pids), **spoken._asdict()})

    def line(self, source, text):
        """Record a line of output."""
        self.lines.append({"at_s": self.now(), "source": source, "text": text.rstrip("\n")})

    def xids(self):
        """Return the critical errors since the last call."""
        found = [xid.code for xid in self.nvml.xids()]
        for code in found:
            self.line("nvml", f"Xid {code}")
        return found

    def unstarted(self, patience=_ENDS, static=False):
        """Return a control daemon that does not run yet."""
        if self.program is None:
            pytest.skip(f"{PROGRAM} is not installed")
        self._daemons.append(Daemon(self, patience, static))
        return self._daemons[-1]

    def daemon(self, patience=_ENDS, static=False):
        """Start a control daemon in a directory of its own."""
        found = self.unstarted(patience, static)
        with _undisturbed():
            found.start()
        return found

    def alone(self, mode, *options, name=""):
        """Start a client without MPS."""
        nowhere = MpsManager(Path(tempfile.gettempdir()) / "dt-none")
        return self.start(name, [mode, *options], nowhere.without_mps(self.gpu.uuid))

    def start(self, name, words, environment, uid=None, program=None):
        """Start a client with an environment."""
        called = name or ("client" if not self.clients else f"client {len(self.clients) + 1}")
        before = [sys.executable, "-I", "-S", str(CLIENT)] if program is None else program
        with _undisturbed():
            client = Client(self, called, [*before, *words], environment, uid)
            self.clients.append(client)
        return client

    def close(self):
        """End all daemons and clients."""
        with _undisturbed(), ExitStack() as last:
            for daemon in self._daemons:
                last.callback(daemon.end)
            for client in self.clients:
                last.callback(client.end)
            self._dismiss()

    def _dismiss(self):
        """Ask clients to leave, and end their work on the GPU before they are killed."""
        alive = [client for client in self.clients if client.alive()]
        for client in alive:
            client.process.send_signal(signal.SIGCONT)
            client.leave(0.0)
        end = time.monotonic() + LEAVES_S
        for client in alive:
            if not client.leave(max(0.0, end - time.monotonic())):
                for daemon in self._daemons:
                    with suppress(MpsError):
                        daemon.manager.terminate(self.gpu.uuid, client.pid)


def awaited(look, within_s):
    """Poll until the result is truthy or time is up, and return it."""
    end = time.monotonic() + within_s
    while not (found := look()) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def settled(*clients):
    """Wait until clients have contexts, and the busy ones complete kernels."""
    for client in clients:
        client.ready()
    for client in clients:
        if "busy" in client.process.args:
            client.wait("steps", "error")


def together(*clients):
    """Return the kernels per second of busy clients together, and end them."""
    for client in clients:
        client.ready()
        client.wait_or_skip("steps")
    time.sleep(SETTLE_S)
    begun = time.monotonic()
    time.sleep(WINDOW_S)
    found = []
    for client in clients:
        steps = [step for step in client.events("steps") if step["at"] >= begun]
        if len(steps) < 2:
            pytest.skip(f"{client.name} stood still")
        first, last = steps[0], steps[-1]
        found.append((last["n"] - first["n"]) / (last["at"] - first["at"]))
    for client in clients:
        client.leave()
    return found


def alone(client):
    """Return the rate of a client alone, and the work options that make others comparable."""
    begun = client.wait_or_skip("begun")
    # Under a cap the client sees fewer SMs, and would queue fewer blocks of its own accord.
    return together(client)[0], (f"work={begun['work']}", f"blocks={begun['blocks']}")


def shown(value):
    """Return a value in words, shortened if it is long."""
    if isinstance(value, dict):
        value = [f"{name} {shown(one)}" for name, one in value.items()]
    if isinstance(value, list | tuple):
        value = ", ".join(map(shown, value)) or "none"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return textwrap.shorten(text, 160, placeholder=" ...")


def error_text(event):
    """Return an error of CUDA in words."""
    if event is None:
        return "no error"
    return f"{event['name']} ({event['number']}) of {event['call']}"


def outcome(event):
    """Return what happened to a new client, in words."""
    if event is None:
        return "nothing was said"
    if event["event"] == "error":
        return error_text(event)
    return "is served" if event["mps"] else "runs WITHOUT MPS"


def said(spoken):
    """Return an answer of the control program on one line."""
    words = " / ".join(filter(None, (spoken.out + spoken.err).splitlines()))
    return f"{words or 'nothing'} (exit {spoken.exit})"


@contextmanager
def limited(seconds):
    """Skip the test if the block takes longer."""

    def over(*_):
        pytest.skip(f"it took longer than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _undisturbed():
    """Delay Ctrl-C and time limits until the end of the block, so that no process is left."""
    if threading.current_thread() is not threading.main_thread():
        # Handlers of signals never run here.
        yield
        return
    came = []
    before = {one: signal.signal(one, lambda number, _: came.append(number)) for one in _CUTTING}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        if came:
            signal.raise_signal(came[0])
