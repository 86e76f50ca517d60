"""Limits on device memory: groups by this machine's kernel, the driver's part by injected NVML.

No kernel of ours has the controller ``dmem``, so its files are tested as files only.
"""

import os
import subprocess
from pathlib import Path

import pytest

pynvml = pytest.importorskip("pynvml", reason="needs the extra live")

from dovetail.executor.gpus.nvml import Nvml, NvmlError  # noqa: E402
from dovetail.executor.pools.runs.cgroups import hand_down, unified_here  # noqa: E402
from dovetail.executor.pools.runs.memory_groups import (  # noqa: E402
    MemoryGroups,
    NoGroups,
    find_memory_groups,
)
from tests.executor.gpus.injected_nvml import injected  # noqa: E402

NAME = f"dovetail-test-{os.getpid()}"
GPUS = ("GPU-injected-0", "GPU-injected-1")
MIB = 2**20

NEEDS_V2 = pytest.mark.skipif(
    os.geteuid() != 0 or not unified_here(), reason="needs root and cgroups of version 2"
)


@pytest.fixture
def library():
    with injected() as library:
        library.with_group_limits()
        yield library


@pytest.fixture
def top():
    return unified_here()[0]


@NEEDS_V2
class TestOfThisMachine:
    def test_groups_are_tried_on_every_gpu_and_removed(self, library, top):
        groups = find_memory_groups(NAME, Nvml(), GPUS, top)
        assert isinstance(groups, MemoryGroups)
        probe = f"{groups.home}/probe"
        assert library.group_limits == {(1, probe): 1024 * MIB, (2, probe): 1024 * MIB}
        assert groups.names() == []
        groups.close()
        assert not groups.home.exists()

    def test_a_process_enters_its_group_and_its_children_are_in_it(self, library, top):
        groups = find_memory_groups(NAME, Nvml(), GPUS, top)
        entrance = groups.make("a", GPUS[1], 2000.5)
        inside = subprocess.Popen(
            ["sh", "-c", f"echo 0 > {entrance}; echo in; sleep 600 & wait"], stdout=subprocess.PIPE
        )
        try:
            assert inside.stdout.readline() == b"in\n"
            while len(groups.members("a")) < 2:
                pass
            groups.remove("a")
            assert groups.names() == ["a"]
        finally:
            for process in groups.members("a"):
                os.kill(process.pid, 9)
            inside.wait()
            inside.stdout.close()
        while groups.members("a"):
            pass
        assert library.group_limits[2, f"{groups.home}/a"] == 2000 * MIB + MIB // 2
        library.group_used = 300 * MIB
        assert groups.memory("a", GPUS[1]) == (2000.5, 300.0)
        assert groups.memory("a", GPUS[0]) == (None, 300.0)
        groups.close()
        assert not groups.home.exists()

    def test_a_controller_reaches_the_groups_of_ranks(self, top):
        """With another controller, as this kernel has no ``dmem``."""
        control = top / "cgroup.subtree_control"
        before = control.read_text().split()
        offered = [one for one in (top / "cgroup.controllers").read_text().split() if one != "cpu"]
        if not offered:
            pytest.skip("version 2 has no controller here")
        home, rank = top / NAME, top / NAME / "a"
        rank.mkdir(parents=True)
        try:
            hand_down(offered[0], top, home)
            assert offered[0] in (rank / "cgroup.controllers").read_text().split()
        finally:
            rank.rmdir()
            home.rmdir()
            if offered[0] not in before:
                control.write_text(f"-{offered[0]}")

    def test_a_limit_that_is_not_kept_is_no_limit(self, library, top):
        library.fails["nvmlDeviceSetMemoryLimits_v1"] = pynvml.NVML_ERROR_NOT_SUPPORTED
        found = find_memory_groups(NAME, Nvml(), GPUS, top)
        assert found.why == "no control group can be limited: NVML: Not Supported"
        assert not (top / NAME).exists()

    def test_a_limit_that_reads_back_as_another_is_refused(self, library, top, monkeypatch):
        groups = find_memory_groups(NAME, Nvml(), GPUS, top)
        monkeypatch.setattr(library, "group_limits", Forgetful())
        with pytest.raises(NvmlError, match="a limit of 500 MiB was set, but is None"):
            groups.make("a", GPUS[0], 500)
        groups.close()

    def test_only_root_may_set_them(self, library, top):
        os.seteuid(1)
        try:
            found = find_memory_groups(NAME, Nvml(), GPUS, top)
        finally:
            os.seteuid(0)
        assert found.why == "only root may limit memory of control groups (driver 615.71.09)"


class Forgetful(dict):
    """A table of limits in which nothing stays."""

    def __setitem__(self, key, value):
        """Forget it."""


def test_an_older_driver_has_none(library):
    del library.nvmlDeviceGetMemoryLimits_v1
    library.driver = "580.159.04"
    assert find_memory_groups(NAME, Nvml(), GPUS) == NoGroups(
        "driver 580.159.04 limits no memory of control groups",
        "driver 615 or newer (CUDA 13.4), and nvidia-ml-py 13.615 or newer",
    )


def test_older_bindings_have_none(library, monkeypatch):
    monkeypatch.delattr(pynvml, "c_nvmlGetMemoryLimits_v1_t")
    assert "limits no memory of control groups" in find_memory_groups(NAME, Nvml(), GPUS).why


def test_they_have_to_be_where_the_driver_looks(library, tmp_path):
    found = find_memory_groups(NAME, Nvml(), GPUS, tmp_path)
    assert found.why == f"control groups of version 2 are not mounted at {tmp_path}"


@pytest.mark.parametrize("has_dmem", [True, False])
def test_dmem_is_handed_down_if_the_kernel_has_it(library, tmp_path, has_dmem):
    """The files and values written; no kernel is involved."""
    top, unit = tmp_path / "top", tmp_path / "top" / "dovetail.service"
    home = unit / "dovetail-x"
    home.mkdir(parents=True)
    (tmp_path / "cgroup.subtree_control").write_text("cpu")
    (top / "cgroup.controllers").write_text("cpu dmem memory" if has_dmem else "cpu memory")
    for path in (top, unit, home):
        (path / "cgroup.subtree_control").write_text("cpu")
    if has_dmem:
        (home / "dmem.max").touch()
    groups = MemoryGroups(home, Nvml(), top)
    handed = "+dmem" if has_dmem else "cpu"
    written = [path / "cgroup.subtree_control" for path in (top, unit, home)]
    assert [path.read_text() for path in written] == [handed] * 3
    assert (tmp_path / "cgroup.subtree_control").read_text() == "cpu"
    assert groups.by_kernel is has_dmem
    assert groups.make("j1.1-0", GPUS[0], 10) == str(Path(home, "j1.1-0", "cgroup.procs"))
