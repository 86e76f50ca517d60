"""Device memory: limits, the cost of a context, and PyTorch's allocator."""

import os
import sys
from pathlib import Path

import pytest

from dovetail.executor.mps.processes import MEMORY
from dovetail.executor.pools.gpu import RESERVE_MIB

from .bench import error_text

OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY (cuda.h)."""

LIMIT_MIB = 4096
LIMIT = {MEMORY: f"0={LIMIT_MIB}M"}
TORCH = Path(__file__).with_name("torch_client.py")


@pytest.mark.check("0=<MiB>M binds every process on its own", usual_s=8)
def test_memory_limit(bench, daemon):
    """The memory limit by ordinal and UUID, per process; what cuMemGetInfo shows."""
    twice, half = f"mib={2 * LIMIT_MIB}", f"mib={LIMIT_MIB // 2}"
    by_uuid = {MEMORY: f"{bench.gpu.uuid}={LIMIT_MIB}M"}
    found = [
        taken(daemon.client("allocate", twice, name="by ordinal", more=LIMIT)),
        taken(daemon.client("allocate", twice, name="by UUID", more=by_uuid)),
    ]
    pair = [daemon.client("allocate", half, name=f"{name} of two", more=LIMIT) for name in "ab"]
    pair = [taken(client) for client in pair]
    bench.saw(by_ordinal=found[0], by_UUID=found[1], half_of_it_twice=pair)
    assert [one["error"] for one in found] == [OUT_OF_MEMORY] * 2
    assert [one["error"] for one in pair] == [None] * 2


def taken(client):
    """Return how far a client came that takes memory by pieces."""
    ready = client.ready()
    mib = client.wait_or_skip("taken")["mib"]
    client.wait("memory", "error")
    error = client.error()
    seen = {key: ready[key] for key in ("total_mib", "free_mib")}
    return {"mib": mib, "text": error_text(error), "error": error and error["number"], **seen}


@pytest.mark.check(f"{RESERVE_MIB:.0f} MiB are enough", usual_s=4)
def test_context_cost(bench):
    """MiB that the driver, a context and the server take in addition to a job's own memory.

    The context counts against the limit of its job, the rest has to be kept free.
    """

    def used():
        found = bench.nvml.read(bench.gpu.uuid).used_mib
        return pytest.skip("NVML does not tell the memory in use") if found is None else found

    mib = [used()]
    daemon = bench.daemon()
    for _ in range(2):
        daemon.client("idle").ready()
        mib.append(used())
    first, second = mib[1] - mib[0], mib[2] - mib[1]
    by_nvml = bench.nvml.processes(bench.gpu.uuid).get(daemon.server())
    bench.saw(first_and_server=first, second=second, before=mib[0], server_by_NVML=by_nvml)
    assert mib[0] + first - second <= RESERVE_MIB


@pytest.mark.check("it binds", usual_s=12)
def test_expandable(bench, daemon):
    """The memory limit with PyTorch's expandable_segments."""
    client = torch(bench, daemon.environment() | LIMIT, "expandable", f"mib={2 * LIMIT_MIB}")
    event = client.wait_or_skip("taken", within_s=90)
    bench.saw(limit_mib=LIMIT_MIB, **event)
    assert event["mib"] <= LIMIT_MIB


@pytest.mark.check("it does", usual_s=10)
def test_allocator(bench, daemon):
    """Whether PyTorch's allocator hands the block of NaN out again."""
    event = torch(bench, daemon.environment(), "reuse").wait_or_skip("reuse", within_s=90)
    bench.saw(**event)
    assert event["same"] == event["of"]


def torch(bench, environment, *words):
    """Start the client that asks PyTorch's allocator."""
    python = os.environ.get("DOVETAIL_TORCH_PYTHON") or sys.executable
    return bench.start("PyTorch", words, environment, program=[python, "-I", str(TORCH)])
