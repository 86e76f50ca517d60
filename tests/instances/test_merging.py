"""Measured pairs added to an instance replace nothing, and foreign ones are reported."""

from __future__ import annotations

import pytest

from dovetail.instances.errors import InputError
from dovetail.instances.importers.pairs import with_pairs
from dovetail.instances.instance import Instance
from tests.data import small

JOBS = [{"id": name, "workload": name} for name in "abc"]


def known(*slowdowns: dict[str, object]) -> Instance:
    return small(JOBS, list(slowdowns), gpus=2)


def table(tmp_path, *rows: str, last: str = "status") -> str:
    path = tmp_path / "pairs.csv"
    head = f"gpu_model,workload_1,workload_2,slowdown_1,slowdown_2,{last}"
    path.write_text("\n".join([head, *rows]) + "\n")
    return str(path)


def test_pairs_are_added(tmp_path):
    path = table(tmp_path, "V100,a,b,1.1,1.2,", "V100,c,a,1.5,1.4,ok", "V100,b,c,,,out of memory")
    merged = with_pairs(known({"pair": ["a", "a"], "slowdown": [1.3, 1.3]}), path)
    assert merged.notes == ()
    found = {entry.pair: entry.slowdown for entry in merged.instance.slowdowns}
    assert found == {
        ("a", "a"): (1.3, 1.3),
        ("a", "b"): (1.1, 1.2),
        ("a", "c"): (1.4, 1.5),
        ("b", "c"): None,
    }


@pytest.mark.parametrize("model", [{}, {"gpu_model": "V100"}])
def test_the_same_numbers_once_more_change_nothing(tmp_path, model):
    instance = known({"pair": ["b", "a"], "slowdown": [1.2, 1.1], **model})
    assert with_pairs(instance, table(tmp_path, "V100,a,b,1.1,1.2,")).instance == instance


@pytest.mark.parametrize("model", [{}, {"gpu_model": "V100"}])
@pytest.mark.parametrize(
    ("slowdown", "known_text"), [([1.2, 1.2], "b 1.2, a 1.2"), (None, "may not share")]
)
def test_other_numbers_replace_nothing(tmp_path, model, slowdown, known_text):
    instance = known({"pair": ["b", "a"], "slowdown": slowdown, **model})
    path = table(tmp_path, "V100,a,b,1.1,1.2,")
    with pytest.raises(InputError) as raised:
        with_pairs(instance, path)
    assert str(raised.value).endswith(
        f"pairs.csv: a + b on V100: must be as in the instance, {known_text}, "
        "got a 1.1, b 1.2: remove one of the two"
    )


def test_another_gpu_models_entry_is_no_contradiction(tmp_path):
    instance = known({"pair": ["a", "b"], "slowdown": [2.0, 2.0], "gpu_model": "K80"})
    merged = with_pairs(instance, table(tmp_path, "V100,a,b,1.1,1.2,")).instance
    assert len(merged.slowdowns) == 2


def test_what_the_instance_does_not_have_is_left_out_and_said(tmp_path):
    path = table(tmp_path, "V100,a,b,1.1,1.2,", "V100,a,vgg,1.1,1.2,", "P100,a,b,1.4,1.4,")
    merged = with_pairs(known(), path)
    assert [entry.pair for entry in merged.instance.slowdowns] == [("a", "b")]
    assert merged.notes == (
        "workloads that the instance does not have: vgg",
        "GPU models that the instance does not have: P100",
        "2 of 3 rows are left out",
    )


def test_rows_of_another_sharing_mode_are_left_out_and_said(tmp_path):
    rows = ("V100,a,b,1.1,1.2,", "V100,a,c,1.3,1.4,shared", "V100,a,b,2.1,1.9,time_sliced")
    path = table(tmp_path, *rows, last="mode")
    merged = with_pairs(known(), path)
    assert {e.pair: e.mode for e in merged.instance.slowdowns} == {
        ("a", "b"): "mps",
        ("a", "c"): "mps",
    }
    assert merged.notes == ("1 of mode time_sliced are left out", "1 of 3 rows are left out")
    turns = known().altered(cluster=known().cluster.replace(sharing="time_sliced"))
    (entry,) = with_pairs(turns, path).instance.slowdowns
    assert (entry.slowdown, entry.mode) == ((2.1, 1.9), "time_sliced")


def test_a_table_of_another_instance_is_refused(tmp_path):
    path = table(tmp_path, "P100,vgg,gpt,1.1,1.2,")
    rule = "no row is of workloads, GPU models and sharing of instance small; workloads that the"
    with pytest.raises(InputError, match=rule):
        with_pairs(known(), path)
