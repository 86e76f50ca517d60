"""The guard of one rank: it starts the rank's process, keeps its log, and outlives the service.

Started as ``python -I -S shim.py RANK_DIRECTORY`` with the standard library alone, so that a
service can be updated, restarted or killed while jobs run. ``docs/launcher.md`` tells a rank's
life; in short:

- the process is forked, made the job's user and brought to its directory, but waits at a gate.
  The shim says ``prepared`` (or ``refused REASON``) on its standard output and reads ``go`` from
  its standard input; end of file means that nothing is to be started, and no trace is left;
- ``started.json`` appears by ``link``, which fails if there is one: a rank never starts twice;
- the gate opens. The shim is a subreaper, so every descendant that loses its parent becomes its
  child, and ``waitpid`` failing with ECHILD proves that nothing of the rank is left;
- SIGTERM asks the job's process group to end, SIGQUIT kills every descendant;
- ``exit.json``, for which room was reserved at the start, is renamed into place at the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import json
import os
import select
import shutil
import signal
import sys
import time
import traceback
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

RESERVED_BYTES = 1024
"""Room kept for the exit status, so that a full disk cannot take it."""

LINGER_S = 2.0
"""Seconds that what outlives a rank's own process gets after SIGTERM."""

_RETRY_S = 1.0
_SWEEP_S = 0.1
_CHUNK = 65536
_READY = b"ready"


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
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
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

    def write(self, status: int | None, refused: str = "") -> None:
        """Put the status into place, however long that takes: the service waits for it."""
        text = json.dumps({"status": status, "refused": refused[:200]})
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


class Child:
    """The rank's own process, held at a gate until it is released."""

    def __init__(self, spec: dict[str, Any]) -> None:
        gate_out, self._gate = os.pipe()
        self._report, report_in = os.pipe()
        self.output, output_in = os.pipe()
        shim = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            # Without this the gate would never see the shim's end of it close.
            os.close(self._gate)
            _become(spec, shim, gate_out, report_in, output_in)
        for end in (gate_out, report_in, output_in):
            os.close(end)
        os.set_blocking(self.output, False)

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


def _become(spec: dict[str, Any], shim: int, gate: int, report: int, output: int) -> NoReturn:
    """Turn the forked child into the rank: everything up to its program, then the gate."""
    try:
        os.setsid()
        _refuse_unspeakable(spec)
        _take_seat(spec)
        _take_streams(output)
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


def _take_streams(output: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)


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
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Guard:
    """Waits for a rank's process and all its descendants, copying their output meanwhile."""

    def __init__(self, child: Child, readers: list[Callable[[bytes], object]]) -> None:
        self._pid, self._output, self._readers = child.pid, child.output, readers
        self._status: int | None = None
        self._alone = False
        self._asked = self._killing = False
        self._linger_until: float | None = None
        self._woken = _wake_on_signals(self._on_signal)
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
        self._poll.register(self._output, select.POLLIN)

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

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._asked |= number == signal.SIGTERM
        self._killing |= number == signal.SIGQUIT

    def _sleep(self) -> None:
        sweeping = self._killing or self._status is not None
        self._poll.poll(_SWEEP_S * 1000 if sweeping else None)
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, _CHUNK)

    def _copy_output(self) -> None:
        # Bounded, so that a job that prints without end can still be stopped.
        for _ in range(64):
            try:
                data = os.read(self._output, _CHUNK)
            except BlockingIOError:
                return
            if not data:
                with contextlib.suppress(KeyError):
                    self._poll.unregister(self._output)
                return
            for read in list(self._readers):
                self._hand(read, data)

    def _hand(self, read: Callable[[bytes], object], data: bytes) -> None:
        """Give output to a reader; one that fails gets no more, and the job goes on."""
        try:
            read(data)
        except Exception:
            self._readers.remove(read)
            traceback.print_exc()

    def _obey(self) -> None:
        if self._asked and self._status is None:
            # SIGCONT, since a stopped process takes no notice of SIGTERM.
            for number in (signal.SIGTERM, signal.SIGCONT):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._pid, number)
            self._asked = False
        if self._killing:
            self._signal_all(signal.SIGKILL)
        elif self._status is not None:
            self._clear_up()

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


def _readers(directory: str, spec: dict[str, Any]) -> list[Callable[[bytes], object]]:
    """Return what takes the rank's output."""
    user, settings = spec["user"], spec["log"]
    owner = (user["uid"], user["gid"]) if user else None
    path = os.path.join(directory, "log")
    log = Log(path, settings["most_bytes"], settings["files"], owner, settings["mode"])
    lines = spec["lines"]
    if lines is None:
        return [log.write]
    sys.path.insert(0, lines["modules"])
    found = importlib.import_module("dovetail_progress_lines").Lines
    return [log.write, found(lines["pattern"], lines["path"]).feed]


def main(directory: str) -> None:
    """Run the rank that ``spec.json`` in a directory tells of."""
    os.chdir("/")
    _close_inherited()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with open(os.path.join(directory, "spec.json"), encoding="utf-8") as file:
        spec = json.load(file)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = Child(spec)
    refused = child.prepared()
    if not refused:
        try:
            readers, ending = _readers(directory, spec), ExitFile(directory)
        except Exception as error:
            refused = _told(error)
    if refused:
        child.give_up()
        _say(f"refused {refused}")
        return
    _say("prepared")
    if os.read(0, _CHUNK) != b"go\n" or not _claimed(directory, child):
        child.give_up()
        ending.give_up()
        return
    _guard(child, readers, ending)


def _guard(child: Child, readers: list[Callable[[bytes], object]], ending: ExitFile) -> None:
    refused = child.release()
    if refused:
        child.give_up()
        ending.write(None, refused)
        _say(f"refused {refused}")
        return
    guard = Guard(child, readers)
    _say("started")
    _detach()
    ending.write(guard.wait())


def _claimed(directory: str, child: Child) -> bool:
    try:
        if claim(directory, _started(child)):
            return True
        _say("taken")
    except OSError as error:
        _say(f"refused {_told(error)}")
    return False


_LIBC = ctypes.CDLL(None, use_errno=True)

if __name__ == "__main__":
    main(sys.argv[1])
