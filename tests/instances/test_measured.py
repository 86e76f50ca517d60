"""The shipped measurements: described, and the tables are what the raw results say."""

import json
from itertools import combinations_with_replacement

import pytest

from dovetail.instances import library
from dovetail.instances.datasets.files import TABLES, dataset_files, read_dataset
from dovetail.instances.errors import InputError
from dovetail.instances.traces.library import trace_names

FOLDER = library.DATA_SETS.folder
H200 = "library:h200-2026-11"


@pytest.fixture(scope="module")
def data():
    return read_dataset(H200)


@pytest.fixture(scope="module")
def windows():
    lines = (FOLDER / "h200-2026-11" / "windows.jsonl").read_text().splitlines()
    return [one for one in map(json.loads, lines) if not any(one["first"])]


@pytest.mark.parametrize("name", library.DATA_SETS.manifest)
def test_a_shipped_data_set_is_described_and_read_by_its_name(name):
    assert read_dataset(f"library:{name}").name == name
    assert {path.parent for path in dataset_files(f"library:{name}")} == {FOLDER / name}
    assert (FOLDER / name / "README.md").read_text().startswith(f"# {name}: ")
    entry = library.DATA_SETS.manifest[name]
    assert entry.title
    assert entry.source
    assert entry.licence == "Apache-2.0"


def test_every_folder_is_in_the_manifest_and_no_name_means_two_things():
    folders = {path.name for path in FOLDER.iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders == set(library.DATA_SETS.manifest)
    assert not folders & {*library.names(), *trace_names()}


@pytest.mark.parametrize("function", [read_dataset, dataset_files])
def test_an_unknown_name_lists_the_known(function):
    with pytest.raises(InputError) as error:
        function("library:h200-2025-11")
    assert str(error.value) == (
        "library: must be a data set, one of h200-2026-11, got 'h200-2025-11', "
        "did you mean h200-2026-11?"
    )


def test_a_data_set_is_no_instance():
    with pytest.raises(InputError, match=r"h200-2026-11 is a data set: .* dataset instance$"):
        library.path("h200-2026-11")


def test_solos_are_what_the_windows_say(data, windows):
    solos = {one["workloads"][0]: one for one in windows if len(one["workloads"]) == 1}
    assert len(solos) == len(data.profiles) == 8
    for profile in data.profiles:
        one = solos[profile.workload]
        known = profile.metrics.to_data()
        assert {name: known[name] for name in one["metrics"]} == pytest.approx(one["metrics"])
        assert profile.throughput == one["paces"][0]["iterations_s"]
        assert profile.power_w == one["power_w"]


def test_kernels_fill_the_time_in_which_the_gpu_had_work(data):
    counted = [p.metrics for p in data.profiles if p.workload != "lstm"]
    for metrics in counted:
        busy = metrics.kernels_s * metrics.kernel_mean_s
        assert busy == pytest.approx(metrics.graphics_active, rel=1e-5)


def test_slowdowns_and_bounds_are_what_the_windows_say(data, windows):
    alone = {profile.workload: profile.throughput for profile in data.profiles}
    pairs = {(one.date, one.workloads): one for one in data.measurements}
    lost = []
    for one in windows:
        if len(names := tuple(one["workloads"])) == 1:
            continue
        pair = pairs.pop((one["date"], names), None)
        if one["status"] == "ok":
            rates = [pace["iterations_s"] for pace in one["paces"]]
            slowdown = [alone[name] / rate for name, rate in zip(names, rates, strict=True)]
            assert pair.slowdown == pytest.approx(slowdown, abs=1e-6)
            assert [share or None for share in one["shares"]] == list(pair.shares)
        elif "fewer than 3 chunks" in one["reason"]:
            slow = one["reason"].partition(":")[0]
            most = 5 * round(0.05 * alone[slow])
            least = alone[slow] * one["window_s"] / most
            bounds = [round(least, 2) if name == slow else None for name in names]
            assert list(pair.at_least) == bounds
        else:
            assert pair is None
            lost.append((one["shares"][0], *sorted(names)))
    assert not pairs
    both = list(combinations_with_replacement(sorted(alone), 2))
    every = {(share, *pair) for share in (None, 50) for pair in both}
    there = {(one.shares[0], *sorted(one.workloads)) for one in data.measurements}
    assert set(lost) == every - there
    assert len(lost) == 9


def test_tables_are_all_that_a_data_set_reads():
    folder = FOLDER / "h200-2026-11"
    assert {path.stem for path in folder.glob("*.csv")} == set(TABLES)
