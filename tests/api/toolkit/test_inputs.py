"""Instances that commands read."""

from dovetail.instances.files import write_instance
from dovetail.toolkit.files import instance_named
from tests.data import small


def test_pairs_that_run_faster_together_are_named(tmp_path, capsys):
    entries = [
        {"pair": ["a", "b"], "slowdown": [1.1, 1.2]},
        {"pair": ["a", "c"], "slowdown": [0.92, 0.8]},
        {"pair": ["b", "c"], "slowdown": [0.98, 1.0]},
    ]
    write_instance(small([], entries), tmp_path / "i.yaml")
    instance_named(str(tmp_path / "i.yaml"))
    assert capsys.readouterr().err == (
        f"dovetail: {tmp_path}/i.yaml: slowdowns[1]: a + c run faster together than alone, "
        "by 0.92, 0.8: speeds?\n"
    )
