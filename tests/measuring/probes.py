"""A made-up GPU on which shares are probed: a real pool and real processes, MPS a stand-in."""

from contextlib import contextmanager

import pytest

from dovetail.executor.pools.runs.submissions import PoolSubmissions
from dovetail.measuring.split_measuring import Probe


@contextmanager
def probed(python):
    """Return a probe of a GPU with this Python."""
    pytest.importorskip("pynvml", reason="needs the extra live")
    from tests.executor.gpus.gpu_machine import gpu_machine
    from tests.executor.gpus.injected_nvml import injected

    with (
        injected() as library,
        gpu_machine(library) as machine,
        PoolSubmissions(machine.pool()) as submissions,
    ):
        yield Probe("Made-up GPU", "580.1", 132, python, submissions, machine.names[0])
