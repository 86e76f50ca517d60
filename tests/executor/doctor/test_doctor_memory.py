"""What the doctor says about the means that hold a job's limits."""

import os
import sys

import pytest

pytest.importorskip("pynvml", reason="needs the extra live")

from dovetail.executor.doctor import memory
from dovetail.executor.doctor.diagnosis import Preflight, diagnose
from dovetail.executor.doctor.finding import Severity
from dovetail.executor.gpus.nvml import Nvml
from dovetail.executor.mps.processes import PROGRAM
from dovetail.executor.mps.program import ControlModes
from dovetail.executor.pools.means import Means, find_means
from dovetail.executor.pools.runs.cgroups import unified_here
from tests.executor.gpus.injected_nvml import injected
from tests.executor.mps import standin


@pytest.fixture
def library():
    with injected() as library:
        yield library


def of(means):
    """Return the findings about means: limits, groups, partitions, namespaces."""
    found = [memory.limits(means), memory.groups(means), *memory.partitions(means)]
    last = memory.namespaces(means)
    return found if last is None else [*found, last]


def test_a_machine_of_today(library, tmp_path):
    """Driver 580: MPS limits each process, and there are no reservations of SMs."""
    program = standin.install(tmp_path, "580")
    limits, groups, partitions = of(find_means("x", Nvml(), ["GPU-injected-0"], program))
    assert limits.text == "the limit of a job is held by MPS for each of its processes"
    assert limits.level is Severity.NOTE
    assert "limits no memory of control groups" in groups.text
    assert groups.remedy.startswith("driver 615 or newer")
    assert partitions.text.startswith("no static partitions")


@pytest.mark.skipif(
    os.geteuid() != 0 or not unified_here(), reason="needs root and cgroups of version 2"
)
def test_a_machine_of_615(library, tmp_path):
    """The groups are this kernel's; that the driver limits them is made up."""
    library.with_group_limits()
    program, top = standin.install(tmp_path, "615"), unified_here()[0]
    name = f"dovetail-test-{os.getpid()}"
    means = find_means(name, Nvml(), ["GPU-injected-0"], program, top)
    try:
        limits, groups, partitions, namespaces = of(means)
    finally:
        means.groups.close()
    assert limits.text == (
        "the limit of a job is held by a control group for the whole job, and MPS for each of its "
        "processes"
    )
    assert {one.level for one in (limits, groups, partitions, namespaces)} == {Severity.GOOD}
    # No kernel of ours has the controller dmem.
    assert groups.text == (
        f"limited by the driver (misc: no dmem in this kernel), tried below {top}"
    )
    assert partitions.text.startswith("static partitions")
    assert namespaces.text.startswith("MPS v3 is there, and not used")


def test_without_mps_nothing_holds_a_limit(library):
    limits, groups = of(find_means("x", Nvml(), ["GPU-injected-0"], None))
    assert limits.text == "the limit of a job is held by nothing"
    assert limits.level is Severity.LACKING
    assert groups.level is Severity.NOTE


def test_unknown_modes_are_said_to_be_unknown(library):
    groups = find_means("x", Nvml(), ["GPU-injected-0"], None).groups
    _, _, partitions = of(Means(True, groups, ControlModes(None, None)))
    assert partitions.text.startswith("unknown whether")


def test_the_doctor_says_it(library, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", os.path.dirname(standin.install(tmp_path, "580")))
    what = Preflight(tmp_path / "state", tmp_path / "s", tmp_path / "mps", sys.executable)
    found = {one.id: one for one in diagnose(what).findings}
    assert found["memory.limits"].text.endswith("MPS for each of its processes")
    assert {"memory.groups", "mps.partitions"} <= found.keys()
    assert "mps.namespaces" not in found
    assert PROGRAM in found["mps.control"].text
