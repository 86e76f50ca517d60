"""``dovetail import kernels`` from end to end."""

from __future__ import annotations

import json

import pytest

from dovetail.instances.datasets import Repository, read_dataset
from tests.instances.profiler_files import export, table, trace

PROFILES = "workload,gpu_model,share,sm_active,throughput\nbert,H100,,0.5,10\nbert,H100,50,0.4,8\n"
OF = ("--workload", "bert", "--gpu-model", "H100")


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "mine"
    place.mkdir()
    (place / "profiles.csv").write_text(PROFILES)
    return place


def metrics_at(place):
    profile = read_dataset(place).uncapped("bert", "H100")
    return profile.metrics.to_data()


def test_the_profile_of_a_folder_is_extended(run, tmp_path, folder):
    status, out, err = run(
        "import", "kernels", trace(tmp_path), *OF, "--iterations", "4", "-o", folder
    )
    assert (status, out, err) == (0, f"bert on H100: 2 kernels -> {folder}\n", "")
    found = metrics_at(folder)
    assert (found["sm_active"], found["kernels_s"], found["kernel_full"]) == (0.5, 5.0, 0.75)
    assert len(read_dataset(folder).profiles) == 2


def test_a_repository_gets_a_newer_profile(run, tmp_path, folder):
    repository = tmp_path / "r.db"
    run("dataset", "add", repository, folder)
    status, out, _ = run(
        *("import", "kernels", export(tmp_path), *OF, "--iterations", "4"),
        *("-o", repository, "--json"),
    )
    assert status == 0
    found = json.loads(out)
    assert (found["kernels"], found["written_to"]) == (2, str(repository))
    assert found["profile"]["metrics"]["kernels_s"] == 5.0
    assert metrics_at(repository)["kernels_s"] == 5.0
    assert len(Repository(repository).since(0)) == 3


def test_what_is_missing_is_said(run, tmp_path):
    place = tmp_path / "new"
    path = table(tmp_path)
    status, out, err = run("import", "kernels", path, *OF, "-o", place)
    assert (status, out) == (0, f"bert on H100: 2 kernels -> {place}\n")
    assert err == (
        f"dovetail: {path}: --sms and --capability say what fills the GPU, which the file does "
        f"not\ndovetail: {path}: kernels a second are those under the profiler; --iterations "
        "would correct them\n"
    )
    assert "kernel_full" not in metrics_at(place)
    size = ("--sms", "132", "--capability", "9.0")
    _, _, err = run("import", "kernels", path, *OF, *size, "--iterations", "1", "-o", place)
    assert "a profile with a throughput would correct them" in err
    assert metrics_at(place)["kernel_full"] == pytest.approx(0.75)


def test_a_table_in_parquet_stays_one(run, tmp_path, folder):
    pytest.importorskip("pyarrow")
    from dovetail.instances.datasets import write_dataset

    place = tmp_path / "columns"
    write_dataset(read_dataset(folder), place, parquet=True)
    status, _, _ = run("import", "kernels", trace(tmp_path), *OF, "-o", place)
    assert status == 0
    assert not (place / "profiles.csv").exists()
    assert "kernels_s" in metrics_at(place)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (("--sms", "132"), "--capability: must be given with --sms"),
        (("--capability", "9.0"), "--sms: must be given with --capability"),
        (("--sms", "132", "--capability", "9"), "--capability: must be one of 3.7"),
        (("--device", "3"), "--device: must be one of the GPUs of the file (0), got 3"),
    ],
)
def test_a_mistake_is_one_line(run, tmp_path, folder, options, rule):
    status, out, err = run("import", "kernels", trace(tmp_path), *OF, *options, "-o", folder)
    assert (status, out) == (2, "")
    assert rule in err
    assert err.count("\n") == 1
    assert (folder / "profiles.csv").read_text() == PROFILES
