"""The scheduler of a GPU, as a process to which the jobs' processes connect.

A process with the interception library joins through a socket and receives memory, shared by all
processes, with an area and a gate of its own. Fast operations use that memory without this process:
latency-critical processes announce their launches there, and close the gates of best-effort
processes, which these open again. This process prepares modules, chooses
forms from the measurements of the processes, reclaims areas of ended processes, and ignores
announcements that never end.

``interception/process.h`` defines the layout and the messages; all numbers have the machine's byte
order.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import itertools
import json
import logging
import math
import mmap
import os
import socket
import stat
import struct
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, get_args

from dovetail.isolation import times
from dovetail.isolation.assemble import AssemblerError, find_ptxas
from dovetail.isolation.copies import pointers, why_not_on_copies
from dovetail.isolation.images import ImageError, ptx_of
from dovetail.isolation.interception import assembler
from dovetail.isolation.kernels import LaunchShape, PreparedKernel, prepare
from dovetail.isolation.proven import Form as KernelForm
from dovetail.isolation.proven import why_unproven
from dovetail.isolation.ptx import Function, Module, PtxError, parse
from dovetail.isolation.refusals import shared_variable
from dovetail.isolation.scheduler import (
    BOUND_S,
    SAMPLES,
    FormChoice,
    Kernel,
    Kind,
    LaunchForm,
    Size,
)

_logger = logging.getLogger(__name__)

VERSION: Final = 3
COUNTS: Final = (
    "isolated",
    "whole",
    "no PTX",
    "refused",
    "launch attributes",
    "cooperative",
    "graph",
    "captured",
    "arguments in a buffer",
    "second context",
    "late",
    "preempted",
    "announced",
    "not announced",
    "left alone",
)
"""The categories in which launches are counted, in the order of an area.

``isolated`` are launches in slices or with workers; ``whole`` are unchanged launches that are quick
enough, or that were made while no latency-critical process had joined. The next eight cannot be
cut, but wait at the gate whole, except for ``captured`` launches, which are recorded for a graph,
and those in a ``second context``: ``refused`` are kernels that cannot be split up, whose kind is
not proven, that use a variable of their module (which would exist twice), that failed on copies of
their memory or could not be tried there, or were late three times; ``graph`` is a whole graph.
``late`` counts forms that could not be tried yet, as their stream did not come to an end,
``preempted`` how often workers were stopped. ``announced`` and ``not announced`` count launches of
latency-critical processes, the latter while busy streams use all lanes. ``left alone`` are those of
a process that cannot be isolated, or no longer.
"""

NO_LAUNCHES: Final = ("captured", "late", "preempted")
"""The categories that count something other than launches."""

_HELLO, _MODULE, _FORM, _MEASURED, _STATUS, _FAILED = range(1, 7)
_OUTCOMES: Final = {
    1: "it has memory that cannot be copied to check it",
    2: "it has too much memory to copy to check it",
    3: "its results vary from run to run on copies of its memory",
    4: "it computed something else than the whole kernel on copies of its memory",
    5: "it did not run on copies of its memory",
}
"""Why a form is not used after its check, as numbered in ``interception/copies.h``."""
_HEADER: Final = struct.Struct("=II")
_ANSWER: Final = struct.Struct("=IIII")
"""A form: kind, size, chunk, whether it is final."""
_MEASUREMENT: Final = struct.Struct("=IIIIIIId")
_KINDS: Final = get_args(Kind)
_FORMS: Final[tuple[KernelForm, ...]] = ("slices", "workers")

_AREAS, _LANES = 64, 60
# In words: the header (latency-critical and best-effort areas as bits), the areas, their gates.
_PAGE_WORDS, _AREA_WORDS, _LANE_WORDS = 16384, 512, 4
_CRITICAL, _BEST_EFFORT = 0, 2
_USED, _FIRST_LANE = 15, 16
_SIZE_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_F_SEAL_FUTURE_WRITE: Final = 16
"""No writable mappings after those that exist; since Linux 5.1."""
_SWEEP_S: Final = 1.0
_STALE_SWEEPS: Final = 10
_MODULES_KEPT: Final = 256
_ANSWER_S: Final = 10.0
_MOST_BYTES: Final = 1 << 17
_MOST_ESCAPES: Final = 64
_LONGEST_TEXT: Final = 200


@dataclass
class _PreparedModule:
    """A module with the forms of its kernels, in the order of their numbers.

    ``identities`` identify their code, with that of their forms; ``escapes`` has the reasons why
    kernels, or the whole module, lack forms.
    """

    key: str
    text: str
    kernels: tuple[PreparedKernel, ...] = ()
    parameters: tuple[int, ...] = ()
    pointers: tuple[int, ...] = ()
    identities: tuple[str, ...] = ()
    escapes: dict[str, str] = field(default_factory=dict)


@dataclass
class _ClientProcess:
    """A process: its area, its modules by number, and forms of kernels that failed in it.

    ``sizes`` has what was asked for, by the numbers of module and kernel, blocks and threads.
    """

    pid: int
    critical: bool
    area: int
    sms: int = 0
    sizes: dict[tuple[int, ...], Size] = field(default_factory=dict)
    modules: list[_PreparedModule] = field(default_factory=list)
    failed: dict[tuple[int, int, KernelForm], str] = field(default_factory=dict)

    def escapes(self) -> dict[str, str]:
        """Return why kernels of its modules, or these, lack forms, or some failed in it."""
        found = {name: why for made in self.modules for name, why in [*made.escapes.items()]}
        for (module, number, form), why in [*self.failed.items()]:
            found[f"{self.modules[module].kernels[number].name}: {form}"] = why
        return found


class Memory:
    """The memory shared by the processes, as words.

    Attributes
    ----------
    files : list of int
        The file of the header, which says whose areas are in use and which only this process may
        write, and that of the areas and gates.
    header : memoryview
        The words of the header.
    """

    def __init__(self) -> None:
        (header, self.header), (pages, self._pages) = _shared(1), _shared(2 * _AREAS)
        # An older kernel lacks this seal; processes map the header without the right to write.
        with contextlib.suppress(OSError):
            fcntl.fcntl(header, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE)
        self.files: Final = [header, pages]
        for file in self.files:
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
        self._free = deque(range(_AREAS))
        self._seen: dict[int, tuple[tuple[int, int], int]] = {}

    def close(self) -> None:
        """Close the files; processes keep what they have mapped."""
        for file in self.files:
            os.close(file)

    def area(self, number: int) -> memoryview:
        """Return the words of an area."""
        return self._pages[number * _PAGE_WORDS :][:_AREA_WORDS]

    def gate(self, number: int) -> memoryview:
        """Return the words of the gate of an area."""
        return self._pages[(_AREAS + number) * _PAGE_WORDS :][:_AREA_WORDS]

    def take(self, critical: bool) -> int | None:
        """Return the least recently used free area, or None if there is none."""
        if not self._free:
            return None
        area = self._free.popleft()
        for words in (self.area(area), self.gate(area)):
            words[:] = memoryview(bytes(4 * _AREA_WORDS)).cast("I")
        self._mark(area, _CRITICAL if critical else _BEST_EFFORT, True)
        return area

    def give_back(self, area: int) -> Counter[str]:
        """Reclaim an area, and return the counts of its launches."""
        self._mark(area, _CRITICAL, False)
        self._mark(area, _BEST_EFFORT, False)
        self._free.append(area)
        return self.counts(area)

    def counts(self, area: int) -> Counter[str]:
        """Return the number of launches of an area in each category."""
        return Counter(dict(zip(COUNTS, self.area(area)[: len(COUNTS)], strict=True)))

    def ignore_stale(self) -> None:
        """Ignore announcements that have not ended for many sweeps, as after a kernel's fault."""
        for number in range(_AREAS):
            if not self.header[_CRITICAL + number // 32] >> number % 32 & 1:
                continue
            words = self.area(number)
            for lane in range(min(words[_USED], _LANES)):
                at = _FIRST_LANE + lane * _LANE_WORDS
                launched, ended, ignored = words[at : at + 3]
                place = number * _PAGE_WORDS + at
                # A queue that gets shorter is not stale, although nothing is launched.
                before, sweeps = self._seen.get(place, ((launched, ended), 0))
                waits = launched not in (ended, ignored) and (launched, ended) == before
                self._seen[place] = ((launched, ended), sweeps + 1 if waits else 0)
                if waits and sweeps >= _STALE_SWEEPS:
                    words[at + 2] = launched

    def _mark(self, area: int, mask: int, joined: bool) -> None:
        at, bit = mask + area // 32, 1 << area % 32
        self.header[at] = self.header[at] & ~bit | (bit if joined else 0)


def _shared(pages: int) -> tuple[int, memoryview]:
    """Return a file in memory that keeps its size, and its words.

    A process that shrank it would end all others with SIGBUS.
    """
    file, size = os.memfd_create("dovetail", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), 4 * pages
    os.ftruncate(file, size * _PAGE_WORDS)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SIZE_SEALS)
    return file, memoryview(mmap.mmap(file, size * _PAGE_WORDS)).cast("I")


class SchedulerServer:
    """The scheduler of one GPU.

    Parameters
    ----------
    path : Path
        The path of the socket, which only its owner may use.
    ptxas : Path, optional
        The assembler; by default the result of ``find_ptxas``.
    bound_s : float
        The longest turnaround, seconds.
    samples : int
        The number of runs in a measurement.
    kept : Path, optional
        The folder of PTX from assemblers (``interception.assembler``), and of measured times of
        kernels (``times``).
    idle_s : float
        Seconds without a process or a status request after which it ends.
    unproven : bool
        Whether it uses forms of kernels that are not proven on the GPU (``proven``).
    """

    def __init__(
        self,
        path: Path,
        ptxas: Path | None = None,
        bound_s: float = BOUND_S,
        samples: int = SAMPLES,
        kept: Path | None = None,
        idle_s: float = math.inf,
        unproven: bool = False,
    ) -> None:
        self._ptxas, self._bound_s, self._samples = ptxas, bound_s, samples
        self._idle_s, self._unproven = idle_s, unproven
        self._memory = Memory()
        self._joined: dict[int, _ClientProcess] = {}
        self._ended: Counter[str] = Counter()
        self._choices: dict[int, FormChoice] = {}
        self._unsaved: set[int] = set()
        self._kept = kept
        self._prepared: dict[str, _PreparedModule] = {}
        self._lock, self._preparing = threading.Lock(), threading.Lock()
        self._closed = threading.Event()
        self._needed_s = time.monotonic()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise OSError("must be a socket or not exist")
            path.unlink()
        before = os.umask(0o077)
        try:
            self._listening.bind(str(path))
        finally:
            os.umask(before)
        self._listening.listen(128)

    def run(self) -> None:
        """Serve until ``close`` is called, or the scheduler is no longer needed."""
        threading.Thread(target=self._sweep, daemon=True).start()
        while not self._closed.is_set():
            try:
                connection, _ = self._listening.accept()
            except OSError as error:
                if self._closed.is_set():
                    break
                # After an error such as too many open files, wait for other processes to end.
                _logger.warning("no process can join: %s", error)
                self._closed.wait(_SWEEP_S)
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
        self._save()

    def close(self) -> None:
        """Stop accepting processes, and close the socket and the memory."""
        self._end()
        self._listening.close()
        self._memory.close()

    def status(self) -> dict[str, Any]:
        """Return the clients, the launches by category, and some of the escapes."""
        with self._lock:
            launches = Counter(self._ended)
            for client in self._joined.values():
                launches.update(self._memory.counts(client.area))
            return {
                "clients": [
                    {"pid": one.pid, "priority": "latency" if one.critical else "best-effort"}
                    for one in self._joined.values()
                ],
                "launches": {name: launches[name] for name in COUNTS},
                "escapes": short_texts(
                    (name, why)
                    for client in self._joined.values()
                    for name, why in client.escapes().items()
                ),
            }

    def _sweep(self) -> None:
        while not self._closed.wait(_SWEEP_S):
            with self._lock:
                self._memory.ignore_stale()
                if self._joined:
                    self._needed_s = time.monotonic()
            self._save()
            if time.monotonic() - self._needed_s > self._idle_s:
                self._end()

    def _end(self) -> None:
        """Stop accepting processes, and let ``run`` return."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)

    # Clients.

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, EOFError):
            kind, request = _received(connection)
            if kind == _STATUS:
                self._needed_s = time.monotonic()
                connection.sendall(json.dumps(self.status()).encode())
            elif kind == _HELLO:
                self._serve_client(connection, request)

    def _serve_client(self, connection: socket.socket, request: bytes) -> None:
        version, critical, pid = struct.unpack("=III", request)
        with self._lock:
            area = self._memory.take(bool(critical)) if version == VERSION else None
            if area is None:
                return
            client = self._joined[area] = _ClientProcess(pid, bool(critical), area)
        try:
            socket.send_fds(connection, [struct.pack("=I", area)], self._memory.files)
            while True:
                kind, request = _received(connection)
                reply = self._reply(client, kind, request)
                if reply is not None:
                    connection.sendall(struct.pack("=I", len(reply)) + reply)
        finally:
            with self._lock:
                del self._joined[area]
                self._ended.update(self._memory.give_back(area))

    def _reply(self, client: _ClientProcess, kind: int, request: bytes) -> bytes | None:
        if kind == _MODULE:
            return self._module(client, request)
        if kind == _FORM:
            return self._form(client, request)
        if kind == _FAILED:
            self._failed(client, request)
        else:
            self._measured(client, request)
        return None

    def _module(self, client: _ClientProcess, request: bytes) -> bytes:
        (architecture,), image = struct.unpack_from("=I", request), request[4:]
        key = f"{hashlib.sha256(image).hexdigest()}-{architecture}"
        with self._preparing:
            made = self._prepared.pop(key, None) or self._prepare(image, architecture)
            self._prepared[key] = made
            while len(self._prepared) > _MODULES_KEPT:
                del self._prepared[next(iter(self._prepared))]
        client.modules.append(made)
        parts = [struct.pack("=II", len(client.modules) - 1, len(made.kernels))]
        told = zip(made.kernels, made.parameters, made.pointers, strict=True)
        for kernel, parameters, pointed in told:
            name = kernel.name.encode()
            forms = sum(1 << k for k, form in enumerate(_FORMS) if form in kernel.forms)
            parts += [struct.pack("=IIQI", parameters, forms, pointed, len(name)), name]
        return b"".join([*parts, made.text.encode()])

    def _form(self, client: _ClientProcess, request: bytes) -> bytes:
        numbers = struct.unpack("=12I", request)
        made = client.modules[numbers[0]]
        kernel = made.kernels[numbers[1]]
        shape = LaunchShape(
            grid=numbers[2:5],
            block=numbers[5:8],
            dynamic_shared_bytes=numbers[8],
            most_shared_bytes=numbers[9],
        )
        why = {form: kernel.why_not(form, shape) for form in kernel.forms}
        made.escapes.update((f"{kernel.name}: {form}", text) for form, text in why.items() if text)
        why |= {
            form: text
            for (module, number, form), text in client.failed.items()
            if (module, number) == numbers[:2]
        }
        able = ("whole", *(form for form, text in why.items() if not text))
        wanted = Kernel(
            Size(made.identities[numbers[1]], shape.blocks, shape.threads, numbers[8]),
            {form: kernel.resident(form, shape) for form in able},
        )
        with self._lock:
            client.sms = numbers[10]
            client.sizes[*numbers[:2], shape.blocks, shape.threads] = wanted.size
            form, final = self._choice(client.sms).choice(wanted)
        return _ANSWER.pack(_KINDS.index(form.kind), form.size, form.chunk, final)

    def _measured(self, client: _ClientProcess, request: bytes) -> None:
        *launched, kind, size, chunk, seconds = _MEASUREMENT.unpack(request)
        if (measured := client.sizes.get(tuple(launched))) is None:
            return
        with self._lock:
            choice = self._choice(client.sms)
            if choice.add(measured, LaunchForm(_KINDS[kind], size, chunk), seconds):
                self._unsaved.add(client.sms)

    def _choice(self, sms: int) -> FormChoice:
        """Return the choice of forms on a number of SMs; it begins with what is kept."""
        if sms not in self._choices:
            self._choices[sms] = FormChoice(sms, self._bound_s, self._samples)
            if path := self._times_path(sms):
                try:
                    self._choices[sms].know(times.load(path))
                except times.TimesError as error:
                    _logger.warning("%s; kernels are measured anew", error)
        return self._choices[sms]

    def _times_path(self, sms: int) -> Path | None:
        name = times.file_name(sms, times.DRIVER)
        return self._kept / name if self._kept and name else None

    def _save(self) -> None:
        """Keep what was measured since the last time."""
        with self._lock:
            known = {sms: self._choices[sms].known for sms in self._unsaved}
            self._unsaved.clear()
        for sms, measured in known.items():
            if path := self._times_path(sms):
                try:
                    times.save(path, measured)
                except times.TimesError as error:
                    _logger.warning("%s", error)

    def _failed(self, client: _ClientProcess, request: bytes) -> None:
        """Take a form back that cannot be checked on copies, or was not right there."""
        module, number, kind, outcome = struct.unpack("=4I", request)
        client.failed[module, number, _FORMS[kind - 1]] = _OUTCOMES[outcome]

    # Modules.

    def _prepare(self, image: bytes, architecture: int) -> _PreparedModule:
        """Prepare a module; the result has no kernels if it cannot be prepared."""
        key = hashlib.sha256(image).hexdigest()[:16]
        try:
            text = ptx_of(image, architecture, self._kept)
            module = parse(text)
            # Targets with a letter have instructions that plain ones lack.
            plain = module.target[-1].isdigit()
            target = f"sm_{architecture}" if plain else module.target
            made, kernels = prepare(text, target, self._ptxas, self._why_off(architecture))
        except (ImageError, PtxError, AssemblerError) as error:
            return _PreparedModule(key, "", escapes={f"module {key}": str(error)})
        usable = tuple(_usable(module, function, kernels) for function in module.kernels)
        return _PreparedModule(
            key=key,
            text=made if any(kernel.forms for kernel in usable) else "",
            kernels=usable,
            parameters=tuple(len(function.parameters) for function in module.kernels),
            pointers=tuple(pointers(function) for function in module.kernels),
            identities=tuple(_identity(made, kernel) for kernel in usable),
            escapes={f"{k.name}: {form}": why for k in usable for form, why in k.refused.items()},
        )

    def _why_off(self, architecture: int) -> Callable[[Module, Function, KernelForm], str]:
        """Return what says why a form is off on an architecture."""

        def why(module: Module, kernel: Function, form: KernelForm) -> str:
            unproven = why_unproven(module, kernel, form, architecture)
            return ("" if self._unproven else unproven) or why_not_on_copies(module, kernel)

        return why


def _usable(
    module: Module, function: Function, kernels: Mapping[str, PreparedKernel]
) -> PreparedKernel:
    """Return a kernel with the forms that are possible in a module that is loaded twice."""
    kernel, variable = kernels[function.name], shared_variable(module, function)
    if not variable:
        return kernel
    why = f"the module's variable {variable} would exist twice"
    return replace(kernel, forms={}, refused=dict.fromkeys(_FORMS, why))


def _identity(text: str, kernel: PreparedKernel) -> str:
    return hashlib.sha256(f"{kernel.name}\0{text}".encode()).hexdigest()[:32]


def short_texts(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the first pairs, each text printable, on one line and of limited length."""
    first = itertools.islice(pairs, _MOST_ESCAPES)
    return {_short_text(name): _short_text(text) for name, text in first}


def _short_text(text: str) -> str:
    printable = "".join(c if c.isprintable() else "?" for c in text[: _LONGEST_TEXT + 1])
    return printable if len(text) <= _LONGEST_TEXT else f"{printable[: _LONGEST_TEXT - 3]}..."


def status(path: Path) -> Mapping[str, Any]:
    """Return the status of a scheduler.

    Raises
    ------
    OSError
        If there is no scheduler, or it does not answer within limits of time and size.
    ValueError
        If its answer is not JSON.
    """
    until_s, parts = time.monotonic() + _ANSWER_S, bytearray()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_ANSWER_S)
        _connect(connection, path)
        connection.sendall(_HEADER.pack(_STATUS, 0))
        while part := connection.recv(1 << 16):
            parts += part
            if len(parts) > _MOST_BYTES or time.monotonic() > until_s:
                raise OSError(f"{path}: its answer does not end")
    try:
        found: dict[str, Any] = json.loads(parts)
    except RecursionError:
        raise ValueError(f"{path}: its answer is nested too deeply") from None
    return found


def _connect(connection: socket.socket, path: Path) -> None:
    """Connect to the socket at a path without following a link.

    The folder belongs to a user, and root connects: a link could lead to a socket that only root
    may use.
    """
    handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(handle).st_mode):
            raise OSError(f"{path}: must be a socket")
        connection.connect(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)


def _received(connection: socket.socket) -> tuple[int, bytes]:
    kind, size = _HEADER.unpack(_exactly(connection, _HEADER.size))
    return kind, _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        got = connection.recv(min(1 << 20, size - len(parts)))
        if not got:
            raise EOFError
        parts += got
    return bytes(parts)


def main() -> None:
    """Run the scheduler of a GPU."""
    parser = argparse.ArgumentParser(prog="python -m dovetail.isolation.server")
    parser.add_argument("socket", type=Path, help="socket to which processes connect")
    parser.add_argument("--kept", type=Path, help="folder that keeps PTX and times of kernels")
    parser.add_argument("--daemon", action="store_true", help="return once it listens")
    parser.add_argument(
        "--idle-s", type=float, default=math.inf, help="seconds without use after which it ends"
    )
    parser.add_argument(
        "--unproven",
        action="store_true",
        help="use forms of kernels that are not proven on this kind of GPU, too",
    )
    given = parser.parse_args()
    ptxas = find_ptxas()
    try:
        if given.kept and ptxas:
            assembler(given.kept, ptxas)
        server = SchedulerServer(
            given.socket,
            ptxas=ptxas,
            kept=given.kept,
            idle_s=given.idle_s,
            unproven=given.unproven,
        )
    except OSError as error:
        print(f"{parser.prog}: {given.socket}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    if given.daemon:
        _detach(given.socket.with_name("log"))
    server.run()


def _detach(log: Path) -> None:
    """Continue in a new background process with a log file, and end the present process."""
    if os.fork():
        os._exit(0)
    os.setsid()
    with open(os.devnull) as nothing, open(log, "w") as messages:
        os.dup2(nothing.fileno(), 0)
        os.dup2(messages.fileno(), 1)
        os.dup2(messages.fileno(), 2)


if __name__ == "__main__":
    main()
