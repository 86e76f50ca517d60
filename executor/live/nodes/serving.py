r"""An agent as a program: HTTP over TCP, for those who know the token.

::

    python -m dovetail.executor.live.nodes.serving --directory DIR --pool cpu \
        --listen ADDRESS:PORT --token-file FILE

It prints one JSON line, ``{"address": ..., "port": ...}``, as soon as it answers. The standard
library's server is enough: one controller asks, on a few connections that stay open.
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Final

from dovetail.executor.live.nodes.agent import Agent
from dovetail.executor.live.nodes.calls import answer_of
from dovetail.executor.live.nodes.hosting import hosted
from dovetail.executor.live.nodes.ray_finding import host_and_port
from dovetail.executor.live.pools.run_files import KEEP_S
from dovetail.instances.errors import DovetailError, InputError

MOST_BYTES: Final = 64 << 20
"""Of one request: some thousand parts with their environments."""

MOST_CONNECTIONS: Final = 32
"""More than a controller and those who read logs need."""

_PATIENCE_S: Final = 60.0


def read_token(path: Path, named: str = "--token-file") -> str:
    """Return the token that a file holds.

    Parameters
    ----------
    path : path
        The file.
    named : str
        What names it, for messages.

    Raises
    ------
    InputError
        When the file cannot be read, holds no token, or is open to others.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
        mode = path.stat().st_mode
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", named, str(path)) from None
    except ValueError:
        token, mode = "", 0o600
    if len(token) < 16 or not token.isprintable() or " " in token:
        rule = "must hold a token of 16 or more ASCII characters (openssl rand -hex 16)"
        raise InputError(rule, named, str(path))
    if mode & 0o077:
        raise InputError("must be readable by its owner only (chmod 600)", named, str(path))
    return token


class AgentServer(ThreadingHTTPServer):
    """Serves one agent.

    Parameters
    ----------
    agent : Agent
        Who answers.
    token : str
        Of those who may ask.
    address : tuple of str and int
        Where it listens; port 0 takes a free one.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, agent: Agent, token: str, address: tuple[str, int]) -> None:
        self.agent, self.token = agent, token.encode()
        self._open: dict[socket.socket, bool] = {}
        self._open_lock = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def process_request(self, request: object, client_address: object) -> None:
        """Answer a connection in a thread of its own, while there are not too many."""
        assert isinstance(request, socket.socket)
        if self._let_in(request):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: object, client_address: object) -> None:
        """Answer a connection until it ends."""
        assert isinstance(request, socket.socket)
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._open_lock:
                self._open.pop(request, None)

    def note_known(self, request: socket.socket) -> None:
        """Take in that who has a connection knows the token."""
        with self._open_lock:
            if request in self._open:
                self._open[request] = True

    def _let_in(self, request: socket.socket) -> bool:
        """Note a connection; where there are too many, the oldest of a stranger is ended for it."""
        with self._open_lock:
            if len(self._open) >= MOST_CONNECTIONS:
                stranger = next((one for one, known in self._open.items() if not known), None)
                if stranger is None:
                    return False
                del self._open[stranger]
                with suppress(OSError):
                    stranger.shutdown(socket.SHUT_RDWR)
            self._open[request] = False
            return True

    def handle_error(self, request: object, client_address: object) -> None:
        """Let a broken connection be: whoever asked asks again."""


class _RefusedError(DovetailError):
    def __init__(self, status: int, told: str) -> None:
        self.status = status
        super().__init__(told)


class _Handler(BaseHTTPRequestHandler):
    server: AgentServer
    protocol_version = "HTTP/1.1"
    timeout = _PATIENCE_S
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_POST(self) -> None:
        try:
            self._require_token()
            if self.path not in ("/exchange", "/log"):
                raise _RefusedError(404, "there is nothing here")
            body = self.rfile.read(self._length()).decode(errors="replace")
            told = answer_of(self.server.agent, self.path[1:], body)
        except _RefusedError as error:
            self._write(error.status, _told(error))
            return
        status = 200 if "body" in told else 409 if "fenced" in told else 500
        text = told["body"] if status == 200 else json.dumps({"error": next(iter(told.values()))})
        self._write(status, text.encode())

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is no request of ours; the library's page names its version."""
        self._write(code, _told(_RefusedError(code, message or "that cannot be understood")))

    def _write(self, status: int, body: bytes) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status != 200:
            # What a refused request holds is not read.
            self.close_connection = True
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _require_token(self) -> None:
        given = self.headers.get("Authorization", "").encode(errors="replace")
        if not hmac.compare_digest(given, b"Bearer " + self.server.token):
            raise _RefusedError(401, "the token is not this agent's")
        self.server.note_known(self.connection)

    def _length(self) -> int:
        try:
            length = int(self.headers["Content-Length"])
        except (TypeError, ValueError):
            raise _RefusedError(411, "the length of the request is missing") from None
        if not 0 <= length <= MOST_BYTES:
            raise _RefusedError(413, f"a request has at most {MOST_BYTES} bytes")
        return length

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: what others send is no concern of the agent's own log."""


def _told(error: Exception) -> bytes:
    told = " ".join(str(error).split()) or type(error).__name__
    return json.dumps({"error": told}).encode()


def serve(
    directory: Path,
    pool: str,
    listen: tuple[str, int],
    token: str,
    address: str | None = None,
    keep_s: float = KEEP_S,
) -> None:
    """Keep the jobs of this node until SIGTERM or SIGINT; its address is printed as JSON.

    Parameters
    ----------
    directory : path
        The agent's state directory.
    pool : str
        As ``hosting.opener`` has it.
    listen : tuple of str and int
        Where it listens.
    token : str
        Of its controller.
    address : str, optional
        Where other nodes reach this one; by default where it listens.
    keep_s : float
        Seconds for which logs of ended runs are kept.

    Raises
    ------
    InputError
        When it cannot listen there, or there is no such pool.
    """
    with served(directory, pool, listen, token, address, keep_s) as server:
        _end_by_signals(server)
        port = server.server_address[1]
        facts = {"address": server.agent.address, "port": port, "pid": os.getpid()}
        print(json.dumps(facts), flush=True)
        server.serve_forever()


@contextmanager
def served(
    directory: Path,
    pool: str,
    listen: tuple[str, int],
    token: str,
    address: str | None = None,
    keep_s: float = KEEP_S,
) -> Iterator[AgentServer]:
    """Have the server of an agent that keeps the jobs of this node; parameters as of ``serve``."""
    with hosted(directory, pool, address or _reached_at(listen[0]), keep_s) as agent:
        try:
            server = AgentServer(agent, token, listen)
        except OSError as error:
            told = error.strerror or str(error)
            where = f"{listen[0]}:{listen[1]}"
            raise InputError(f"cannot listen: {told}", "--listen", where) from None
        try:
            yield server
        finally:
            server.server_close()


def _reached_at(host: str) -> str:
    return socket.gethostname() if host in ("", "0.0.0.0", "::") else host


def _end_by_signals(server: AgentServer) -> None:
    def ended(number: int, frame: FrameType | None) -> None:
        # It waits for the loop, which is in the thread that is interrupted.
        threading.Thread(target=server.shutdown).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ended)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an agent from the command line."""
    parser = argparse.ArgumentParser(prog="dovetail agent", description=main.__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--pool", default="gpu")
    parser.add_argument("--listen", type=host_and_port, required=True, metavar="ADDRESS:PORT")
    parser.add_argument("--address")
    parser.add_argument("--token-file", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        token = read_token(options.token_file)
        serve(options.directory, options.pool, options.listen, token, options.address)
    except DovetailError as error:
        print(f"dovetail: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
