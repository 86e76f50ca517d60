"""The programs of a Slurm pool, which run Ray's head and Ray on each node of a pilot.

::

    python -m dovetail.cluster.slurm.programs head --files FILES --address ADDRESS:PORT
    python -m dovetail.cluster.slurm.programs node --files FILES --name NAME --pool POOL

``--files`` is a folder in the service's directory, which all nodes share. The head runs on the
service's machine. Its state is on disk, so nodes, agents and jobs survive its restart. The program
of a node is a task of the pilot's step. If it dies, Ray and the agent die with it; jobs keep
running, if Slurm does not end them, until their lease lapses.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from dovetail.cluster.options import OWN_DIRECTORY, OWN_POOL
from dovetail.cluster.ray_finder import unreachable
from dovetail.cluster.slurm.ray_parts import (
    RESOURCE,
    address_towards,
    environment,
    keep,
    ray_start,
)
from dovetail.executor.gpus.nvml import Nvml, NvmlError
from dovetail.executor.pools.runs.files import PASS_THROUGH
from dovetail.executor.system.clock import boot_s
from dovetail.executor.system.directories import LOCK, lock_pid
from dovetail.instances._children import module_command
from dovetail.instances.errors import DovetailError, InputError, UnsupportedError
from dovetail.toolkit.commands import host_and_port

STAY_S: Final = 60.0
"""Seconds for which the head outlives its service, longer than any lease.

After that no job runs; Ray on the nodes of pilots waits for the next head.
"""

ERROR: Final = "dovetail: "
"""The beginning of the last line of a program that has failed."""

_GLOBAL: Final = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
"""Variables with the numbers of device files, which do not depend on cgroups."""

_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


def program(name: str, files: Path) -> Sequence[str]:
    """Return the command of a program."""
    return (*module_command(__spec__.name), name, "--files", str(files))


# The head.


def keep_head(files: Path, address: str, port: int) -> None:
    """Run the head of a pool at an address until its service has ended."""
    env = {
        **environment(files, files, address),
        "RAY_gcs_storage": "rocksdb",
        "RAY_gcs_storage_path": str(files / "gcs"),
    }
    head = ("--head", f"--port={port}", "--no-monitor", "--include-dashboard=false")
    keep(lambda folder: (ray_start(address, folder, *head), env), _served(files.parent / LOCK))


def _served(lock: Path) -> Callable[[], bool]:
    """Return a function that returns whether a service has run within ``STAY_S``."""
    seen_s = boot_s()

    def served() -> bool:
        nonlocal seen_s
        with suppress(OSError, ValueError):
            if Path(f"/proc/{lock_pid(lock)}").exists():
                seen_s = boot_s()
        return boot_s() < seen_s + STAY_S

    return served


# A node.


def own_directory(root: Path, name: str) -> Path:
    """Return a directory of this user within one to which other users may write.

    Raises
    ------
    InputError
        When it belongs to another user.
    """
    directory = root / f"dovetail-{os.geteuid()}-{name}"
    directory.mkdir(parents=True, exist_ok=True, mode=PASS_THROUGH)
    found = directory.lstat()
    if directory.is_symlink() or found.st_uid != os.geteuid():
        raise InputError("belongs to another user", "scratch", str(directory))
    return directory


def keep_node(files: Path, name: str, pool: str, scratch: str | None) -> None:
    """Run Ray on this node, as a part of a service's cluster; never returns.

    Parameters
    ----------
    files : path
        The service's folder.
    name : str
        A name that distinguishes this service's agents from other services' agents.
    pool : str
        The pool of the agent, which gets only the GPUs of its step.
    scratch : str, optional
        The folder of the agent's files; variables in it are expanded on the node.
    """
    node, pilot = os.environ["SLURMD_NODENAME"], os.environ["SLURM_JOB_ID"]
    root = Path(os.path.expandvars(scratch or tempfile.gettempdir()))
    own = {
        OWN_DIRECTORY: str(own_directory(root, name) / node),
        OWN_POOL: within_allocation(pool, os.environ),
    }

    def start(folder: Path) -> tuple[Sequence[str], Mapping[str, str]] | None:
        # Read each time, because a service may have restarted on another machine.
        head = (files / "head").read_text().strip()
        if unreachable(head):
            return None
        address = address_towards(host_and_port(head)[0])
        labels = f"--labels=node={node},pilot={pilot}"
        resources = f"--resources={json.dumps({RESOURCE: 1})}"
        return (
            ray_start(address, folder, f"--address={head}", labels, resources),
            {**environment(files, folder, address), **own},
        )

    keep(start, lambda: True)


# The GPUs of a node.


def within_allocation(pool: str, environment: Mapping[str, str]) -> str:
    """Return an agent's pool, restricted to the GPUs of its step.

    Parameters
    ----------
    pool : str
        The pool (``opening.opener``); a ``cpu`` pool is returned unchanged.
    environment : mapping of str to str
        The environment of the step.

    Raises
    ------
    InputError
        When the pool names a GPU that the step does not have.
    UnsupportedError
        When the step has no GPU, or its GPUs cannot be identified.
    """
    name, _, asked = pool.partition(":")
    if name != "gpu":
        return pool
    allowed = allocated(environment)
    if not asked:
        return f"gpu:{','.join(allowed)}"
    wanted = [part for part in asked.split(",") if part]
    for part in wanted:
        if not any(uuid.startswith(part) for uuid in allowed):
            raise InputError(f"must be a GPU of the allocation, got {part!r}", "--pool")
    return pool


def allocated(environment: Mapping[str, str]) -> Sequence[str]:
    """Return the UUIDs of a step's GPUs.

    Slurm names GPUs by the number of their device file (``/dev/nvidia3``), which may differ from
    the driver's order; a site may set UUIDs instead.

    Raises
    ------
    UnsupportedError
        When the step has no GPU, or one cannot be identified.
    """
    visible = _listed(environment.get(_VISIBLE, ""))
    if visible and all(part.startswith("GPU-") for part in visible):
        return visible
    numbers = next(filter(None, (_listed(environment.get(name, "")) for name in _GLOBAL)), ())
    if not numbers:
        raise UnsupportedError(
            "the allocation has no GPU on this node (request GPUs with gres=gpu:N)"
        )
    try:
        with Nvml() as nvml:
            by_number = {str(nvml.device_file(gpu.uuid)): gpu.uuid for gpu in nvml.gpus()}
    except NvmlError as error:
        raise UnsupportedError(str(error)) from None
    missing = [number for number in numbers if number not in by_number]
    if missing:
        raise UnsupportedError(f"the driver does not know the allocated GPU {missing[0]}")
    return [by_number[number] for number in numbers]


def _listed(text: str) -> Sequence[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a program from the command line."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--files", type=Path, required=True)
    parser = argparse.ArgumentParser()
    programs = parser.add_subparsers(dest="program", required=True)
    head = programs.add_parser("head", parents=[common])
    head.add_argument("--address", type=host_and_port, required=True)
    node = programs.add_parser("node", parents=[common])
    node.add_argument("--name", required=True)
    node.add_argument("--pool", required=True)
    node.add_argument("--scratch")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        match options.program:
            case "head":
                keep_head(options.files, *options.address)
            case "node":
                keep_node(options.files, options.name, options.pool, options.scratch)
    except (DovetailError, OSError) as error:
        print(f"{ERROR}{error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
