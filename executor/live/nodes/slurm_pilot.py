"""The program of a pilot: it has an agent kept on every node of its allocation.

One step a node, so that a node that dies takes nothing else along, and a step that ends is begun
anew. It runs inside the allocation as the script of a job, or beside the service where the
allocation is somebody's own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dovetail.executor.live.nodes.slurm_commands import (
    SlurmError,
    addresses,
    allocation,
)
from dovetail.instances._children import module_command

STEP: Final = "dovetail-agent"
"""The name of the steps."""

_NODE: Final = "dovetail.executor.live.nodes.slurm_node"
_PAUSE_S: Final = 1.0
_MOST_PAUSE_S: Final = 30.0


def keep_agents(job: str, files: Path, node_options: Sequence[str]) -> None:
    """Keep an agent on every node of an allocation until it is over.

    Parameters
    ----------
    job : str
        The allocation.
    files : path
        The service's, which all nodes see.
    node_options : sequence of str
        For the program on each node.
    """
    keepers: dict[str, threading.Thread] = {}
    over = threading.Event()
    while not over.wait(_PAUSE_S if not keepers else _MOST_PAUSE_S):
        try:
            found = allocation(job)
            if found is None:
                over.set()
                continue
            if not found.running:
                continue
            new = [node for node in found.nodes if node not in keepers]
            for node, address in addresses(new).items() if new else ():
                step = _step(job, node, address, files, node_options)
                keepers[node] = threading.Thread(target=_keep, args=(step, over), daemon=True)
                keepers[node].start()
        except SlurmError as error:
            print(f"dovetail: {error}", file=sys.stderr, flush=True)


def _keep(step: Sequence[str], over: threading.Event) -> None:
    pause_s = _PAUSE_S
    while not over.wait(pause_s):
        subprocess.run(step, stdin=subprocess.DEVNULL)
        pause_s = min(2 * pause_s, _MOST_PAUSE_S)


def _step(
    job: str, node: str, address: str, files: Path, node_options: Sequence[str]
) -> Sequence[str]:
    return (
        *("srun", f"--jobid={job}", f"--job-name={STEP}", "--overlap"),
        *("--nodes=1", "--ntasks=1", "--ntasks-per-node=1", f"--nodelist={node}"),
        *("--no-kill", "--kill-on-bad-exit=0", "--cpu-bind=none", "--input=none", "--quiet"),
        *(f"--output={files / job / node}.log", "--open-mode=append"),
        *(*module_command(_NODE), "--node", node, "--pilot", job, "--address", address),
        *("--files", str(files), *node_options),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pilot from the command line; what it does not know is for the nodes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", default=os.environ.get("SLURM_JOB_ID"))
    parser.add_argument("--files", type=Path, required=True)
    options, node_options = parser.parse_known_args(arguments)
    (options.files / options.job).mkdir(parents=True, exist_ok=True)
    keep_agents(options.job, options.files, node_options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
