"""Ray in a Slurm pool: what its head and the node of a pilot have in common.

Both are a ``ray start`` that is started again whenever it ends. Their secrets are in a folder of
the service's directory, which only its user can read: Ray's token, and an authority that signs a
certificate for each of them, since the nodes that Slurm will lend are not known in advance.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from dovetail.executor.nodes.ray_agent import KILLS
from dovetail.executor.pools.shim.kernel import PR_SET_PDEATHSIG
from dovetail.executor.system.clock import boot_s
from dovetail.instances._children import module_command
from dovetail.instances.errors import DovetailError, UnsupportedError

RESOURCE: Final = "dovetail"
"""Of Ray: what the nodes of pilots have, and the head has not."""

_SETTINGS: Final = {
    KILLS: "false",
    "RAY_AUTH_MODE": "token",
    "RAY_USE_TLS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
_PAUSE_S: Final = 0.2
_MOST_PAUSE_S: Final = 5.0
_STEADY_S: Final = 60.0
_LOOK_S: Final = 0.5
_LAST_WORDS_S: Final = 5.0
_OPENSSL_S: Final = 60.0
_MOST_ROOT: Final = 25
"""Letters: below it Ray has sockets, whose paths have 107 at most."""

_LIBC = ctypes.CDLL(None, use_errno=True)


def address_towards(host: str) -> str:
    """Return the address from which this machine reaches ``host``.

    Raises
    ------
    UnsupportedError
        When there is no way there.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.connect((host, 9))
            address = str(one.getsockname()[0])
    except OSError as error:
        raise UnsupportedError(f"{host} cannot be reached: {error.strerror}") from None
    # Ray takes the first one for the machine's address in its network, which others might reach.
    return "127.0.0.2" if address == "127.0.0.1" else address


# Secrets.


def make_secrets(files: Path) -> None:
    """Make the token and the authority of a pool, unless they are there.

    Raises
    ------
    UnsupportedError
        When ``openssl`` cannot make them.
    """
    with suppress(FileExistsError):
        file = os.open(files / "token", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "w") as stream:
            stream.write(secrets.token_hex(32))
    if not (files / "ca.crt").exists():
        _openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650"),
            *("-subj", "/CN=dovetail", "-keyout", str(files / "ca.key")),
            *("-out", str(files / "ca.crt")),
        )


def environment(files: Path, folder: Path, address: str) -> Mapping[str, str]:
    """Return the environment of all of Ray on a machine, without the settings of another Ray.

    Parameters
    ----------
    files : path
        Where the secrets of the pool are.
    folder : path
        Where the machine's certificate is, or is made.
    address : str
        The machine's own.

    Raises
    ------
    UnsupportedError
        When ``openssl`` cannot make a certificate.
    """
    certificate, key = folder / f"{address}.crt", folder / f"{address}.key"
    if not certificate.exists():
        request, names = folder / f"{address}.csr", folder / f"{address}.names"
        names.write_text(f"subjectAltName=IP:{address}\n")
        _openssl(
            *("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=ray"),
            *("-keyout", str(key), "-out", str(request)),
        )
        _openssl(
            *("x509", "-req", "-in", str(request), "-extfile", str(names), "-days", "3650"),
            *("-CA", str(files / "ca.crt"), "-CAkey", str(files / "ca.key")),
            *("-set_serial", str(secrets.randbits(63)), "-out", str(certificate)),
        )
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        **_SETTINGS,
        "RAY_AUTH_TOKEN_PATH": str(files / "token"),
        "RAY_TLS_CA_CERT": str(files / "ca.crt"),
        "RAY_TLS_SERVER_CERT": str(certificate),
        "RAY_TLS_SERVER_KEY": str(key),
    }


def _openssl(*arguments: str) -> None:
    try:
        done = subprocess.run(
            ["openssl", *arguments], capture_output=True, text=True, timeout=_OPENSSL_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(f"openssl cannot be run: {error}") from None
    if done.returncode:
        raise UnsupportedError(f"openssl: {' '.join(done.stderr.split())}")


# Ray itself.


def ray_start(address: str, folder: Path, *arguments: str) -> Sequence[str]:
    """Return the command that runs Ray on a machine until it is ended.

    Ports are free ones, as others may have Ray there, too.

    Parameters
    ----------
    address : str
        The machine's own.
    folder : path
        For Ray's files.
    arguments : str
        Further ones.
    """
    return (
        *(*module_command("ray.scripts.scripts"), "start", "--block"),
        *(f"--node-ip-address={address}", f"--temp-dir={folder}"),
        *("--num-cpus=0", "--num-gpus=0", "--object-store-memory=80000000"),
        *("--min-worker-port=0", "--max-worker-port=0"),
        *("--include-log-monitor=false", "--disable-usage-stats", *arguments),
    )


def keep(
    start: Callable[[Path], tuple[Sequence[str], Mapping[str, str]] | None],
    wanted: Callable[[], bool],
) -> None:
    """Run Ray, again whenever it has ended, until it is not wanted any more.

    Parameters
    ----------
    start : callable
        Returns the command that runs it with files in a folder, and its environment; None: it
        cannot be, now.
    wanted : callable
        Asked again and again.
    """
    pause_s = _PAUSE_S
    while wanted():
        begun_s = boot_s()
        try:
            with tempfile.TemporaryDirectory(
                prefix="dove-", dir=_short_root(), ignore_cleanup_errors=True
            ) as folder:
                if (started := start(Path(folder))) is None:
                    time.sleep(_LOOK_S)
                    continue
                _run(*started, wanted)
        except (DovetailError, OSError) as error:  # a disk may be full for a while
            print(f"dovetail: {error}", file=sys.stderr, flush=True)
        steady = boot_s() - begun_s > _STEADY_S
        pause_s = _PAUSE_S if steady else min(2 * pause_s, _MOST_PAUSE_S)
        time.sleep(pause_s)


def _short_root() -> str:
    root = tempfile.gettempdir()
    return root if len(root) <= _MOST_ROOT else "/tmp"


def _run(command: Sequence[str], env: Mapping[str, str], wanted: Callable[[], bool]) -> None:
    """Run Ray until it ends or is not wanted; should this process end, Ray does so with it."""
    ray = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)
    try:
        while wanted() and ray.poll() is None:
            time.sleep(_LOOK_S)
    finally:
        ray.terminate()
        try:
            ray.wait(_LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            ray.kill()
            ray.wait()


def _die_with_parent() -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
