"""The program of a pilot's step on one node: Ray, which joins the head of the service.

Should it die itself, Ray dies with it, and so does the agent; jobs run on, as far as Slurm lets
them, until their lease lapses.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from dovetail.executor.live.nodes.ray_agent import OWN, OwnPlan
from dovetail.executor.live.nodes.ray_finding import host_and_port, unreachable
from dovetail.executor.live.nodes.slurm_gpus import within_allocation
from dovetail.executor.live.nodes.slurm_ray import (
    RESOURCE,
    address_towards,
    die_with_parent,
    environment,
    keep,
    own_directory,
    ray_start,
)
from dovetail.instances.errors import DovetailError


def keep_node(
    files: Path, address: str, labels: Mapping[str, str], own: OwnPlan, folder: Path
) -> None:
    """Have this node in the cluster of a service; it never returns.

    Parameters
    ----------
    files : path
        The service's, which all nodes see.
    address : str
        Where Slurm reaches this node.
    labels : mapping of str to str
        Of the node in Ray.
    own : OwnPlan
        What its agent cannot know from the service.
    folder : path
        For Ray's files.
    """
    marks = ",".join(f"{name}={value}" for name, value in labels.items())

    def start() -> subprocess.Popen[bytes] | None:
        # Another service of the same directory may have its head elsewhere.
        head = (files / "head").read_text().strip()
        if unreachable(head):
            return None
        ours = address_towards(host_and_port(head)[0], address)
        return subprocess.Popen(
            ray_start(
                *(ours, folder, f"--address={head}", f"--labels={marks}"),
                f"--resources={json.dumps({RESOURCE: 1})}",
            ),
            env={**environment(files, folder, ours), OWN: own.model_dump_json()},
            stdin=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )

    keep(start, lambda: True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Keep the Ray of a node."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--node", required=True)
    parser.add_argument("--pilot", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--files", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--pool", required=True)
    parser.add_argument("--scratch")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    root = Path(os.path.expandvars(options.scratch or tempfile.gettempdir()))
    labels = {"node": options.node, "pilot": options.pilot}
    try:
        own = OwnPlan(
            directory=str(own_directory(root, options.name) / options.node),
            pool=within_allocation(options.pool, os.environ),
        )
        with tempfile.TemporaryDirectory(
            prefix="dove-", dir="/tmp", ignore_cleanup_errors=True
        ) as folder:
            keep_node(options.files, options.address, labels, own, Path(folder))
    except DovetailError as error:
        print(f"dovetail: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
