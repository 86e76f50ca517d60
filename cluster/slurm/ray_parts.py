"""Ray in a Slurm pool: the common parts of its head and its nodes.

Each is a ``ray start`` that is restarted whenever it ends. The secrets are in a folder of the
service's directory that only its user can read: Ray's token, and an authority that signs a
certificate for the head and each node (the nodes from Slurm are not known in advance).
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

from dovetail.cluster.options import KILLS
from dovetail.executor.pools.shim.kernel import PR_SET_PDEATHSIG
from dovetail.executor.system.clock import boot_s
from dovetail.instances._children import module_command
from dovetail.instances.errors import DovetailError, UnsupportedError

RESOURCE: Final = "dovetail"
"""A Ray resource that the nodes of pilots have, but not the head."""

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
_TERMINATE_S: Final = 5.0
_OPENSSL_S: Final = 60.0
_MOST_ROOT: Final = 23
"""The most letters of the parent of Ray's folder, as socket paths are limited to 107."""

_LIBC = ctypes.CDLL(None, use_errno=True)


def address_towards(host: str) -> str:
    """Return the address from which this machine reaches ``host``.

    Raises
    ------
    UnsupportedError
        When there is no route to it.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.connect((host, 9))
            address = str(one.getsockname()[0])
    except OSError as error:
        raise UnsupportedError(f"{host} cannot be reached: {error.strerror}") from None
    # Ray replaces 127.0.0.1 with the machine's address in its network, which others might reach.
    return "127.0.0.2" if address == "127.0.0.1" else address


# Secrets.


def make_secrets(files: Path) -> None:
    """Create the token and the authority of a pool, unless they exist.

    Raises
    ------
    UnsupportedError
        When ``openssl`` fails.
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
    """Return the environment of Ray on a machine, without the settings of any other Ray.

    Parameters
    ----------
    files : path
        The folder of the pool's secrets.
    folder : path
        The folder of the machine's certificate, which is created if it does not exist.
    address : str
        The machine's address.

    Raises
    ------
    UnsupportedError
        When ``openssl`` fails.
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
    """Return the command that runs Ray on a machine, on free ports, until it is terminated.

    Parameters
    ----------
    address : str
        The machine's address.
    folder : path
        The folder of Ray's files, closed to other users: Ray makes its files world-writable.
    arguments : str
        Further arguments of ``ray start``.
    """
    return (
        *(*module_command("ray.scripts.scripts"), "start", "--block"),
        *(f"--node-ip-address={address}", f"--temp-dir={folder / 'r'}"),
        *("--num-cpus=0", "--num-gpus=0", "--object-store-memory=80000000"),
        *("--min-worker-port=0", "--max-worker-port=0"),
        *("--include-log-monitor=false", "--disable-usage-stats", *arguments),
    )


def keep(
    start: Callable[[Path], tuple[Sequence[str], Mapping[str, str]] | None],
    wanted: Callable[[], bool],
) -> None:
    """Run Ray, and restart it whenever it ends, until it is no longer wanted.

    Parameters
    ----------
    start : callable
        Takes a folder for Ray's files, and returns the command and the environment, or None if it
        cannot be started now.
    wanted : callable
        Returns whether Ray is still wanted.
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
    """Run Ray until it ends, is no longer wanted, or this process ends."""
    ray = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)
    try:
        while wanted() and ray.poll() is None:
            time.sleep(_LOOK_S)
    finally:
        ray.terminate()
        try:
            ray.wait(_TERMINATE_S)
        except subprocess.TimeoutExpired:
            ray.kill()
            ray.wait()


def _die_with_parent() -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
