"""``dovetail dataset`` from end to end."""

from __future__ import annotations

import json
from functools import partial

import pytest

from dovetail.instances.datasets import Repository, read_dataset
from dovetail.instances.files import read_instance

PAIRS = """workload_1,slowdown_1,workload_2,slowdown_2,gpu_model,status
a,1.5,b,2,V100,ok
a,,a,,V100,failed
"""
PROFILES = """workload,gpu_model,share,sm_active,throughput
a,V100,,0.5,10
a,V100,50,0.4,8
b,V100,,,
"""


@pytest.fixture
def run(run):
    """Run a command for data sets."""
    return partial(run, "dataset")


@pytest.fixture
def folder(tmp_path):
    """Return a folder with both tables."""
    place = tmp_path / "mine"
    place.mkdir()
    (place / "pairs.csv").write_text(PAIRS)
    (place / "profiles.csv").write_text(PROFILES)
    return place


def test_data_are_appended_to_a_repository(run, tmp_path, folder):
    repository = tmp_path / "r.db"
    status, out, err = run("add", repository, folder, folder)
    message = f"{folder}, {folder}: 2 workloads, 6 profiles, 4 measurements -> {repository}\n"
    assert (status, out, err) == (0, message, "")
    status, out, _ = run("add", repository, folder, "--json")
    assert json.loads(out) == {
        "name": str(folder),
        "workloads": 2,
        "profiles": 3,
        "measurements": 2,
        "written_to": str(repository),
        "sequence": 15,
    }
    assert len(Repository(repository).since(0)) == 15


def test_nothing_is_appended_where_one_of_the_data_is_broken(run, tmp_path, folder):
    repository, broken = tmp_path / "r.db", tmp_path / "broken"
    broken.mkdir()
    (broken / "pairs.csv").write_text(PAIRS.replace("1.5", "0"))
    status, out, err = run("add", repository, folder, broken)
    where = f"{broken}/pairs.csv: line 2: slowdown_1: must be >= 0.001, got 0.0"
    assert (status, out, err) == (2, "", f"dovetail: {where}\n")
    assert not repository.exists()


def test_a_repository_is_not_appended_to_itself(run, tmp_path, folder):
    repository = tmp_path / "r.db"
    run("add", repository, folder)
    status, _, err = run("add", repository, folder, tmp_path / "." / "r.db")
    assert (status, err) == (2, f"dovetail: {repository}: is the repository itself\n")
    assert len(Repository(repository).since(0)) == 5


def test_show_prints_what_there_is(run, folder):
    status, out, err = run("show", folder)
    fingerprint = read_dataset(folder).fingerprint
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "mine: 2 workloads, 3 profiles, 2 measurements",
        f"fingerprint {fingerprint}",
        "V100",
        "  workloads  2",
        "  profiles   2 uncapped, 1 at 50 %",
        "  pairs      1 measured, 1 failed",
        "  known      sm_active, throughput of 1 workload",
    ]
    assert json.loads(run("show", folder, "--json")[1]) == {
        "name": "mine",
        "workloads": 2,
        "profiles": 3,
        "measurements": 2,
        "families": 2,
        "fingerprint": fingerprint,
        "gpu_models": {
            "V100": {
                "workloads": 2,
                "profiles": {"uncapped": 2, "50": 1},
                "pairs": {"measured": 1, "failed": 1},
                "sets": {"measured": 0, "failed": 0},
                "known": {"sm_active": 1, "throughput": 1},
            }
        },
    }


def test_instance_of_what_was_measured(run, tmp_path, folder):
    place = tmp_path / "i.yaml"
    status, out, err = run("instance", folder, "--gpu-model", "V100", "--gpus", 3, "-o", place)
    message = f"mine: 2 jobs, 3 GPUs, 2 workloads, 2 slowdowns -> {place}\n"
    assert (status, out, err) == (0, message, "")
    assert read_instance(place) == read_dataset(folder).instance("V100", 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("show", "none"),
            "none: must be a folder with tables, or a repository (.db, .sqlite); do",
        ),
        (("show", "none.db"), "none.db: cannot be read: no such file or directory"),
        (
            ("add", "folder", "D"),
            "folder: must be a repository: a name that ends in .db or .sqlite",
        ),
        (
            ("instance", "D", "--gpu-model", "K80", "--gpus", "1"),
            "D: gpu_model: must be one of V100, got 'K80'",
        ),
    ],
)
def test_a_mistake_is_one_line(run, folder, monkeypatch, arguments, message):
    monkeypatch.chdir(folder.parent)
    folder.rename("D")
    status, out, err = run(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"dovetail: {message}")
    assert [path.name for path in folder.parent.iterdir()] == ["D"]


def test_usage_errors_name_the_sub_command(run):
    status, _, err = run("add")
    assert status == 2
    assert "the following arguments are required: REPO.db, DATA" in err
    assert run()[0] == 2


def test_instance_with_margins_and_sub_batches(run, tmp_path):
    rows = ["w,V100,8,20,1000", "w,V100,16,12,1400", "other,V100,8,5,500"]
    columns = "workload,gpu_model,batch_size,throughput,memory_mib"
    (tmp_path / "profiles.csv").write_text("\n".join([columns, *rows]) + "\n")
    place = tmp_path / "made.yaml"
    asked = ("--gpu-model", "V100", "--gpus", 2, "--memory-mib", 16000, "-o", place)
    assert run("instance", tmp_path, *asked)[0] == 0
    plain = read_instance(place).workloads
    assert (plain["w"].memory_mib, plain["w"].batch) == (1400, None)
    more = ("--memory-confidence", "0.95", "--sub-batches")
    assert run("instance", tmp_path, *asked, *more)[0] == 0
    made = read_instance(place).workloads
    assert made["w"].memory_mib > 1400
    # 0.05 s at 8 and 1/12 s at 16; 1000 and 1400 MiB: 600 + 50 b.
    assert made["w"].batch.fixed_mib == pytest.approx(600)
    assert made["w"].batch.step_s.per_sample == pytest.approx((1 / 12 - 1 / 20) / 8)
    assert made["other"].batch is None


class TestPairs:
    TABLE = """workload_1,slowdown_1,workload_2,slowdown_2,share_1,share_2,gpu_model,status,date
b,1.2,a,1.6,,,V100,ok,2026-01-01
a,1.4,b,1.0,,,V100,ok,2026-01-03
a,,b,,,,V100,failed,2026-01-02
a,1.1,b,1.3,50,50,V100,ok,2026-01-02
a,,c,,,,V100,failed,
"""

    @pytest.fixture
    def pairs(self, tmp_path):
        (tmp_path / "pairs.csv").write_text(self.TABLE)
        return tmp_path

    def test_repeats_are_one_whichever_way_round(self, run, pairs):
        status, output, _ = run("pairs", pairs, "--json")
        first, capped, failed = json.loads(output)
        # a: (1.6 + 1.4) / 2, b: (1.2 + 1.0) / 2
        assert (first["workloads"], first["slowdown"]) == (["a", "b"], [1.5, 1.1])
        assert (first["times"], first["failed"], first["last"]) == (3, 1, "2026-01-03")
        assert (capped["shares"], capped["slowdown"]) == ([50, 50], [1.1, 1.3])
        assert (failed["workloads"], failed["slowdown"]) == (["a", "c"], None)
        assert status == 0

    def test_as_people_read_it(self, run, pairs):
        _, output, _ = run("pairs", pairs, "--workload", "c")
        assert [line.split() for line in output.splitlines() if "a" in line or "c" in line][1:] == [
            ["V100", "a", "no", "cap", "failed", "once"],
            ["c", "no", "cap", "failed"],
        ]
        assert "3 times, 1 failed" in run("pairs", pairs)[1]

    def test_a_workload_that_is_not_there(self, run, pairs):
        status, _, error = run("pairs", pairs, "--workload", "d")
        assert (status, error) == (2, "dovetail: --workload: must be one of a, b, c, got 'd'\n")

    def test_nothing_measured(self, run, tmp_path):
        (tmp_path / "profiles.csv").write_text(PROFILES)
        assert run("pairs", tmp_path) == (0, "nothing was measured together\n", "")


def test_a_repository_takes_no_percentages(run, tmp_path, folder):
    (folder / "pairs.csv").write_text(PAIRS.replace("1.5,b,2,", "150,b,200,"))
    status, _, errors = run("add", tmp_path / "r.db", folder)
    assert status == 2
    assert errors == (
        f"dovetail: {folder}: slowdowns: must be iteration time together / alone; "
        "half are at least 150, as percentages are\n"
    )
    assert not (tmp_path / "r.db").exists()


def test_turns_make_a_cluster_and_entries_of_their_own(run, tmp_path):
    (tmp_path / "pairs.csv").write_text(
        "workload_1,slowdown_1,workload_2,slowdown_2,gpu_model,mode\n"
        "a,1.2,b,1.3,V100,\na,1.9,b,2.1,V100,time_sliced\n"
    )
    _, output, _ = run("pairs", tmp_path, "--json")
    assert [(one["mode"], one["slowdown"]) for one in json.loads(output)] == [
        ("mps", [1.2, 1.3]),
        ("time_sliced", [1.9, 2.1]),
    ]
    assert "time_sliced" in run("pairs", tmp_path)[1]
    shown = run("show", tmp_path)[1]
    assert "  pairs      2 measured, 0 failed, 1 of these time-sliced\n" in shown
    made = tmp_path / "turns.json"
    wanted = ("--gpu-model", "V100", "--gpus", "1", "--sharing", "time_sliced", "-o", made)
    assert run("instance", tmp_path, *wanted)[0] == 0
    instance = read_instance(made)
    assert instance.cluster.sharing == "time_sliced"
    assert [(e.slowdown, e.mode) for e in instance.slowdowns] == [((1.9, 2.1), "time_sliced")]
