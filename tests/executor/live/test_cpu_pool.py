"""The pool of processor cores: the contract, and shares that the kernel keeps."""

import os
from pathlib import Path

import pytest

from dovetail.executor.live.pools.cpu import CpuPool

from .local_runs import python
from .pool_contract import Commands, PoolContract

TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processor cores")


@TWO_CORES
class TestContract(PoolContract):
    commands = Commands(
        brief=("sh", "-c", "echo started; sleep 0.3"),
        failing=("sh", "-c", "echo started; sleep 0.3; exit 3"),
        endless=("sh", "-c", "echo started; exec sleep 600"),
        deaf=python(
            "import signal, time\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "print('started', flush=True)\n"
            "time.sleep(600)"
        ),
    )

    def make(self, directory: Path) -> CpuPool:
        return CpuPool(directory)
