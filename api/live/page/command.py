"""``dovetail page``: the page of a service in one's own browser."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from dovetail.instances.errors import DovetailError, InputError
from dovetail.instances.plugins import require_package
from dovetail.toolkit.commands import Command, option, whole

PAGE: Final = Command(
    "page",
    "Show the page of the live service in a browser on this machine.",
    "dovetail.live.page.command:page",
    (
        option("--port N", "port on 127.0.0.1 (default: a free one)", whole(1, 65_536)),
        option("--open", "open the link in the browser"),
        option("--ssh HOST", "the service is on this host, as ssh names it"),
        option(
            "--remote-socket PATH",
            "with --ssh: socket of the service there (default: /run/dovetail/api.sock)",
        ),
    ),
)

_LOOK_S: Final = 0.1
_END_S: Final = 5.0


class TunnelError(DovetailError):
    """ssh did not connect."""


def page(options: Namespace) -> int:
    """Serve the page until Ctrl-C."""
    from dovetail.live.client import Client
    from dovetail.live.places import ROOT_SOCKET, find_service

    for package in ("fastapi", "uvicorn"):
        require_package(package, "live", "dovetail page")
    if options.ssh is None:
        if options.remote_socket is not None:
            raise InputError("has an effect only with --ssh", "--remote-socket")
        name = find_service()
        if name.startswith(("http://", "https://")):
            rule = f"must be a socket, got {name}: open that in a browser, and log in with a token"
            raise InputError(rule, "DOVETAIL_SERVICE")
        _serve(options, Path(name), name, Client)
        return 0
    remote = options.remote_socket or str(ROOT_SOCKET)
    with tunnel(options.ssh, remote) as here:
        _serve(options, here, f"{options.ssh}:{remote}", Client)
    return 0


def _serve(options: Namespace, service: Path, name: str, client: type) -> None:
    from dovetail.live.page.forwarding import ADDRESS, Forwarding, QuietServer, listening
    from dovetail.live.places import NoServiceError
    from dovetail.live.printing import tell
    from dovetail.live.serving import ended_by_signals

    try:
        with client(str(service)) as asking:
            asking.service()
    except NoServiceError:
        raise NoServiceError(f"no service answers at {name}") from None
    try:
        socket = listening(options.port or 0)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise InputError(f"cannot listen: {why}", "--port", ADDRESS) from None
    with socket:
        port = socket.getsockname()[1]
        answering = Forwarding(service, port)
        running = QuietServer(answering)

        def stop() -> None:
            answering.ending = running.should_exit = True

        with ended_by_signals(stop):
            text = f"the page of {name}: {answering.link}\nit is yours alone; Ctrl-C ends it"
            facts = {"service": name, "port": port, "link": answering.link}
            tell(facts, text, options.json)
            _flush()
            with opened(answering.link) if options.open else nullcontext():
                running.run([socket])


@contextmanager
def opened(link: str) -> Iterator[None]:
    """Open a link in the browser, by a private file: others can read a browser's arguments."""
    import webbrowser

    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        file = Path(folder) / "page.html"
        file.write_text(f'<meta http-equiv="refresh" content="0; url={link}">\n')
        webbrowser.open(file.as_uri())
        yield


def _flush() -> None:
    import sys

    sys.stdout.flush()


@contextmanager
def tunnel(host: str, remote: str) -> Iterator[Path]:
    """Forward a socket of a host to one in a private folder, which is yielded.

    Raises
    ------
    TunnelError
        When ssh is not installed, or does not connect.
    """
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        here = Path(folder) / "api.sock"
        options = ("-o", "ExitOnForwardFailure=yes", "-o", "StreamLocalBindMask=0177")
        command = ["ssh", "-N", *options, "-L", f"{here}:{remote}", "--", host]
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=False
            )
        except OSError as error:
            raise TunnelError(f"ssh cannot be run: {error.strerror}") from None
        try:
            _await_tunnel(process, here, host)
            yield here
        finally:
            process.terminate()
            try:
                process.communicate(timeout=_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def _await_tunnel(process: subprocess.Popen[bytes], here: Path, host: str) -> None:
    """Return once the socket is there; the user may be asked for a password meanwhile."""
    while not os.path.lexists(here):
        if process.poll() is not None:
            said = (process.stderr.read() if process.stderr else b"").decode(errors="replace")
            lines = said.strip().splitlines() or [f"ssh ended with status {process.returncode}"]
            raise TunnelError(f"ssh {host}: {lines[-1].strip()}")
        time.sleep(_LOOK_S)
