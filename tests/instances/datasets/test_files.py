"""Tables of data sets survive a round trip, and faults in them are reported in one line."""

from __future__ import annotations

import gzip
import os
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given

from dovetail.instances.datasets import (
    DataSet,
    Measurement,
    SoloProfile,
    read_dataset,
    write_dataset,
)
from dovetail.instances.datasets._rows import PROFILE_COLUMNS, pair_columns
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.instances.metrics import METRICS
from tests.instances.datasets.odd import data_sets

PROFILES = """\
workload,gpu_model,share,workers,batch_size,family,sm_active,sm_active_variance,throughput,date
a,V100,,,64,A,0.5,0.01,10,2026-11-21
a,V100,50,2,,,,,,
"""
PAIRS = """\
gpu_model,workload_1,slowdown_1,share_1,workload_2,slowdown_2,share_2,workload_3,slowdown_3,status
V100,a,1.5,40,b,2,60,,,ok
V100,a,,,b,,,,,failed
V100,a,1.1,,a,1.2,,b,3,
"""


def folder_of(folder, profiles=None, pairs=None):
    for name, text in (("profiles.csv", profiles), ("pairs.csv", pairs)):
        if text is not None:
            (folder / name).write_text(text)
    return folder


def error_of(path):
    with pytest.raises(InputError) as error:
        read_dataset(path)
    return str(error.value).replace(str(path), "D")


@pytest.mark.parametrize("parquet", [False, True])
@given(data=data_sets)
def test_what_is_written_is_read_back_exactly(data, parquet):
    if parquet:
        pytest.importorskip("pyarrow")
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(data, folder, parquet)
        assert read_dataset(folder).replace(name="odd") == data


def test_cells_become_records(tmp_path):
    data = read_dataset(folder_of(tmp_path, PROFILES, PAIRS))
    assert data == DataSet(
        name=tmp_path.name,
        profiles=(
            SoloProfile(
                workload="a",
                gpu_model="V100",
                batch_size=64,
                family="A",
                metrics={"sm_active": 0.5},
                metrics_variance={"sm_active": 0.01},
                throughput=10.0,
                date="2026-11-21",
            ),
            SoloProfile(workload="a", gpu_model="V100", share=50, workers=2),
        ),
        measurements=(
            Measurement(
                workloads=("a", "b"), gpu_model="V100", share=(40, 60), slowdown=(1.5, 2.0)
            ),
            Measurement(workloads=("a", "b"), gpu_model="V100", slowdown=None),
            Measurement(workloads=("a", "a", "b"), gpu_model="V100", slowdown=(1.1, 1.2, 3.0)),
        ),
    )


def test_columns_have_the_names_of_import_pairs_too(tmp_path):
    rows = [
        "device,mode,gpus,job_a,slowdown_a,job_b,slowdown_b,status",
        "V100,shared,1,a,1.5,b,2,OK",
        "V100,,,b,n/a,a,n/a,out of memory",
        "V100,,,a,1.1,a,1.2,",
        ",,,,,,,",
    ]
    assert read_dataset(folder_of(tmp_path, pairs="\n".join(rows))).measurements == (
        Measurement(workloads=("a", "b"), gpu_model="V100", slowdown=(1.5, 2.0)),
        Measurement(workloads=("b", "a"), gpu_model="V100", slowdown=None),
        Measurement(workloads=("a", "a"), gpu_model="V100", slowdown=(1.1, 1.2)),
    )


def test_no_instance_is_made_of_percentages(tmp_path):
    pairs = "workload_1,slowdown_1,workload_2,slowdown_2,gpu_model\na,108,b,131,V100\n"
    data = read_dataset(folder_of(tmp_path, pairs=pairs))
    with pytest.raises(InputError, match=r"half are at least 108, as percentages are"):
        data.instance("V100", 1)


def test_one_table_is_enough_and_gz_is_read(tmp_path):
    (tmp_path / "pairs.csv.gz").write_bytes(gzip.compress(PAIRS.encode()))
    data = read_dataset(tmp_path)
    assert (len(data.profiles), len(data.measurements)) == (0, 3)


def test_whole_numbers_may_be_written_as_floats(tmp_path):
    # As a table with gaps comes out of pandas.
    data = read_dataset(folder_of(tmp_path, "workload,gpu_model,share\na,V100,50.0\na,V100,\n"))
    assert [profile.share for profile in data.profiles] == [50, None]


def test_only_columns_with_values_are_written(tmp_path):
    pair = Measurement(workloads=("a", "b"), gpu_model="V100", slowdown=(1.0, 0.1 + 0.2))
    profile = SoloProfile(workload='say "a", b', gpu_model="V100", memory_mib=3000.0)
    write_dataset(
        DataSet(name="d", profiles=(profile,), measurements=(pair,)), tmp_path / "new" / "d"
    )
    assert (tmp_path / "new/d/profiles.csv").read_text() == (
        'workload,gpu_model,memory_mib\n"say ""a"", b",V100,3000.0\n'
    )
    assert (tmp_path / "new/d/pairs.csv").read_text() == (
        "workload_1,slowdown_1,workload_2,slowdown_2,gpu_model,status\n"
        "a,1.0,b,0.30000000000000004,V100,ok\n"
    )


def test_every_field_of_a_profile_has_its_column():
    fields = set(SoloProfile.model_fields)
    assert {column.path.partition(".")[0] for column in PROFILE_COLUMNS} == fields
    distinguished = {column.path.partition("[")[0] for column in pair_columns(2)}
    assert distinguished - {"status"} == set(Measurement.model_fields)


def test_the_page_names_every_column():
    page = (
        Path(__file__).parents[3].joinpath("docs/reference/datasets.md").read_text(encoding="utf-8")
    )
    columns = {column.name for column in (*PROFILE_COLUMNS, *pair_columns(2))}
    variances = {f"{name}_variance" for name in METRICS}
    assert not [name for name in columns - variances if f"`{name}`" not in page]


def test_writing_again_replaces_both_tables(tmp_path):
    write_dataset(read_dataset(folder_of(tmp_path, PROFILES, PAIRS)), tmp_path / "d")
    write_dataset(DataSet(name="d", profiles=()), tmp_path / "d")
    data = read_dataset(tmp_path / "d")
    assert (data.profiles, data.measurements) == ((), ())
    assert sorted(os.listdir(tmp_path / "d")) == ["pairs.csv", "profiles.csv"]


def test_a_table_in_another_form_is_not_shadowed(tmp_path):
    (tmp_path / "pairs.csv.gz").write_bytes(gzip.compress(PAIRS.encode()))
    data = read_dataset(tmp_path)
    with pytest.raises(InputError, match=r"has a file pairs.csv.gz: a data set holds each table"):
        write_dataset(data, tmp_path)
    assert os.listdir(tmp_path) == ["pairs.csv.gz"]


def test_a_failed_write_is_reported(tmp_path):
    data = DataSet(name="d", profiles=(SoloProfile(workload="a", gpu_model="V100"),))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file: cannot be written: file exists"):
        write_dataset(data, tmp_path / "file")
    with pytest.raises(InputError, match=r"x.db: must be a folder; a repository is appended to"):
        write_dataset(data, tmp_path / "x.db")
    (tmp_path / "d" / "profiles.csv.tmp").mkdir(parents=True)
    write_dataset(data, tmp_path / "d")


# --- broken input


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        (
            "workload,gpu_model,share\na,V100,0\n",
            "D/profiles.csv: line 2: share: must be >= 1, got 0",
        ),
        (
            "workload,gpu_model,share\n\na,V100,half\n",
            "D/profiles.csv: line 3: share: must be a number, got 'half'",
        ),
        (
            "workload,gpu_model,power_w\na,V100,2_0\n",
            "D/profiles.csv: line 2: power_w: must be a number, got '2_0'",
        ),
        (
            "workload,gpu_model,power_w\na,V100,\u0661\n",
            "D/profiles.csv: line 2: power_w: must be a number, got '\u0661'",
        ),
        (
            "",
            "D/profiles.csv: line 1: must have the columns workload, gpu_model; "
            "missing: workload, gpu_model, got none",
        ),
        (
            "workload,gpu_model,share\na,V100,12.5\n",
            "D/profiles.csv: line 2: share: must be a whole number, got '12.5'",
        ),
        (
            "workload,gpu_model,sm_active\na,V100,90\n",
            "D/profiles.csv: line 2: sm_active: must be <= 1, got 90",
        ),
        (
            "workload,gpu_model,ipc_variance\na,V100,-1\n",
            "D/profiles.csv: line 2: ipc_variance: must be >= 0, got -1",
        ),
        (
            "workload,gpu_model,power_w\na,V100,nan\n",
            "D/profiles.csv: line 2: power_w: must be a finite number, got nan",
        ),
        (
            "workload,gpu_model,workers\na,V100,inf\n",
            "D/profiles.csv: line 2: workers: must be a whole number, got 'inf'",
        ),
        (
            "workload,gpu_model,date\na,V100,soon\n",
            "D/profiles.csv: line 2: date: must be an ISO 8601 date, got 'soon'",
        ),
        ("workload,gpu_model\n,V100\n", "D/profiles.csv: line 2: workload: this field is required"),
        (
            "workload,gpu_model\n ,V100\n",
            "D/profiles.csv: line 2: workload: must be one line of printable characters, "
            "not all blank, got ' '",
        ),
        (
            "workload,gpu_modl\na,V100\n",
            "D/profiles.csv: line 1: unknown column 'gpu_modl', did you mean gpu_model?",
        ),
        ("workload,gpu_model,xyz\n", "D/profiles.csv: line 1: unknown column 'xyz'"),
        (
            "workload,gpu_model,share,share\n",
            "D/profiles.csv: line 1: column 'share' is given twice",
        ),
        (
            "workload\na\n",
            "D/profiles.csv: line 1: must have the columns workload, gpu_model; "
            "missing: gpu_model, got workload",
        ),
        (
            "",
            "D/profiles.csv: line 1: must have the columns workload, gpu_model; missing: workload",
        ),
        ("workload,gpu_model\na\n", "D/profiles.csv: line 2: must have 2 fields, got 1"),
    ],
)
def test_a_broken_profile_is_reported_with_line_and_column(tmp_path, profiles, message):
    assert error_of(folder_of(tmp_path, profiles)).startswith(message)


HEADER = "workload_1,share_1,slowdown_1,workload_2,share_2,slowdown_2,gpu_model,status"
WIDE = HEADER + ",workload_3,share_3,slowdown_3,workload_4,slowdown_4"


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        (HEADER, "a,,1,b,,0,V100,ok", "line 2: slowdown_2: must be >= 0.001, got 0"),
        (HEADER, "a,,1,b,101,1,V100,ok", "line 2: share_2: must be <= 100, got 101"),
        (HEADER, "a,,,b,,1,V100,ok", "line 2: slowdown_1: must not be empty"),
        (HEADER, "a,,,b,,1,V100,", "line 2: slowdown_1: must not be empty"),
        (HEADER + ",p99_1", "a,,1,b,,1,V100,ok,0", "line 2: p99_1: must be >= 0.001, got 0"),
        (HEADER, "a,,1,,,1,V100,ok", "line 2: workload_2: must not be empty"),
        (HEADER, "a,,1,b,,1,,ok", "line 2: gpu_model: this field is required"),
        (
            WIDE,
            "a,,1,b,,1,V100,ok,,,,c,1",
            "line 2: workload_4: must be empty if workload_3 is, got 'c'",
        ),
        (
            WIDE,
            "a,,1,b,,1,V100,ok,,50,,,",
            "line 2: share_3: must be empty if workload_3 is, got 50",
        ),
        (
            HEADER + ",workload_5",
            "",
            "line 1: unknown column 'workload_5', did you mean workload_2?",
        ),
        (
            HEADER.replace("slowdown_2", "slowdwn_2"),
            "",
            "line 1: unknown column 'slowdwn_2', did you mean slowdown_2",
        ),
        (
            HEADER + ",slowdown_b",
            "",
            "line 1: column 'slowdown_b' is given twice, as 'slowdown_2'",
        ),
        (
            "workload_1,slowdown_1,workload_2,gpu_model",
            "",
            "line 1: must have the columns workload_1, slowdown_1, workload_2, slowdown_2, "
            "gpu_model; missing: slowdown_2, got workload_1",
        ),
    ],
)
def test_a_broken_pair_is_reported_with_line_and_column(tmp_path, header, row, message):
    text = "\n".join([header, *([row] if row else []), ""])
    assert error_of(folder_of(tmp_path, pairs=text)).startswith(f"D/pairs.csv: {message}")


def test_folders_that_are_no_data_set_are_reported(tmp_path):
    assert error_of(tmp_path) == "D: must have a file profiles.csv or pairs.csv"
    missing = "must be a folder with tables, or a repository (.db, .sqlite); does not exist"
    assert error_of(tmp_path / "none") == f"D: {missing}"
    (tmp_path / "file").write_text("x")
    assert error_of(tmp_path / "file").endswith("(.db, .sqlite); is a file")
    folder_of(tmp_path, PROFILES)
    (tmp_path / "profiles.parquet").write_bytes(b"")
    assert (
        error_of(tmp_path) == "D: must hold each table once, has profiles.csv and profiles.parquet"
    )


# --- Parquet


def test_parquet_of_other_writers_is_read(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {
        "workload": arrow.array(["a", "b"]).dictionary_encode(),
        "gpu_model": ["V100", "V100"],
        "share": [50.0, None],
        "throughput": arrow.array([10, 20]),
    }
    parquet.write_table(arrow.table(columns), tmp_path / "profiles.parquet")
    found = [(p.workload, p.share, p.throughput) for p in read_dataset(tmp_path).profiles]
    assert found == [("a", 50, 10.0), ("b", None, 20.0)]


def test_broken_parquet_is_reported_with_its_row(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    place = tmp_path / "profiles.parquet"
    parquet.write_table(
        arrow.table({"workload": ["a", "b"], "gpu_model": ["V"] * 2, "share": [1, 101]}), place
    )
    assert error_of(tmp_path) == "D/profiles.parquet: row 2: share: must be <= 100, got 101"
    parquet.write_table(arrow.table({"workload": ["a"], "colour": ["red"]}), place)
    assert error_of(tmp_path).startswith("D/profiles.parquet: columns: unknown column 'colour'")
    place.write_bytes(b"no parquet at all")
    assert error_of(tmp_path).startswith("D/profiles.parquet: must be a Parquet file: ")
    place.write_bytes(b"")
    assert error_of(tmp_path).startswith("D/profiles.parquet: must be a Parquet file: ")


def test_parquet_of_any_number_of_equal_rows_is_refused(tmp_path, monkeypatch):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    monkeypatch.setattr("dovetail.instances.reading.parquet.MOST_BYTES", 2**20)
    place = tmp_path / "profiles.parquet"
    same = arrow.DictionaryArray.from_arrays(arrow.array([0] * 2**17, arrow.int32()), ["a" * 100])
    parquet.write_table(arrow.table({"workload": same, "gpu_model": same}), place)
    assert place.stat().st_size < 2**16
    assert error_of(tmp_path).startswith(
        "D/profiles.parquet: must hold at most 1 MiB in 2000000 rows"
    )


READ_OR_WRITE = {
    "read": read_dataset,
    "write": lambda folder: write_dataset(
        DataSet(name="d", profiles=(SoloProfile(workload="a", gpu_model="V100"),)), folder, True
    ),
}


@pytest.mark.parametrize("action", READ_OR_WRITE.values(), ids=READ_OR_WRITE)
def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch, action):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "profiles.parquet").write_bytes(b"")
    with pytest.raises(UnsupportedError) as error:
        action(tmp_path)
    assert str(error.value) == "Parquet needs pyarrow: pip install './dovetail[parquet]'"
