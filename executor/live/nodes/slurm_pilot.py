"""The program of a pilot: a step on all nodes of its allocation, in which Ray is kept.

The step goes on without a node that dies (``--no-kill``), and is begun anew when it ends itself.
The program runs inside the allocation as the script of a job, or beside the service where the
allocation is somebody's own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dovetail.executor.live.nodes.slurm_commands import SlurmError, allocation
from dovetail.instances._children import module_command

STEP: Final = "dovetail-nodes"
"""The name of the step."""

_NODE: Final = "dovetail.executor.live.nodes.slurm_node"
_PAUSE_S: Final = 1.0
_MOST_PAUSE_S: Final = 30.0


def keep_step(job: str, files: Path, node_options: Sequence[str]) -> None:
    """Keep a step in an allocation until that is over.

    Parameters
    ----------
    job : str
        The allocation.
    files : path
        The service's, which all nodes see.
    node_options : sequence of str
        For the program on each node.
    """
    pause_s = _PAUSE_S
    while True:
        try:
            found = allocation(job)
            if found is None:
                return
            if found.running:
                step = _step(job, len(found.nodes), files, node_options)
                subprocess.run(step, stdin=subprocess.DEVNULL)
                pause_s = min(2 * pause_s, _MOST_PAUSE_S)
        except SlurmError as error:
            print(f"dovetail: {error}", file=sys.stderr, flush=True)
        time.sleep(pause_s)


def _step(job: str, nodes: int, files: Path, node_options: Sequence[str]) -> Sequence[str]:
    return (
        *("srun", f"--jobid={job}", f"--job-name={STEP}", "--overlap"),
        *(f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"),
        *("--no-kill", "--kill-on-bad-exit=0", "--cpu-bind=none", "--input=none", "--quiet"),
        *(f"--output={files}/pilot-{job}-%n.log", "--open-mode=append"),
        *(*module_command(_NODE), "--files", str(files), *node_options),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pilot from the command line; what it does not know is for the nodes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", default=os.environ.get("SLURM_JOB_ID"))
    parser.add_argument("--files", type=Path, required=True)
    options, node_options = parser.parse_known_args(arguments)
    keep_step(options.job, options.files, node_options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
