"""Limits on CPU time: version 1 by this machine's kernel, version 2 by its files only."""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from dovetail.executor.pools.runs import cgroups
from dovetail.executor.pools.runs.cgroups import (
    CgroupParent,
    CpuGroupsV2,
    find_groups,
    places,
)


@pytest.fixture
def groups():
    found = find_groups(f"dovetail-test-{os.getpid()}")
    if found is None:
        pytest.skip("no cgroup can be limited here")
    yield found
    found.close()
    assert not found.home.exists()


class TestOfThisMachine:
    def test_a_limit_is_read_back(self, groups):
        groups.make("a", 0.25)
        groups.make("b", None)
        assert (groups.cores("a"), groups.cores("b")) == (0.25, None)
        assert sorted(groups.names()) == ["a", "b"]

    def test_the_least_share_of_a_core(self, groups):
        groups.make("a", 0.01)
        assert groups.cores("a") == 0.01

    def test_a_process_inside_gets_no_more_time(self, groups):
        entrance = groups.make("a", 0.2)
        begun = time.monotonic()
        busy = subprocess.Popen(["sh", "-c", f"echo 0 > {entrance}; while :; do :; done"])
        try:
            while time.monotonic() < begun + 1.5:
                time.sleep(0.1)
            ticks = sum(map(int, Path(f"/proc/{busy.pid}/stat").read_text().split()[13:15]))
            wall_s = time.monotonic() - begun
            assert [process.pid for process in groups.members("a")] == [busy.pid]
        finally:
            busy.kill()
            busy.wait()
        # A fifth of a core, one period of it in hand, and the start outside the group.
        assert ticks / os.sysconf("SC_CLK_TCK") <= 0.2 * wall_s + 0.1
        assert groups.members("a") == []


def test_version_2_in_a_directory_tree_that_only_looks_like_one(tmp_path):
    """The files and values written; their effect in the kernel is not tested here."""
    above = tmp_path / "unit"
    home = above / "dovetail-x"
    home.mkdir(parents=True)
    for path, handed in ((above, "cpu memory"), (home, "")):
        (path / "cgroup.subtree_control").write_text(handed)
    groups = CpuGroupsV2(home)
    assert (above / "cgroup.subtree_control").read_text() == "cpu memory"
    assert (home / "cgroup.subtree_control").read_text() == "+cpu"
    assert groups.make("j1.1-0", 0.5) == str(home / "j1.1-0" / "cgroup.procs")
    assert (home / "j1.1-0" / "cpu.max").read_text() == "50000 100000"
    assert groups.cores("j1.1-0") == 0.5
    (home / "j1.1-0" / "cpu.max").write_text("max 100000\n")
    assert groups.cores("j1.1-0") is None


class TestPlaces:
    V1 = (
        "30 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    )
    V2 = "29 24 0:26 / {} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"

    def test_version_1_is_the_group_that_the_service_is_in(self):
        own = "4:memory:/m\n3:cpu,cpuacct:/system.slice/dovetail.service\n0::/x\n"
        path = Path("/sys/fs/cgroup/cpu,cpuacct/system.slice/dovetail.service")
        assert list(places(self.V1, own)) == [CgroupParent(1, path)]

    def test_a_container_sees_a_part_of_the_tree(self):
        mounts = "31 25 0:27 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        assert list(places(mounts, "3:cpu:/docker/abc/inner\n")) == [
            CgroupParent(1, Path("/sys/fs/cgroup/cpu/inner"))
        ]

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
    def test_version_2_of_root_is_the_top(self, tmp_path):
        found = places(self.V2.format(tmp_path), "0::/system.slice/dovetail.service\n")
        assert list(found) == [CgroupParent(2, tmp_path)]

    def test_version_2_is_what_systemd_has_left_to_the_service(self, tmp_path):
        unit = tmp_path / "dovetail.service"
        (unit / "service").mkdir(parents=True)
        try:
            os.setxattr(unit, "user.delegate", b"1")
        except OSError as error:
            pytest.skip(f"extended attributes: {error}")
        found = places(self.V2.format(tmp_path), "0::/dovetail.service/service\n")
        assert list(found) == [CgroupParent(2, unit)]

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
    def test_version_2_of_others_is_what_belongs_to_them(self):
        top = Path(tempfile.mkdtemp(prefix="dovetail-test-"))
        top.chmod(0o755)
        unit = top / "user.service"
        (unit / "service").mkdir(parents=True)
        shutil.chown(unit, 1, 1)
        mounts = self.V2.format(top)
        os.seteuid(1)
        try:
            found = list(places(mounts, "0::/user.service/service\n"))
            others = list(places(mounts, "0::/other.service/service\n"))
        finally:
            os.seteuid(0)
            shutil.rmtree(top)
        assert (found, others) == ([CgroupParent(2, unit)], [])

    def test_no_cgroups_at_all(self):
        assert list(places("22 1 0:20 / / rw - ext4 /dev/root rw\n", "")) == []


def test_a_directory_that_is_no_cgroup_is_not_used(tmp_path):
    assert cgroups._tried(CgroupParent(2, tmp_path), "dovetail-x") is None
    assert list(tmp_path.iterdir()) == []
