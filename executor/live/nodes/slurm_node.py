"""The program of a pilot's step on one node: an agent, started again whenever it dies.

It says where its agent answers in a file of the service's directory. Should it die itself, its
agent dies with it, and the step; jobs run on, as far as Slurm lets them, until their lease lapses.
"""

from __future__ import annotations

import argparse
import ctypes
import ipaddress
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dovetail.executor.live.clock import boot_s
from dovetail.executor.live.nodes.slurm_gpus import within_allocation
from dovetail.executor.live.pools.run_files import PASS_THROUGH
from dovetail.executor.live.pools.shim import PR_SET_PDEATHSIG
from dovetail.instances._children import module_command
from dovetail.instances.errors import DovetailError, InputError
from dovetail.instances.files import write_data

_AGENT: Final = "dovetail.executor.live.nodes.serving"
_PAUSE_S: Final = 0.2
_MOST_PAUSE_S: Final = 30.0
_STEADY_S: Final = 60.0
_LAST_WORDS_S: Final = 2.0
_LIBC = ctypes.CDLL(None, use_errno=True)


def own_directory(root: Path, name: str) -> Path:
    """Return a directory of this user's own below one that others may write to.

    Raises
    ------
    InputError
        When somebody else has it.
    """
    directory = root / f"dovetail-{os.geteuid()}-{name}"
    directory.mkdir(parents=True, exist_ok=True, mode=PASS_THROUGH)
    found = directory.lstat()
    if directory.is_symlink() or found.st_uid != os.geteuid():
        raise InputError("belongs to somebody else", "scratch", str(directory))
    return directory


def keep_agent(command: Sequence[str], announcement: Path) -> None:
    """Keep an agent, and say in a file where it answers; it never returns.

    Parameters
    ----------
    command : sequence of str
        Starts the agent, which prints one JSON line when it answers.
    announcement : path
        The file.
    """
    pause_s = _PAUSE_S
    while True:
        begun_s = boot_s()
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, preexec_fn=_die_with_parent
        ) as agent:
            try:
                _announce(agent, announcement)
                agent.wait()
            finally:
                _end(agent)
        steady = boot_s() - begun_s > _STEADY_S
        pause_s = _PAUSE_S if steady else min(2 * pause_s, _MOST_PAUSE_S)
        time.sleep(pause_s)


def _announce(agent: subprocess.Popen[bytes], announcement: Path) -> None:
    line = agent.stdout.readline() if agent.stdout else b""
    if line:
        write_data(json.loads(line), announcement)


def _end(agent: subprocess.Popen[bytes]) -> None:
    """End an agent; what it has not told in time, the next one tells."""
    agent.terminate()
    try:
        agent.wait(_LAST_WORDS_S)
    except subprocess.TimeoutExpired:
        agent.kill()


def _die_with_parent() -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def listens_at(address: str) -> str:
    """Return where an agent listens that others reach at an address.

    A name may mean the loopback on its own machine, so that every interface is listened at.
    """
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return "0.0.0.0"


def main(arguments: Sequence[str] | None = None) -> int:
    """Keep the agent of a node."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--node", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--files", type=Path, required=True)
    parser.add_argument("--token-file", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--pool", required=True)
    parser.add_argument("--scratch")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    root = Path(os.path.expandvars(options.scratch or tempfile.gettempdir()))
    try:
        command = (
            *module_command(_AGENT),
            *("--directory", str(own_directory(root, options.name) / options.node)),
            *("--pool", within_allocation(options.pool, os.environ)),
            *("--listen", f"{listens_at(options.address)}:0", "--address", options.address),
            *("--token-file", options.token_file),
        )
    except DovetailError as error:
        print(f"dovetail: {error}", file=sys.stderr)
        return 2
    keep_agent(command, options.files / f"{options.node}.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
