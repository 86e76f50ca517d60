"""A stand-in for ``nvidia-cuda-mps-control`` with servers and clients, for machines without a GPU.

It answers as 535.309.01 was recorded to without a GPU and 580.159.04 on an H200 (``transcripts/``;
the contract tests compare them), and elsewhere as NVIDIA documents (MPS guide, "Appendix: Tools and
Interface Reference" and "Architecture"): pids one a line, ``ACTIVE`` or ``FAULT``, ``0`` as the
last line of ``terminate_client``. It shows that our side keeps the protocol. It shows nothing about
GPUs.

Installed (``install``) in a folder named after the version that it plays: 535 has no
``get_server_status`` and no pid file. 580 has the costs and faults that were measured: the daemon
listens after 53 ms, a command takes 1.3 ms, every fourth one that comes meanwhile is refused
("Cannot send command", exit status 1), and a client is listed 40 to 180 ms after it attached.
Servers are real processes that do nothing. Clients are processes that connect to the daemon
(``client.py``). Beyond MPS there is ``standin WORD`` with

- ``busy``: the next three commands are refused; ``swamped``: all are, until ``idle``;
- ``mute``: the next three commands of each kind are answered by nothing;
- ``fault``: a client faults; newcomers are refused until all clients have left;
- ``deaf``: clients cannot be terminated; ``stuck``: nor can servers be shut down;
- ``babble``: lists are answered by nonsense;
- ``crowded``: no partition can be added while there are clients, as NVIDIA documents for MPS v3.

From 590 on it has static partitions (``-S``), of a GPU like an H200: 16 chunks of 8 SMs, and 4 SMs
left over for the partition that takes the last chunk. Their commands and tables are those of
NVIDIA's pages of release 615 ("Common Tasks", "Legacy MPS v2 Interface"), the refusal of too many
chunks is one that others have posted, other errors are made up.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
import threading
import time

NAME = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"


DAEMON = "standin.py"
BUSY = b"\0busy"

LISTENS_S, COMMAND_S = 0.053, 0.0013
LISTED_S = (0.18, 0.068, 0.037)
"""Measured with 580.159.04 on an H200 (``transcripts/580.159.04-h200.json``)."""

REFUSED = 4
"""One of so many commands that meet another one is refused. Made up: only refusals were counted."""

# It is run many times, and imports no more than it needs.
PROGRAM = f"""
import _socket, os, sys

def daemon():
    path = os.path.join(os.path.dirname(__file__), {DAEMON!r})
    with open(path) as file:
        exec(compile(file.read(), path, "exec"), {{"__file__": path, "__name__": "__main__"}})

def front_end():
    commands = sys.stdin.read().split(chr(10))
    connection = _socket.socket(_socket.AF_UNIX)
    try:
        connection.connect(os.path.join(os.environ["CUDA_MPS_PIPE_DIRECTORY"], "control"))
    except OSError:
        sys.exit("Cannot find MPS control daemon process")
    connection.sendall("".join(line + chr(10) for line in commands if line.strip()).encode())
    connection.shutdown(_socket.SHUT_WR)
    while answer := connection.recv(65536):
        if answer.startswith({BUSY!r}):
            sys.exit("Cannot send command to MPS control daemon process")
        sys.stdout.buffer.write(answer)
        sys.stdout.flush()

front_end() if len(sys.argv) == 1 else daemon()
"""
"""Sends the commands on standard input to the daemon, or runs this file for its options."""

BANNER = "CUDA MPS Control for Linux/Unix/QNX."
OPTIONS = """OPTIONS:
  -h,--help                Print this message
  -d,--daemon              Setup the daemon in the background
"""
STATIC = "  -S,--static-partitioning Start the daemon in static partitioning mode\n"
MODULES = """MODULES:
  server                   Named servers
  namespace                Namespaces of a server
"""
"""The first two as 580 prints them, the others as NVIDIA documents them for 615 (2026)."""


def install(folder, version):
    """Put the stand-in and its server into ``folder/version`` and return the program's path."""
    # Imported here, as the daemon has to start fast.
    import shutil
    from pathlib import Path

    place = Path(folder) / version
    place.mkdir()
    # The system's can be run by every user; the one that runs the tests may be in a private home.
    python = shutil.which("python3", path="/usr/bin") or os.path.realpath(sys.executable)
    program, server = place / NAME, place / SERVER
    program.write_text(f"#!{python} -IS\n{PROGRAM}")
    shutil.copy(__file__, place / DAEMON)
    server.write_text(f"#!{python} -IS\nimport signal\nwhile True:\n    signal.pause()\n")
    for path in (program, server):
        path.chmod(0o755)
    return str(program)


CHUNKS, CHUNK_SMS, SMS = 16, 8, 132
ROW = "{:14}{:42}{:>5} {:>5} {:>4} {:>4} {}\n"
HEADS = ROW.format("GPU", "Partition", "free", "used", "free", "used", "clients") + ROW.format(
    "", "", "chunk", "chunk", "SM", "SM", ""
)


class Partitions:
    """The static partitions of a GPU, by id."""

    def __init__(self, uuid):
        self.uuid, self.made, self.chunks, self.clients = uuid, 0, {}, {}

    def free(self):
        return CHUNKS - sum(self.chunks.values())

    def sms(self, ident):
        last = next(reversed(self.chunks)) == ident and not self.free()
        return CHUNK_SMS * self.chunks[ident] + (SMS - CHUNK_SMS * CHUNKS if last else 0)

    def answer(self, words, crowded):
        """Answer a command, or return None if it is none about partitions."""
        if words == ["lspart"]:
            return self.table()
        if words[:1] != ["sm_partition"]:
            return None
        _, verb, uuid, what = words
        if not self.uuid.startswith(uuid):
            return f"Device {uuid} not found\n"
        return self.add(int(what), crowded) if verb == "add" else self.remove(what)

    def add(self, chunks, crowded):
        error = "error CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
        if chunks > self.free():
            return f"Failed to fulfill the requested SM partition of {chunks} chunks, {error}\n"
        if crowded and any(self.clients.values()):
            return "Device has active clients\n"
        self.made += 1
        ident = f"D{self.made}/{'A' * 33}"
        self.chunks[ident], self.clients[ident] = chunks, set()
        return f"{self.uuid}/{ident}\n"

    def remove(self, ident):
        if ident not in self.chunks or self.clients[ident]:
            return f"Partition {ident} is in use or unknown\n"
        del self.chunks[ident], self.clients[ident]
        return ""

    def table(self):
        used, sms = CHUNKS - self.free(), sum(map(self.sms, self.chunks))
        short = self.uuid[:12]
        rows = [ROW.format(short, "-", self.free(), used, SMS - sms, sms, "-")]
        for ident, chunks in self.chunks.items():
            yes = "Yes" if self.clients[ident] else "-"
            rows.append(ROW.format(short, ident, "-", chunks, "-", self.sms(ident), yes))
        return HEADS + "".join(rows)


class Daemon:
    """The control daemon: at most one server, as all its clients are of one user."""

    def __init__(self, pipes, static):
        self.pipes = pipes
        self.partitions = Partitions(os.environ["CUDA_VISIBLE_DEVICES"]) if static else None
        self.version = os.path.basename(os.path.dirname(__file__))
        self.server = None
        self.clients = {}
        self.fault = False
        self.moods = set()
        self.lock = threading.Lock()
        self.measured = self.version == "580"
        self.turn = threading.Lock()
        self.refusals, self.mutes, self.collisions = 0, {}, 0
        self.listed_from = {}

    def listen(self):
        """Listen, give back control once, and serve until ``quit``."""
        path = os.path.join(self.pipes, "control")
        if os.path.exists(path):
            os.unlink(path)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            if self.version != "535":
                with open(os.path.join(self.pipes, f"{NAME}.pid"), "w") as file:
                    file.write(f"{os.getpid()}\n")
            yield
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        with connection, connection.makefile("rw") as stream:
            line = stream.readline()
            if line.startswith("{"):
                told = json.loads(line)
                self.serve_client(told["client"], stream, told.get("partition") or "")
                return
            while line:
                stream.write(self.in_turn(line.split()))
                stream.flush()
                line = stream.readline()

    def in_turn(self, words):
        """Answer a command, unless another one is being answered."""
        if words[0] in ("standin", "quit") or not self.measured:
            return self.answer(words)
        if not self.turn.acquire(blocking=False):
            self.collisions += 1
            if self.collisions % REFUSED == 0:
                return BUSY.decode()
            self.turn.acquire()
        try:
            time.sleep(COMMAND_S)
            if self.refusals > 0:
                self.refusals -= 1
                return BUSY.decode()
            if self.mutes.get(words[0], 0) > 0:
                self.mutes[words[0]] -= 1
                return ""
            return self.answer(words)
        finally:
            self.turn.release()

    def serve_client(self, pid, stream, partition):
        with self.lock:
            if self.fault:
                tell(stream, "807")
                return
            if self.partitions is not None:
                ident = partition.removeprefix(f"{self.partitions.uuid}/")
                if ident not in self.partitions.chunks:
                    tell(stream, "915")
                    return
                self.partitions.clients[ident].add(pid)
            if self.server is None:
                import subprocess  # as late as that, too

                self.server = subprocess.Popen([os.path.join(os.path.dirname(__file__), SERVER)])
            self.clients[pid] = stream
            sms = f" {self.partitions.sms(ident)}" if self.partitions else ""
            if self.measured:
                self.listed_from[pid] = time.monotonic() + LISTED_S[len(self.clients) % 3]
            tell(stream, f"attached{sms}")
        for _ in stream:
            pass
        with self.lock:
            self.clients.pop(pid, None)
            if self.partitions is not None:
                self.partitions.clients.get(ident, set()).discard(pid)
            self.fault = self.fault and bool(self.clients)

    def answer(self, words):
        name, arguments = words[0], words[1:]
        with self.lock:
            if name == "get_server_list":
                return self.listed([self.server.pid] if self.server else [])
            if name == "standin":
                return self.mood(arguments[0])
            if self.partitions is not None:
                found = self.partitions.answer(words, "crowded" in self.moods)
                if found is not None:
                    return found
            if name in self.of_a_server():
                if self.server is None or arguments[:1] != [str(self.server.pid)]:
                    return not_found(name, arguments)
                return self.of_a_server()[name](*arguments)
        if name == "quit":
            self.quit(float(arguments[1]) if arguments[:1] == ["-t"] else None)
        return f'Unknown command "{name}"\n'

    def of_a_server(self):
        commands = {
            "get_client_list": lambda _: self.listed(filter(self.is_listed, self.clients)),
            "terminate_client": self.terminate,
            "shutdown_server": self.shut_down,
        }
        if self.version != "535":
            commands["get_server_status"] = lambda _: "FAULT\n" if self.fault else "ACTIVE\n"
        return commands

    def listed(self, pids):
        if "babble" in self.moods:
            return "lorem ipsum\n"
        return "".join(f"{pid}\n" for pid in pids)

    def is_listed(self, pid):
        return time.monotonic() >= self.listed_from.get(pid, 0.0)

    def mood(self, word):
        self.moods.add(word)
        self.refusals = {"busy": 3, "swamped": 10**9, "idle": 0}.get(word, self.refusals)
        if word == "mute":
            commands = ("get_server_list", "get_client_list", "get_server_status")
            self.mutes = dict.fromkeys(commands, 3)
        if word == "fault":
            self.fault = True
            for stream in self.clients.values():
                tell(stream, "fault")
        return ""

    def terminate(self, _, client):
        stream = self.clients.get(int(client))
        if stream is None or self.moods & {"deaf", "stuck"}:
            return "1\n"
        tell(stream, "810")
        return "0\n"

    def shut_down(self, _, force=""):
        if "stuck" not in self.moods and (force or not self.clients):
            self.end_server()
        return ""

    def end_server(self):
        if self.server is not None:
            self.server.kill()
            self.server.wait()
        for stream in self.clients.values():
            tell(stream, "805")
        self.server, self.clients, self.fault = None, {}, False

    def quit(self, force_after_s):
        begun = time.monotonic()
        while self.clients and (force_after_s is None or time.monotonic() < begun + force_after_s):
            time.sleep(0.05)
        with self.lock:
            self.end_server()
            os._exit(0)


def not_found(name, arguments):
    server = arguments[0] if arguments else "0"
    line = f"Server {server} not found\n"
    return f"{line}Server {server} not found!\n1\n" if name == "terminate_client" else line


def tell(stream, word):
    try:
        stream.write(f"{word}\n")
        stream.flush()
    except OSError:
        pass


def start(pipes, static):
    """Start the daemon, and return once it listens."""
    os.makedirs(pipes, exist_ok=True)
    held = os.open(os.path.join(pipes, "control_lock"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("An instance of this daemon is already running")
        return 1
    ready, done = os.pipe()
    if os.fork():
        os.close(done)
        return 0 if os.read(ready, 1) else 1
    os.setsid()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    daemon = Daemon(pipes, static)
    served = daemon.listen()
    if daemon.measured:
        time.sleep(LISTENS_S)
    next(served)
    os.write(done, b"1")
    os.close(done)
    next(served)
    return 0


def has(option):
    """Return whether this version has an option; static partitions came with 590."""
    version = int(os.path.basename(os.path.dirname(os.path.abspath(__file__))))
    return version >= {"-S": 590, "-p": 615}.get(option, 0)


def explain(options):
    """Print what ``-h`` prints next to other options, and return the exit status."""
    unknown = [option for option in options if option.startswith("-") and not has(option)]
    if unknown and not has_options():
        print("Cannot find MPS control daemon process", file=sys.stderr)
        return 1
    if unknown:
        print("Unrecognized option \0")
    print(BANNER)
    if has_options():
        print(OPTIONS + (STATIC if has("-S") else ""))
    if "-p" in options and not unknown:
        print(MODULES)
    return 0


def has_options():
    """Return whether ``-h`` lists options, and unknown ones are named: 535 does neither."""
    return not os.path.dirname(os.path.abspath(__file__)).endswith("535")


if __name__ == "__main__":
    if sys.argv[1:] == ["-d"] or (has("-S") and sys.argv[1:] == ["-d", "-S"]):
        sys.exit(start(os.environ["CUDA_MPS_PIPE_DIRECTORY"], "-S" in sys.argv))
    sys.exit(explain(sys.argv[1:]))
