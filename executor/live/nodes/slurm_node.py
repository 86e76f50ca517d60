"""The program of a pilot's step on one node: Ray, which joins the head of the service.

Should it die itself, Ray dies with it, and so does the agent; jobs run on, as far as Slurm lets
them, until their lease lapses.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from dovetail.executor.live.nodes.ray_agent import OWN_DIRECTORY, OWN_POOL
from dovetail.executor.live.nodes.ray_finding import host_and_port, unreachable
from dovetail.executor.live.nodes.slurm_gpus import within_allocation
from dovetail.executor.live.nodes.slurm_ray import (
    RESOURCE,
    address_towards,
    environment,
    keep,
    ray_start,
)
from dovetail.executor.live.pools.run_files import PASS_THROUGH
from dovetail.instances.errors import DovetailError, InputError


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


def keep_node(files: Path, node: str, pilot: str, own: Mapping[str, str]) -> None:
    """Have this node in the cluster of a service; it never returns.

    Parameters
    ----------
    files : path
        The service's, which all nodes see.
    node, pilot : str
        What Slurm calls them.
    own : mapping of str to str
        Variables for its agent.
    """

    def start(folder: Path) -> tuple[Sequence[str], Mapping[str, str]] | None:
        # A service that was started on another machine has its head there.
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Keep the Ray of a node."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--pool", required=True)
    parser.add_argument("--scratch")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    root = Path(os.path.expandvars(options.scratch or tempfile.gettempdir()))
    node, pilot = os.environ["SLURMD_NODENAME"], os.environ["SLURM_JOB_ID"]
    try:
        own = {
            OWN_DIRECTORY: str(own_directory(root, options.name) / node),
            OWN_POOL: within_allocation(options.pool, os.environ),
        }
        keep_node(options.files, node, pilot, own)
    except DovetailError as error:
        print(f"dovetail: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
