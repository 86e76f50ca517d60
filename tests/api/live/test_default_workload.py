"""The name that a job's workload has where its user gives none."""

from __future__ import annotations

import pytest

from dovetail.live.submit import default_workload


@pytest.mark.parametrize(
    ("command", "label"),
    [
        (["./train"], "train"),
        (["/opt/bin/train", "--lr", "1"], "train"),
        (["python", "src/train.py", "--lr", "1"], "train.py"),
        (["/usr/bin/python3.11", "-u", "train.py"], "train.py"),
        (["python", "-m", "lab.train", "--lr", "1"], "lab.train"),
        (["python", "-c", "print(1)"], "python"),
        (["python3"], "python3"),
        (["bash", "-ex", "run.sh"], "run.sh"),
        (["a\x1bb"], "a?b"),
        (["x" * 300], "x" * 60),
        (["/"], "job"),
    ],
)
def test_its_label_is_that_of_the_program(command, label):
    found = default_workload(command, "/home/anna")
    assert found.rpartition("-")[0] == label
    assert len(found.rpartition("-")[2]) == 8


def test_it_differs_where_command_or_folder_do():
    names = {
        default_workload(command, cwd)
        for command in (["train", "a b"], ["train", "a", "b"], ["train"])
        for cwd in ("/one", "/two")
    }
    assert len(names) == 6
