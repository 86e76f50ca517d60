"""The commands that import what papers published, from end to end."""

from __future__ import annotations

import pytest

from dovetail.instances.datasets import read_dataset
from dovetail.instances.files import read_instance
from tests.papers.importers.test_importers import gavel_file, lucid_folder, trace_file
from tests.papers.importers.test_importers_of_data import miso_folder, parvagpu_folder

SOURCES = {
    "gavel": (gavel_file, "2 workloads, 3 profiles, 3 measurements"),
    "lucid": (lucid_folder, "3 workloads, 3 profiles, 5 measurements"),
    "miso": (miso_folder, "2 workloads, 4 profiles, 0 measurements"),
    "parvagpu": (parvagpu_folder, "1 workload, 1 profile, 2 measurements"),
}


@pytest.mark.parametrize("source", SOURCES)
def test_each_source_goes_to_a_folder_and_to_a_repository(run, tmp_path, source):
    make, counts = SOURCES[source]
    published = make(tmp_path)
    place, repository = tmp_path / "d", tmp_path / "r.db"
    assert run("dataset", "import", source, published, "-o", place) == (
        0,
        f"{source}: {counts} -> {place}\n",
        "",
    )
    assert run("dataset", "import", source, published, "-o", repository)[::2] == (0, "")
    first, second = read_dataset(place), read_dataset(repository)
    assert (first.profiles, first.measurements) == (second.profiles, second.measurements)


def test_parquet_is_written_where_asked(run, tmp_path):
    pytest.importorskip("pyarrow")
    place = tmp_path / "d"
    assert run("dataset", "import", "miso", miso_folder(tmp_path), "-o", place, "--parquet")[0] == 0
    assert {path.name for path in place.iterdir()} == {"profiles.parquet", "pairs.parquet"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("dataset", "import", "miso", "D", "-o", "x.db", "--parquet"),
            "--parquet: goes with a folder, not with a repository",
        ),
        (("dataset", "import", "miso", "D", "-o", "x"), "D: must have a file solo_features.csv"),
        (("import", "gavel", "D/x", "--device", "k80", "--gpus", "4"), "D/x: cannot be read"),
    ],
)
def test_a_mistake_is_one_line(run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "D").mkdir()
    status, out, err = run(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"dovetail: {message}")
    assert [path.name for path in tmp_path.iterdir()] == ["D"]


def test_usage_errors_name_the_sub_command(run):
    status, _, err = run("dataset", "import", "gavel", "x")
    assert status == 2
    assert "the following arguments are required: -o/--output" in err


def test_instances_of_published_measurements(run, tmp_path):
    made = tmp_path / "made.json"
    table, row = gavel_file(tmp_path), "\t".join(("a", "cmd", "-n", "1", "100", "0", "1"))
    moment = ("--trace", trace_file(tmp_path, row), "--at", "5")
    size = ("--gpus", 2, "-o", made)
    assert run("import", "gavel", table, "--device", "k80", *moment, *size)[::2] == (0, "")
    assert [job.workload for job in read_instance(made).jobs] == ["a"]
    assert run("import", "lucid", lucid_folder(tmp_path), *size)[::2] == (0, "")
    assert len(read_instance(made).workloads) == 3
