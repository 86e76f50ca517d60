"""What a controller keeps about its nodes, on a full disk."""

from __future__ import annotations

from dovetail.cluster.fence import raise_epoch
from dovetail.cluster.lease import GrantedLease
from tests.executor.full_disk import Filler, needs_root, small_disk


@needs_root
def test_the_files_of_a_controller_of_nodes(tmp_path):
    with small_disk(tmp_path) as home:
        home.mkdir()
        first = raise_epoch(home / "controller.json")
        GrantedLease(home / "lease.json", 15.0, 0.0)
        Filler(tmp_path / "filler").fill()
        assert raise_epoch(home / "controller.json") == first.replace(epoch=2)
        GrantedLease(home / "lease.json", 60.0, 0.0)
        assert GrantedLease(home / "lease.json", 15.0, 0.0).longest_s == 60.0
