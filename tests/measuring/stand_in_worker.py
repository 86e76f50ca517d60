"""A STAND-IN for a worker on a GPU: its kernels run in an interpreter, no figure is one of a GPU.

Real are the worker's session and loops, the interception library, and its scheduler. Made up are
the GPU and its driver, one for each process (``tests.isolation.made_up_gpu``), and MPS. It is run
like ``worker.py``, and is its own workload; ``STAND_IN_TASKS`` names a file with the kernels.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

from dovetail.measuring.workloads.worker import imported
from tests.isolation.made_up_client import Client
from tests.isolation.made_up_job import attach

KIND, FAMILY, BATCH = "training", "stand-in", {"tiny": 1}


def prepare(device, size, seed):
    """Return a function that launches each kernel, and checks the memory that it leaves."""
    tasks = pickle.loads(Path(os.environ["STAND_IN_TASKS"]).read_bytes())
    client = Client(seed)
    functions = [client.load(task.image) for task in tasks]

    def step():
        for function, task in zip(functions, tasks, strict=True):
            if not client.run(function, task):
                raise ValueError(f"{task.name} left wrong memory")

    return step


def main():
    session, devices = imported("session"), imported("devices")

    class StandIn(devices.WorkloadDevice):
        def about(self):
            return {**super().about(), "sms": 132, "mps": True, "cublas": "130100"}

    session.open_device = lambda name: StandIn()
    attach()
    session.main([__file__, *sys.argv[1:]])


if __name__ == "__main__":
    main()
