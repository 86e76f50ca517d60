"""The prober of a service: an open-loop client that sees what a user of the service would see.

Probes are due at fixed times, whether or not earlier ones were answered, and a latency counts from
the time at which its probe was due. A client that waits for each answer would send nothing while
the service stands still, and so hide it (coordinated omission).

The prober is forked from the rank's process when that is to run the program: it has the rank's
user, folder, cgroups and cores. It becomes a child of the shim, so the program does not see it, and
ends with the program's process group. It alone writes the rank's page of progress: an iteration is
a probe that was answered, so the page also says when the last one was. From the first answer on, a
probe that fails or is not answered in `LONGEST_S` counts as a latency of that length.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import math
import os
import re
import selectors
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn, Protocol
from urllib.parse import urlsplit

from . import page
from .kernel import PR_SET_NAME, PR_SET_PDEATHSIG, one_line, prctl

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

LONGEST_S = 10.0
"""Seconds after which a probe has failed."""

MOST_BYTES = 2**20
"""Most bytes of an answer that are read."""

_CHUNK = 65536
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,18})[ \t]*(?:\r|$)", re.IGNORECASE)
_WRITE_S = 0.1
_MOST_LINES = 100
_GOLDEN = (math.sqrt(5) - 1) / 2
_MOST_NEW = 100_000


def begin(spec: dict[str, Any], shim: int, line: socket.socket) -> None:
    """Fork the prober of this process's rank; ``spec`` is that of the rank."""
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return
    if os.fork():
        os._exit(0)
    _probe(spec, shim, line)


def _probe(spec: dict[str, Any], shim: int, line: socket.socket) -> NoReturn:
    try:
        # The shim takes its closing for the start of the program.
        line.close()
        while os.getppid() != shim:
            time.sleep(0.001)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != shim:
            os._exit(1)
        prctl(PR_SET_NAME, b"dovetail-probe")
        os.set_inheritable(page.NUMBER, False)
        asked = spec["probe"]
        sys.path.insert(0, asked["modules"])
        format = importlib.import_module("dovetail_progress")
        report = Report(format, page.NUMBER, asked["histogram"])
        Prober(client_of(asked["how"], spec["env"]), asked["per_s"], report).run()
    except BaseException as error:
        _say(f"the probe ended: {one_line(error)}")
    os._exit(1)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"[dovetail: {text}]\n".encode(errors="replace"))


class ProbeUnderWay(Protocol):
    """A probe under way."""

    @property
    def writes(self) -> bool:
        """Whether it waits until it can write, not read."""

    def fileno(self) -> int:
        """Return the descriptor that tells when ``advance`` may go on."""

    def advance(self) -> tuple[str, bytes] | None:
        """Go on without waiting; return why it failed, empty if not, and the answer, if over."""

    def close(self) -> None:
        """Free it, and end it if it is not over."""


def client_of(how: str, env: dict[str, str]) -> Callable[[], ProbeUnderWay]:
    """Return what begins a probe: an address is asked, anything else is run as a command."""
    if not how.startswith("http://"):
        return lambda: CommandProbe(how, env)
    parts = urlsplit(how)
    host, port = parts.hostname or "", parts.port or 80
    target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    # Of version 1.0, so that the answer ends with the connection and has no chunks.
    lines = (f"GET {target} HTTP/1.0", f"Host: {parts.netloc}", "Connection: close", "", "")
    request = "\r\n".join(lines).encode()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    address = ("127.0.0.1" if host == "localhost" else host, port)
    return lambda: HttpProbe(family, address, request)


class HttpProbe:
    """A request to an address, on a connection of its own."""

    def __init__(self, family: int, address: tuple[str, int], request: bytes) -> None:
        self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._rest, self._answer = request, bytearray()
        self._refused = self._socket.connect_ex(address)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    @property
    def writes(self) -> bool:
        """Whether it has something to send."""
        return bool(self._rest)

    def advance(self) -> tuple[str, bytes] | None:
        """Send and receive what can be; see `ProbeUnderWay`."""
        if self._refused not in (0, errno.EINPROGRESS):
            return os.strerror(self._refused), b""
        try:
            while self._rest:
                self._rest = self._rest[self._socket.send(self._rest) :]
            while data := self._socket.recv(_CHUNK):
                self._answer += data
                if len(self._answer) > MOST_BYTES:
                    return f"the answer has over {MOST_BYTES} bytes", b""
        except BlockingIOError:
            return self._answered(closed=False)
        except OSError as error:
            return one_line(error), b""
        return self._answered(closed=True)

    def _answered(self, closed: bool) -> tuple[str, bytes] | None:
        """Return what the answer says once it is whole; without a length, it ends when closed."""
        head, end, body = bytes(self._answer).partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        whole = bool(end) and (closed if length is None else len(body) >= int(length[1]))
        if not whole and not closed:
            return None
        status = re.match(rb"HTTP/1\.\d (\d{3})\b", head)
        if status is None:
            return "the answer is not HTTP", b""
        if not status[1].startswith(b"2"):
            return f"the answer has status {status[1].decode()}", b""
        return ("", body) if whole else ("the answer ended early", b"")

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class CommandProbe:
    """A run of a command, which answers by ending with status 0."""

    _QUIET = (
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    )

    writes = False

    def __init__(self, command: str, env: dict[str, str]) -> None:
        words = ["sh", "-c", command]
        self._pid = os.posix_spawn("/bin/sh", words, env, file_actions=self._QUIET, setpgroup=0)
        self._ended = os.pidfd_open(self._pid)
        self._over = False

    def fileno(self) -> int:
        """Return a descriptor that is readable once the command has ended."""
        return self._ended

    def advance(self) -> tuple[str, bytes] | None:
        """Look whether it has ended; see `ProbeUnderWay`."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if not pid:
            return None
        self._over = True
        code = os.waitstatus_to_exitcode(status)
        return (f"the command ended with status {code}" if code else ""), b""

    def close(self) -> None:
        """End its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        if not self._over:
            os.waitpid(self._pid, 0)
        os.close(self._ended)


class Prober:
    """Begins a probe at each due time, and reports how each ended.

    Parameters
    ----------
    begin : callable
        Begins a probe.
    per_s : float
        Probes per second.
    report : Report
        Told of each end.
    """

    def __init__(self, begin: Callable[[], ProbeUnderWay], per_s: float, report: Report) -> None:
        self._begin, self._every_s, self._report = begin, 1 / per_s, report
        self._selector = selectors.DefaultSelector()
        self._due: dict[ProbeUnderWay, float] = {}
        self._next_s = time.monotonic()

    def run(self) -> NoReturn:
        """Probe until the process ends."""
        while True:
            self.turn()

    def turn(self) -> None:
        """Begin the probes that are due, and wait for the next thing that happens."""
        now = time.monotonic()
        # After such a pause all processes of the job were stopped, and nothing was to be seen.
        if now - self._next_s > LONGEST_S:
            self._next_s = now
        while self._next_s <= now:
            self._send(self._next_s)
            self._next_s += self._every_s
        oldest_s = min(self._due.values(), default=math.inf) + LONGEST_S
        wait_s = min(self._next_s, oldest_s, now + LONGEST_S) - time.monotonic()
        for key, _ in self._selector.select(max(0.0, wait_s)):
            self._advance(key.data)
        now = time.monotonic()
        for probe in [one for one, due_s in self._due.items() if now - due_s >= LONGEST_S]:
            self._end(probe, f"no answer in {LONGEST_S:g} s", b"")
        self._report.write()

    def _send(self, due_s: float) -> None:
        try:
            probe = self._begin()
        except OSError as error:
            self._report.note(one_line(error), b"", due_s)
            return
        self._due[probe] = due_s
        self._selector.register(probe.fileno(), selectors.EVENT_READ, probe)
        self._advance(probe)

    def _advance(self, probe: ProbeUnderWay) -> None:
        over = probe.advance()
        if over is not None:
            self._end(probe, *over)
        else:
            events = selectors.EVENT_WRITE if probe.writes else selectors.EVENT_READ
            self._selector.modify(probe.fileno(), events, probe)

    def _end(self, probe: ProbeUnderWay, failed: str, answer: bytes) -> None:
        due_s = self._due.pop(probe)
        self._selector.unregister(probe.fileno())
        probe.close()
        self._report.note(failed, answer, due_s)


class Report:
    """What the probes have shown, and the page that says it.

    Parameters
    ----------
    format : module
        ``dovetail_progress``, whose format the page has.
    file : int
        The descriptor of the page.
    histogram : str, optional
        The Prometheus histogram in the answers from which latencies are taken.
    """

    def __init__(self, format: ModuleType, file: int, histogram: str | None = None) -> None:
        self._format, self._file = format, file
        self._histogram = None if histogram is None else ServersHistogram(histogram)
        self.counts: list[int] = [0] * format.BUCKETS
        self.answered, self._answered_s = 0, 0.0
        self._written_s, self._news = -math.inf, False
        self._said, self._lines = "", 0

    def note(self, failed: str, answer: bytes, due_s: float) -> None:
        """Note the end of a probe that was due at a time of the monotonic clock."""
        latencies = [min(time.monotonic() - due_s, LONGEST_S)]
        if self._histogram is not None:
            latencies = []
            try:
                latencies = [] if failed else self._histogram.read(answer)
            except (ValueError, OverflowError) as error:
                failed = one_line(error)
        elif failed:
            latencies = [LONGEST_S]
        self._tell(failed)
        if failed and not self.answered:
            return
        for latency_s in latencies:
            self.counts[self._format.bucket_of(latency_s)] += 1
        self._news = True
        if not failed:
            self.answered += 1
            self._answered_s = time.clock_gettime(time.CLOCK_BOOTTIME)

    def _tell(self, failed: str) -> None:
        """Say in the rank's output what the probes begin to show."""
        if not self._lines or (failed != self._said and self._lines < _MOST_LINES):
            self._said, self._lines = failed, self._lines + 1
            _say(f"probe: {failed or 'answered'}")

    def write(self) -> None:
        """Write the page if there is news, and not too often."""
        now = time.monotonic()
        if self._news and now - self._written_s >= _WRITE_S:
            self._written_s, self._news = now, False
            data = self._format.encode((float(self.answered), self._answered_s, None))
            os.pwrite(self._file, data + self._format.encode_latencies(self.counts), 0)


class ServersHistogram:
    """A histogram of seconds that a server shows in Prometheus's text format, over all its labels.

    A latency is somewhere between the bounds of its bucket; like Prometheus, this takes them to be
    spread evenly there. Those above the largest bound are taken to be up to twice that.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._line = re.compile(
            rf'^{name}_bucket\{{(?:[^\n]*,)?le="([^"\n]{{1,40}})"[^\n]*\}} +([^ \n]{{1,40}})',
            re.MULTILINE,
        )
        self._before: dict[float, int] | None = None
        self._met: dict[float, int] = {}

    def read(self, answer: bytes) -> list[float]:
        """Return the latencies that are new since the last answer; none in the first.

        Raises
        ------
        ValueError
            If the answer has no such histogram.
        """
        buckets = self._buckets(answer.decode(errors="replace"))
        before, self._before = self._before, {upper: count for _, upper, count in buckets}
        found: list[float] = []
        for lower, upper, count in buckets if before is not None else ():
            earlier = before.get(upper, 0) if before is not None else 0
            # A count that fell belongs to a server that has started again.
            new = count - earlier if count >= earlier else count
            for _ in range(min(new, _MOST_NEW)):
                self._met[upper] = met = self._met.get(upper, 0) + 1
                found.append(lower + (upper - lower) * (met * _GOLDEN % 1))
        return found

    def _buckets(self, text: str) -> list[tuple[float, float, int]]:
        """Return the bounds of each bucket and its own count."""
        up_to: dict[float, float] = {}
        for bound, count in self._line.findall(text):
            up_to[float(bound)] = up_to.get(float(bound), 0.0) + float(count)
        if not up_to:
            raise ValueError(f"the answer has no histogram {self._name}")
        found, lower, below = [], 0.0, 0
        for bound in sorted(up_to):
            upper = bound if math.isfinite(bound) else 2 * lower
            found.append((lower, upper, max(0, int(up_to[bound]) - below)))
            lower, below = bound, int(up_to[bound])
        return found
