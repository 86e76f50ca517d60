"""What newer drivers hold: memory by control groups (615), SMs by static partitions (CUDA 13.1).

None of it has run on a GPU yet. A driver without it skips these tests.
"""

import os
import sys

import pytest

from dovetail.executor.mps.control import MpsError
from dovetail.executor.mps.partitions import PARTITION
from dovetail.executor.mps.program import modes
from dovetail.executor.pools.runs.memory_groups import MemoryGroups, find_memory_groups

from .bench import CLIENT, alone, error_text, together
from .test_memory import OUT_OF_MEMORY, taken

LIMIT_MIB = 4096
INVALID_RESOURCE_CONFIGURATION = 915
"""CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION (cuda.h)."""

ENTERS = ("sh", "-c", 'echo 0 > "$0" && exec "$@"')


@pytest.fixture
def groups(bench):
    """Control groups with limits on the GPU's memory."""
    found = find_memory_groups(f"dovetail-proof-{os.getpid()}", bench.nvml, [bench.gpu.uuid])
    if not isinstance(found, MemoryGroups):
        pytest.skip(found.why)
    yield found
    for client in bench.clients:
        client.end()
    found.close()


def inside(bench, groups, environment, *words, name, group="a"):
    """Start a client in a control group that has 4 GiB of the GPU."""
    entry = groups.make(group, bench.gpu.uuid, LIMIT_MIB)
    program = [*ENTERS, entry, sys.executable, "-I", "-S", str(CLIENT)]
    return bench.start(name, words, environment, program=program)


def without_mps(bench):
    return {"CUDA_VISIBLE_DEVICES": bench.gpu.uuid, "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent/dt"}


TWICE, HALF = f"mib={2 * LIMIT_MIB}", f"mib={LIMIT_MIB * 3 // 4}"


@pytest.mark.check("a process takes no more than its group has, and is told so", usual_s=6)
def test_group_limit(bench, groups):
    """The limit of a control group, without MPS; what cuMemGetInfo shows."""
    found = taken(inside(bench, groups, without_mps(bench), "allocate", TWICE, name="in a group"))
    bench.saw(by_kernel=groups.by_kernel, **found)
    assert found["error"] == OUT_OF_MEMORY
    assert found["mib"] <= LIMIT_MIB


@pytest.mark.check("the limit holds for both together, also as clients of MPS v2", usual_s=12)
@pytest.mark.parametrize("under", ["turns", "mps"])
def test_group_of_two(bench, groups, under):
    """Two processes of one control group, each with three quarters of its limit ({under})."""
    given = bench.daemon().environment() if under == "mps" else without_mps(bench)
    first = inside(bench, groups, given, "allocate", HALF, name="first")
    first.wait_or_skip("memory")
    used = groups.memory("a", bench.gpu.uuid).used_mib
    second = taken(inside(bench, groups, given, "allocate", HALF, name="second"))
    bench.saw(first_counted_mib=used, second=second)
    assert used >= LIMIT_MIB * 3 // 4
    assert second["error"] == OUT_OF_MEMORY


@pytest.fixture
def divided(bench):
    """A daemon with static partitions."""
    if bench.program is None or modes(bench.program).static is False:
        pytest.skip("the control program has no static partitions")
    try:
        return bench.daemon(static=True)
    except MpsError as error:
        pytest.skip(str(error))


def part(daemon, chunks):
    """Reserve chunks, and return the variable of their clients."""
    return {PARTITION: f"{daemon.control.gpu}/{daemon.control.add_partition(chunks)}"}


@pytest.mark.check("lspart is understood, and a partition has the SMs that it says", usual_s=15)
def test_partition_sizes(bench, divided):
    """The chunks of a GPU, and the SMs of partitions of one to all chunks."""
    every, sms = divided.control.partitions().chunks, {}
    for chunks in dict.fromkeys((1, 2, every // 4, every // 2, every - 1, every)):
        ident = part(divided, chunks)[PARTITION].partition("/")[2]
        (one,) = divided.control.partitions().partitions
        sms[str(chunks)] = one.sms
        divided.control.remove_partition(ident)
    left = divided.control.partitions()
    bench.saw(chunks=every, SMs=sms, of=bench.gpu.sms, left=len(left.partitions))
    assert not left.partitions
    assert list(sms.values()) == sorted(sms.values())


@pytest.mark.check("a client sees the SMs of its partition, and fails without one", usual_s=8)
def test_partition_client(bench, divided):
    """A client in half of the chunks, and one without a partition."""
    half = part(divided, divided.control.partitions().chunks // 2)
    client = divided.client("report", name="in half", more=half).ready()
    (one,) = divided.control.partitions().partitions
    lost = divided.client("report", name="without").wait("ready", "error")
    bench.saw(sees=client["sms"], lspart=one.sms, without=error_text(lost))
    assert client["sms"] == one.sms
    assert lost["number"] == INVALID_RESOURCE_CONFIGURATION


@pytest.mark.check("it can be added and removed while others run", usual_s=8)
def test_partition_beside_clients(bench, divided):
    """A second partition while the first has a client, as a pair of jobs needs it."""
    half = divided.control.partitions().chunks // 2
    first = divided.client("idle", name="first", more=part(divided, half))
    first.ready()
    try:
        ident = part(divided, half)[PARTITION].partition("/")[2]
    except MpsError as error:
        bench.saw(refused=str(error))
        raise AssertionError from None
    divided.control.remove_partition(ident)
    left = len(divided.control.partitions().partitions)
    bench.saw(added=True, left=left)
    assert left == 1
    assert first.alive()


@pytest.mark.check("a busy neighbour in its own partition slows it by less than 5 %", usual_s=18)
def test_partition_pace(bench, divided):
    """Kernels a second in half of the chunks, alone and beside a busy other half."""
    half = divided.control.partitions().chunks // 2
    mine, theirs = part(divided, half), part(divided, half)
    single, work = alone(divided.client("busy", name="alone", more=mine))
    pair = together(
        divided.client("busy", *work, name="one", more=mine),
        divided.client("busy", *work, name="other", more=theirs),
    )
    bench.saw(alone=single, pair=pair)
    assert min(pair) >= 0.95 * single
