"""The guard of one rank: it starts the rank's process, keeps its log, and outlives the service.

Started as ``python -I -S shim.py RANK_DIRECTORY`` with the standard library alone, so that a
service can be updated, restarted or killed while jobs run. ``docs/launcher.md`` tells a rank's
life; in short:

- the process is forked, made the job's user and brought to its directory, but waits at a gate.
  The shim says ``prepared`` on its standard output (or ``refused REASON``, or ``later REASON``
  where nothing is wrong with the job) and reads ``go`` from its standard input; end of file
  means that nothing is to be started, and no trace is left;
- ``started.json`` appears by ``link``, which fails if there is one: a rank never starts twice;
- the gate opens. The shim is a subreaper, so every descendant that loses its parent becomes its
  child, and ``waitpid`` failing with ECHILD proves that nothing of the rank is left;
- SIGTERM asks the job's process group to end, SIGQUIT kills every descendant;
- where the rank runs under a lease, both happen when that has lapsed, whoever is left to tell;
- ``exit.json``, for which room was reserved at the start, is renamed into place at the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import json
import os
import resource
import select
import shutil
import signal
import stat as stat_module
import sys
import threading
import time
import traceback
import zlib
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Readers = list[Callable[[bytes], object]]

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

RESERVED_BYTES = 1024
"""Room kept for the exit status, so that a full disk cannot take it."""

LINGER_S = 2.0
"""Seconds that what outlives a rank's own process gets after SIGTERM."""

LAPSED = "the lease of its node lapsed"
"""Why a rank was not started under a lease that nobody renewed."""

_AHEAD_S = 2.0
"""Seconds before a lease's end at which its file is read, so that there is time to do it again."""

_AGAIN_S = 0.5
_LOOK_S = 0.5
_LOOKS = 3
_SETTLED_S = 0.01
_RETRY_S = 1.0
_SWEEP_S = 0.1
_CHUNK = 65536
_READY = b"ready"
_TFD_TIMER_ABSTIME = 1


class Stat(NamedTuple):
    """What ``/proc/PID/stat`` says of a process; times in clock ticks.

    ``cpu`` includes the children that it has waited for.
    """

    pid: int
    state: str
    parent: int
    group: int
    session: int
    cpu: int
    started: int
    rss_pages: int


def stat_of(pid: int) -> Stat | None:
    """Return what the kernel says of a process, None where there is none.

    Raises
    ------
    OSError
        When that cannot be found out: it is no proof that a process has ended.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The program's name, in brackets, may hold anything.
    fields = line[line.rindex(b")") + 2 :].split()
    numbers = [int(field) for field in fields[1:22]]
    parent, group, session = numbers[:3]
    cpu, started, rss_pages = sum(numbers[10:14]), numbers[18], numbers[20]
    return Stat(pid, fields[0].decode(), parent, group, session, cpu, started, rss_pages)


def every_process() -> list[Stat]:
    """Return all processes that can be seen."""
    found = (stat_of(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [stat for stat in found if stat is not None]


def descendants(pid: int) -> list[Stat]:
    """Return the processes below one, parents before their children."""
    children: dict[int, list[Stat]] = {}
    for stat in every_process():
        children.setdefault(stat.parent, []).append(stat)
    found: list[Stat] = []
    below = [pid]
    for parent in below:
        found += children.get(parent, [])
        below += [stat.pid for stat in children.get(parent, [])]
    return found


def send(pid: int, started: int, number: int) -> bool:
    """Signal a process, and none that has its number since; return whether that was done."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        stat = stat_of(pid)
        if stat is None or stat.started != started:
            return False
        signal.pidfd_send_signal(process, number)
    except OSError:
        return False
    finally:
        os.close(process)
    return True


def boot_id() -> str:
    """Return what tells this boot of the machine from every other."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def write_durably(path: str, data: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(path, flags, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        os.fsync(file)
    finally:
        os.close(file)


def sync_directory(path: str) -> None:
    """Wait until the names in a directory are on the disk."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def claim(directory: str, record: dict[str, object]) -> bool:
    """Make ``started.json``, whole and durable; return False where there is one already."""
    beside = os.path.join(directory, f"started.{os.getpid()}.tmp")
    try:
        write_durably(beside, json.dumps(record).encode())
        os.link(beside, os.path.join(directory, "started.json"))
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(OSError):
            os.unlink(beside)
    sync_directory(directory)
    return True


class LeaseRecord(NamedTuple):
    """What a lease file says, in seconds since the machine booted.

    ``since_s`` tells a lease from one that lapsed before it: who ran under that may not go on.
    """

    since_s: float
    deadline_s: float


def lease_line(record: LeaseRecord, boot: str) -> bytes:
    """Return what a lease file holds; always of one length, so that it is written over."""
    text = f"{record.since_s:020.6f} {record.deadline_s:020.6f} {boot}"
    return f"{text} {zlib.crc32(text.encode()):08x}\n".encode()


def read_lease(path: str, boot: str) -> LeaseRecord | None:
    """Return what a lease file says; None where it is garbled, or of another boot.

    Raises
    ------
    OSError
        When it cannot be read.
    """
    with open(path, "rb") as file:
        line = file.read(_CHUNK)
    try:
        since, deadline, *_ = line.split()
        found = LeaseRecord(float(since), float(deadline))
    except ValueError:
        return None
    return found if line == lease_line(found, boot) else None


class Alarm:
    """Wakes on the clock that counts suspended time, as ``poll`` and ``sleep`` do not."""

    def __init__(self) -> None:
        self._timer = _LIBC.timerfd_create(time.CLOCK_BOOTTIME, os.O_CLOEXEC)
        if self._timer < 0:
            _raise_errno()

    def sleep_until(self, at_s: float) -> None:
        """Return at a moment in seconds since the machine booted; at once if that is over."""
        moment = int(at_s), int(at_s % 1 * 1e9)
        # An interval of 0: once.
        times = (ctypes.c_long * 4)(0, 0, *moment)
        if _LIBC.timerfd_settime(self._timer, _TFD_TIMER_ABSTIME, times, None) < 0:
            _raise_errno()
        os.read(self._timer, 8)


class Lease:
    """The leave to run a rank, which ends unless its file says in time that it goes on.

    The file is read in a thread of its own: a disk that hangs makes no lease last longer.

    Parameters
    ----------
    path : str
        The lease file.
    kill_s : float
        Seconds between its end and the kill of what is left of the rank.

    Attributes
    ----------
    deadline_s : float
        When it ends, as far as is known.
    """

    def __init__(self, path: str, kill_s: float) -> None:
        self._path, self._boot = path, boot_id()
        self.kill_s = kill_s
        self._since_s: float | None = None
        self.deadline_s = 0.0

    @property
    def lapsed(self) -> bool:
        """Whether it has ended."""
        return _boot_s() >= self.deadline_s

    def look(self) -> None:
        """Take from the file whether it goes on. What cannot be read or understood says nothing."""
        found = self._found()
        if found is None:
            return
        if self._since_s is None:
            self._since_s = found.since_s
        # Another lease is none for who ran under this one: it had lapsed before that began.
        if found.since_s == self._since_s:
            self.deadline_s = max(self.deadline_s, found.deadline_s)

    def _found(self) -> LeaseRecord | None:
        # Again, since it may just be being written.
        for _ in range(_LOOKS):
            with contextlib.suppress(OSError):
                if found := read_lease(self._path, self._boot):
                    return found
            time.sleep(_SETTLED_S)
        return None

    def outlast(self, alarm: Alarm, reader: Reader) -> None:
        """Return once it has lapsed.

        It is read shortly before its end, and, if it goes on no longer then, again until the end.

        Parameters
        ----------
        alarm : Alarm
            To sleep by.
        reader : Reader
            Of this lease.
        """
        while True:
            now, ahead_s = _boot_s(), self.deadline_s - _AHEAD_S
            alarm.sleep_until(ahead_s if now < ahead_s else min(now + _AGAIN_S, self.deadline_s))
            reader.read()
            if self.lapsed:
                return


class Reader:
    """Reads when it is asked to, and holds up nobody for longer than a moment."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._asked, self._done = threading.Event(), threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def read(self) -> None:
        """Return when that is done, or takes long."""
        self._done.clear()
        self._asked.set()
        self._done.wait(_LOOK_S)

    def _serve(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            self._look()
            self._done.set()


class ExitFile:
    """The rank's exit status, for which room is kept from the beginning."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        # By its number: another shim may be trying to claim the same rank.
        self._beside = os.path.join(directory, f"exit.{os.getpid()}.tmp")
        write_durably(self._beside, b" " * RESERVED_BYTES)

    def give_up(self) -> None:
        """Give the room back."""
        with contextlib.suppress(OSError):
            os.unlink(self._beside)

    def write(self, status: int | None, refused: str = "", lapsed: bool = False) -> None:
        """Put the status into place, however long that takes: the service waits for it."""
        text = json.dumps({"status": status, "refused": refused[:200], "lapsed": lapsed})
        while not self._written(text.encode().ljust(RESERVED_BYTES)):
            time.sleep(_RETRY_S)

    def _written(self, data: bytes) -> bool:
        try:
            # In place: the reserved blocks are written over.
            file = os.open(self._beside, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(file, data, 0)
                os.fsync(file)
            finally:
                os.close(file)
            os.rename(self._beside, os.path.join(self._directory, "exit.json"))
            sync_directory(self._directory)
        except FileNotFoundError:
            return True  # somebody has removed the directory: nobody waits for the status
        except OSError:
            return False
        return True


class Log:
    """The output of a rank: ``log``, and older parts as ``log.1``, ``log.2``, ...

    Parameters
    ----------
    path : str
        Of the newest part.
    most_bytes : int
        A part is closed before it grows larger, at the end of a line where there is one.
    files : int
        Parts kept, the newest included.
    owner : tuple of int, optional
        The user and group that the parts belong to.
    mode : int
        Their permissions.
    """

    def __init__(
        self,
        path: str,
        most_bytes: int,
        files: int,
        owner: tuple[int, int] | None = None,
        mode: int = 0o600,
    ) -> None:
        self._path, self._most, self._files = path, most_bytes, files
        self._owner, self._mode = owner, mode
        self._lost = 0
        self._open()

    def write(self, data: bytes) -> None:
        """Append output. What a full disk refuses is dropped, counted, and told later."""
        while data:
            room = self._most - self._size
            if len(data) > room and self._size:
                cut = data.rfind(b"\n", 0, max(room, 0)) + 1
                self._append(data[:cut])
                data = data[cut:]
                self._rotate()
            else:
                self._append(data[: self._most])
                data = data[self._most :]

    def _append(self, data: bytes) -> None:
        if self._lost:
            note = f"[dovetail: {self._lost} bytes of output lost, the disk took no more]\n"
            if self._refused(note.encode()):
                self._lost += len(data)
                return
            self._lost = 0
        self._lost += self._refused(data)

    def _refused(self, data: bytes) -> int:
        """Write what the disk takes, and return how many bytes it does not."""
        view = memoryview(data)
        with contextlib.suppress(OSError):
            while view:
                written = os.write(self._file, view)
                self._size += written
                view = view[written:]
        return len(view)

    def _rotate(self) -> None:
        old = self._file
        try:
            for number in range(self._files - 1, 0, -1):
                newer = f"{self._path}.{number - 1}" if number > 1 else self._path
                with contextlib.suppress(FileNotFoundError):
                    os.rename(newer, f"{self._path}.{number}")
            if self._files == 1:
                os.unlink(self._path)
            self._open()
        except OSError:
            # The present part grows on, which loses nothing.
            self._size = 0
            return
        os.close(old)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(self._path, flags, self._mode)
        os.fchmod(self._file, self._mode)
        if self._owner is not None:
            os.fchown(self._file, *self._owner)
        self._size = os.fstat(self._file).st_size


class Copy(Log):
    """A file of the user's choice that gets output, too: appended to, and never rotated."""

    def __init__(self, path: str, mode: int) -> None:
        super().__init__(path, sys.maxsize, 1, mode=mode)

    def _open(self) -> None:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        # Nothing that could hang, or that somebody else put there to be written to.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        flags |= os.O_NONBLOCK | os.O_NOCTTY
        self._file = os.open(self._path, flags, self._mode)
        found = os.fstat(self._file)
        null = stat_module.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(1, 3)
        if not null and not stat_module.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "must be a regular file", self._path)
        self._size = 0


class Child:
    """The rank's own process, held at a gate until it is released.

    Attributes
    ----------
    pid : int
        Of the process.
    outputs : list of int
        Where its output is read; its standard error apart where that has a file of its own.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        gate_out, self._gate = os.pipe()
        self._report, report_in = os.pipe()
        pipes = [os.pipe() for _ in spec["copies"]]
        self.outputs, outputs_in = [out for out, _ in pipes], [end for _, end in pipes]
        shim = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            # Without this the gate would never see the shim's end of it close.
            os.close(self._gate)
            _become(spec, shim, gate_out, report_in, outputs_in)
        for end in (gate_out, report_in, *outputs_in):
            os.close(end)
        for output in self.outputs:
            os.set_blocking(output, False)

    def prepared(self) -> str:
        """Wait until it stands at the gate, and return why it cannot."""
        told = os.read(self._report, _CHUNK)
        return "" if told == _READY else told.decode(errors="replace") or "it died at its start"

    def release(self) -> str:
        """Open the gate, and return why its program could not be run."""
        os.write(self._gate, b"g")
        os.close(self._gate)
        return os.read(self._report, _CHUNK).decode(errors="replace")

    def give_up(self) -> None:
        """End it at the gate."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _become(
    spec: dict[str, Any], shim: int, gate: int, report: int, outputs: list[int]
) -> NoReturn:
    """Turn the forked child into the rank: everything up to its program, then the gate."""
    try:
        os.setsid()
        _refuse_unspeakable(spec)
        _take_seat(spec)
        _take_streams(outputs)
        _take_user(spec)
        # Only now: a change of user would clear it.
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != shim:
            os._exit(1)
        os.chdir(spec["cwd"])
        program = _program(spec["command"][0], spec["env"].get("PATH", os.defpath))
        _default_signals()
        os.write(report, _READY)
        if os.read(gate, 1) != b"g":
            os._exit(1)
        os.execve(program, spec["command"], spec["env"])
    except BaseException as error:
        os.write(report, _told(error).encode(errors="replace")[:_CHUNK])
    os._exit(1)


def _refuse_unspeakable(spec: dict[str, Any]) -> None:
    """Refuse before the gate what could not be handed to a program behind it."""
    if any("\0" in text for text in (*spec["command"], *spec["env"], *spec["env"].values())):
        raise ValueError("a NUL character is in its command or environment")
    if any(not name or "=" in name for name in spec["env"]):
        raise ValueError("an environment variable's name is empty or has a '=' in it")


def _take_seat(spec: dict[str, Any]) -> None:
    for path in spec["cgroups"]:
        with open(path, "w", encoding="ascii") as file:
            file.write("0")
    if spec["cpus"]:
        os.sched_setaffinity(0, spec["cpus"])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(spec["descriptors"], most), most))


def _take_streams(outputs: list[int]) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(outputs[0], 1)
    os.dup2(outputs[-1], 2)


def _take_user(spec: dict[str, Any]) -> None:
    user = spec["user"]
    if user is not None:
        os.setgroups(user["groups"])
        os.setgid(user["gid"])
        os.setuid(user["uid"])
    os.umask(0o022)


def _program(name: str, path: str) -> str:
    found = shutil.which(name, path=path)
    if found is None:
        reason = "cannot be executed" if os.path.exists(name) else "is not found"
        raise FileNotFoundError(errno.ENOENT, f"the program {reason}", name)
    return found


def _default_signals() -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _told(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return " ".join(f"{error.strerror}{where}".split())
    return " ".join(str(error).split()) or type(error).__name__


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        _raise_errno()


def _raise_errno() -> NoReturn:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))


def _boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Guard:
    """Waits for a rank's process and all its descendants, copying their output meanwhile.

    Attributes
    ----------
    lapsed : bool
        Whether the rank was ended for its lease's sake.
    """

    def __init__(self, child: Child, readers: list[Readers]) -> None:
        self._pid = child.pid
        self._outputs = list(zip(child.outputs, readers, strict=True))
        self._status: int | None = None
        self._alone = False
        self._asked = self._killing = False
        self._linger_until: float | None = None
        self.lapsed = False
        self._woken = _wake_on_signals(self._on_signal)
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
        for output in child.outputs:
            self._poll.register(output, select.POLLIN)

    def wait(self) -> int:
        """Return the exit status, negative for a signal, once nothing of the rank is left."""
        # What ended before signals were watched woke nobody.
        self._reap()
        while not self._alone:
            self._sleep()
            self._copy_output()
            self._obey()
            self._reap()
        self._copy_output()
        assert self._status is not None
        return self._status

    def heed(self, lease: Lease) -> None:
        """End the rank once its lease has lapsed: ask, and kill some seconds later.

        In a thread of its own, so that nothing holds it up that holds up ``wait``, as a disk may
        that takes no output. If the lapse is noticed late, the kill comes the sooner after it.
        """
        try:
            parts = lease, Alarm(), Reader(lease.look)
            threading.Thread(target=self._end_after, args=parts, daemon=True).start()
        except (OSError, RuntimeError):
            # What could not be ended in time does not run at all.
            traceback.print_exc()
            self.lapsed = self._killing = True

    def _end_after(self, lease: Lease, alarm: Alarm, reader: Reader) -> None:
        lease.outlast(alarm, reader)
        if self._status is None:
            self.lapsed = True
            self._ask()
        alarm.sleep_until(lease.deadline_s + lease.kill_s)
        while True:
            self._signal_all(signal.SIGKILL)
            time.sleep(_SWEEP_S)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._asked |= number == signal.SIGTERM
        self._killing |= number == signal.SIGQUIT

    def _sleep(self) -> None:
        sweeping = self._killing or self._status is not None
        self._poll.poll(_SWEEP_S * 1000 if sweeping else None)
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, _CHUNK)

    def _copy_output(self) -> None:
        for output, readers in self._outputs:
            # Bounded, so that a job that prints without end can still be stopped.
            for _ in range(64):
                try:
                    data = os.read(output, _CHUNK)
                except BlockingIOError:
                    break
                if not data:
                    with contextlib.suppress(KeyError):
                        self._poll.unregister(output)
                    break
                for read in list(readers):
                    _hand(read, data, readers)

    def _obey(self) -> None:
        if self._asked and self._status is None:
            self._ask()
            self._asked = False
        if self._killing:
            self._signal_all(signal.SIGKILL)
        elif self._status is not None:
            self._clear_up()

    def _ask(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGTERM)
        # A stopped process takes no notice of that, and all of a paused job are stopped.
        self._signal_all(signal.SIGCONT)

    def _clear_up(self) -> None:
        """End what outlives the rank's own process."""
        now = time.monotonic()
        if self._linger_until is None:
            self._linger_until = now + LINGER_S
            self._signal_all(signal.SIGTERM)
            self._signal_all(signal.SIGCONT)
        elif now >= self._linger_until:
            self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        # What cannot be looked at now is looked at again in the next sweep.
        with contextlib.suppress(OSError):
            for stat in descendants(os.getpid()):
                send(stat.pid, stat.started, number)

    def _reap(self) -> None:
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
                if ended[0] == self._pid:
                    self._status = os.waitstatus_to_exitcode(ended[1])
        except ChildProcessError:
            self._alone = True


def _hand(read: Callable[[bytes], object], data: bytes, readers: Readers) -> None:
    """Give output to a reader; one that fails gets no more, and the job goes on."""
    try:
        read(data)
    except Exception:
        readers.remove(read)
        traceback.print_exc()


def _wake_on_signals(react: Callable[[int, FrameType | None], None]) -> int:
    """Let signals end a poll; return the descriptor that becomes readable."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, react)
    return woken


def _say(text: str) -> None:
    """Tell the service, which may be gone."""
    with contextlib.suppress(OSError):
        os.write(1, f"{text}\n".encode(errors="replace"))


def _close_inherited() -> None:
    """Close what whoever started the service left open: it is none of the job's business."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            # The listing's own descriptor is closed already.
            with contextlib.suppress(OSError):
                os.close(int(name))


def _detach() -> None:
    """Let go of the pipes to the service."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)


def _started(child: Child) -> dict[str, object]:
    shim, rank = stat_of(os.getpid()), stat_of(child.pid)
    assert shim is not None
    assert rank is not None
    return {
        "pid": child.pid,
        "pid_started": rank.started,
        "shim": shim.pid,
        "shim_started": shim.started,
        "boot": boot_id(),
    }


@contextlib.contextmanager
def _rights_of(user: dict[str, Any] | None) -> Iterator[None]:
    """Open files as a user while the block runs; ourselves for None."""
    if user is None:
        yield
        return
    groups, gid, uid = os.getgroups(), os.getegid(), os.geteuid()
    os.setgroups(user["groups"])
    os.setegid(user["gid"])
    os.seteuid(user["uid"])
    try:
        yield
    finally:
        os.seteuid(uid)
        os.setegid(gid)
        os.setgroups(groups)


def _copies(spec: dict[str, Any]) -> list[Readers]:
    """Return what takes a copy of each of the rank's outputs, with the rights of its user."""
    os.umask(0o022)
    try:
        with _rights_of(spec["user"]):
            mode = spec["log"]["mode"]
            return [[Copy(path, mode).write] if path else [] for path in spec["copies"]]
    except OSError as error:
        # Of a place that its user chose: no fault of the service's, unlike others.
        raise ValueError(f"its output: {_told(error)}") from None


def _readers(directory: str, spec: dict[str, Any]) -> list[Readers]:
    """Return what takes each of the rank's outputs."""
    user, settings = spec["user"], spec["log"]
    owner = (user["uid"], user["gid"]) if user else None
    path = os.path.join(directory, "log")
    log = Log(path, settings["most_bytes"], settings["files"], owner, settings["mode"])
    return [[log.write, *_counters(spec["lines"]), *copies] for copies in _copies(spec)]


def _counters(lines: dict[str, str] | None) -> Readers:
    """Return what looks for progress in an output."""
    if lines is None:
        return []
    if lines["modules"] not in sys.path:
        sys.path.insert(0, lines["modules"])
    found = importlib.import_module("dovetail_progress_lines").Lines
    return [found(lines["pattern"], lines["path"]).feed]


def main(directory: str) -> None:
    """Run the rank that ``spec.json`` in a directory tells of."""
    os.chdir("/")
    _close_inherited()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with open(os.path.join(directory, "spec.json"), encoding="utf-8") as file:
        spec = json.load(file)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    lease = Lease(**spec["lease"]) if "lease" in spec else None
    if _lapsed(lease):
        _say("lapsed")
        return
    child = Child(spec)
    refused = child.prepared()
    if refused:
        child.give_up()
        _say(f"refused {refused}")
        return
    try:
        readers, ending = _readers(directory, spec), ExitFile(directory)
    except Exception as error:
        child.give_up()
        # What the system refuses here is the service's own.
        _say(f"{'later' if isinstance(error, OSError) else 'refused'} {_told(error)}")
        return
    _say("prepared")
    if os.read(0, _CHUNK) != b"go\n" or not _claimed(directory, child):
        child.give_up()
        ending.give_up()
        return
    _guard(child, lease, readers, ending)


def _guard(
    child: Child,
    lease: Lease | None,
    readers: list[Readers],
    ending: ExitFile,
) -> None:
    lapsed = _lapsed(lease)
    refused = LAPSED if lapsed else child.release()
    if refused:
        child.give_up()
        ending.write(None, refused, lapsed)
        _say(f"refused {refused}")
        return
    guard = Guard(child, readers)
    if lease is not None:
        guard.heed(lease)
    _say("started")
    _detach()
    ending.write(guard.wait(), lapsed=guard.lapsed)


def _lapsed(lease: Lease | None) -> bool:
    """Return whether a rank may not be started, as far as its lease is known by now."""
    if lease is None:
        return False
    lease.look()
    return lease.lapsed


def _claimed(directory: str, child: Child) -> bool:
    try:
        if claim(directory, _started(child)):
            return True
        _say("taken")
    except OSError as error:
        _say(f"later {_told(error)}")
    return False


_LIBC = ctypes.CDLL(None, use_errno=True)

if __name__ == "__main__":
    main(sys.argv[1])
