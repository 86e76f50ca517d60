"""Importers of the core: hand-made tables of pairs with known slowdowns, and broken files."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import pytest

from dovetail.instances.errors import InputError
from dovetail.instances.importers.pairs import import_pairs
from dovetail.instances.instance import Instance
from dovetail.instances.traces import read_trace

needs_pyarrow = pytest.mark.skipif(
    find_spec("pyarrow") is None, reason="pyarrow is not installed (extra parquet)"
)


def slowdowns_of(instance: Instance) -> dict[tuple[str, str], tuple[float, ...] | None]:
    return {entry.pair: entry.slowdown for entry in instance.slowdowns if entry.pair}


# --- files that cannot be read


def test_gzip_is_read_transparently(tmp_path):
    plain = pairs_file(tmp_path, "me,A,shared,1,x,y,1.5,2,ok,")
    packed = tmp_path / "pairs.csv.gz"
    packed.write_bytes(gzip.compress(Path(plain).read_bytes()))
    found, expected = (import_pairs(path, 2).instance for path in (str(packed), plain))
    assert found.replace(name=expected.name) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.csv", b"\xff\xfe", "must be UTF-8 text, got another byte at 0"),
        ("p.csv", b'"' + b"x" * 200_000, "line 1: must be a table: field larger than"),
        ("p.csv", b"", "line 1: must have the columns"),
        ("p.csv.gz", b"device", "must be a gzip file"),
        ("p.csv.gz", gzip.compress(b"device", mtime=0)[:-4], "must be a whole gzip file"),
    ],
)
def test_unreadable_table_gives_one_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        import_pairs(str(path), 1)
    assert str(error.value).startswith(f"{path}: {message}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        *("pairs.csv", "pairs.csv.gz", "t.swf", "t.csv.gz"),
        pytest.param("t.parquet", marks=needs_pyarrow),
    ],
)
def test_tables_of_any_size_are_refused_in_little_memory(tmp_path, name, monkeypatch):
    monkeypatch.setattr("dovetail.instances.reading.contents.MOST_BYTES", 2**20)
    path = tmp_path / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(b"a,b\n" * 2**20))
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(InputError) as error:
        import_pairs(str(path), 1) if "pairs" in name else read_trace(path)
    assert str(error.value) == f"{path}: must hold at most 1 MiB, got more"


def test_tables_of_any_number_of_rows_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail.instances.reading.tables.MOST_ROWS", 3)
    path = pairs_file(tmp_path, *["me,A,shared,1,x,y,1,1,ok,"] * 3)
    with pytest.raises(InputError, match=r"pairs\.csv: must have at most 3 lines"):
        import_pairs(path, 1)


def test_absent_file_gives_one_line(tmp_path):
    with pytest.raises(InputError, match="cannot be read: no such file or directory"):
        import_pairs(str(tmp_path / "none.csv"), 1)


# --- pairs

NO_SLOWDOWNS = "slowdowns: must be iteration time together / alone;"
HEADER = "source,device,mode,gpus,job_a,job_b,slowdown_a,slowdown_b,status,note"


def pairs_file(folder: Path, *rows: str, header: str = HEADER) -> str:
    path = folder / "pairs.csv"
    path.write_text("\n".join([header, *rows, ""]))
    return str(path)


def test_pairs_of_one_device(tmp_path):
    rows = [
        "me,A,shared,1,x,y,1.5,2.0,ok,",
        "me,A,shared,1,y,y,,,oom,",
        "me,B,shared,1,x,z,1,1,ok,",
    ]
    instance = import_pairs(pairs_file(tmp_path, *rows), 2, device="A").instance
    assert slowdowns_of(instance) == {("x", "y"): (1.5, 2.0), ("y", "y"): None}
    assert [job.id for job in instance.jobs] == ["x", "y"]
    assert {entry.gpu_model for entry in instance.slowdowns} == {"A"}


def test_pairs_may_have_the_growth_of_tail_latencies(tmp_path):
    rows = ["me,A,shared,1,x,y,1.5,2.0,ok,,2.5,", "me,A,shared,1,x,x,1,1,ok,,,"]
    path = pairs_file(tmp_path, *rows, header=HEADER + ",p99_a,p99_b")
    instance = import_pairs(path, 1).instance
    assert [entry.p99 for entry in instance.slowdowns] == [(2.5, 2.0), None]
    broken = pairs_file(tmp_path, rows[0].replace("2.5", "0"), header=HEADER + ",p99_a,p99_b")
    with pytest.raises(InputError, match=r"line 2: p99_a: must be >= 0\.001, got 0"):
        import_pairs(broken, 1)


def test_pairs_of_all_devices_get_nodes_and_entries_of_each(tmp_path):
    rows = ["me,A,shared,1,x,y,1.5,2.0,ok,", "me,B,shared,1,x,y,1.1,1.2,ok,"]
    instance = import_pairs(pairs_file(tmp_path, *rows), 2).instance
    found = [(entry.gpu_model, entry.slowdown) for entry in instance.slowdowns]
    assert found == [("A", (1.5, 2.0)), ("B", (1.1, 1.2))]
    assert [place.gpu.model for place in instance.places.values()] == ["A", "A", "B", "B"]


def test_pairs_measured_twice_keep_their_mean_speed(tmp_path):
    rows = ["me,A,shared,1,x,y,1.0,2.0,ok,", "me,A,shared,1,y,x,4.0,1.25,ok,"]
    instance = import_pairs(pairs_file(tmp_path, *rows), 1).instance
    # x: speeds 1 and 0.8, mean 0.9; y: speeds 0.5 and 0.25, mean 0.375.
    assert slowdowns_of(instance) == {("x", "y"): pytest.approx((1 / 0.9, 1 / 0.375))}


def test_pair_that_failed_once_may_not_share(tmp_path):
    rows = ["me,A,shared,1,x,y,1.0,2.0,ok,", "me,A,shared,1,y,x,,,oom,"]
    assert slowdowns_of(import_pairs(pairs_file(tmp_path, *rows), 1).instance) == {("x", "y"): None}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "must have at least one row"),
        (["me,A,shared,1,x,y,1"], "line 2: must have 10 fields, got 7"),
        (["me,A,mig,1,x,y,1,1,ok,"], "line 2: mode: must be 'mps' or 'time_sliced', got 'mig'"),
        (["me,A,shared,2,x,y,1,1,ok,"], "line 2: gpus: must be 1 or empty, got 2"),
        (["me,A,shared,1,x,y,0,1,ok,"], "line 2: slowdown_a: must be >= 0.001, got 0"),
        (["me,A,shared,1,x,y,1,nan,ok,"], "line 2: slowdown_b: must be a finite number"),
        (["me,A,shared,1,x,,1,1,ok,"], "line 2: job_b: must not be empty"),
        (["me,A,,,x,y,1,,ok,"], "line 2: slowdown_b: must not be empty if status is ok"),
        (["me,A,,,x,y,1,1,,", "Total,,,,,,2,2,,"], "line 3: job_a: must not be empty, as each row"),
        (["me,A,,,x,y,108,131,,"], f"{NO_SLOWDOWNS} half are at least 108, as percentages are"),
        (["me,A,,,x,y,0.8,0.3,,"], f"{NO_SLOWDOWNS} half are at most 0.55, as speeds are"),
        (
            ["me,A,,,x,y,0.95,0.97,,", "me,A,,,x,z,0.6,0.62,,", "me,A,,,y,z,0.97,0.99,,"],
            f"{NO_SLOWDOWNS} none is above 1 and the least is 0.6, as speeds are",
        ),
    ],
)
def test_pairs_say_where_the_file_is_broken(tmp_path, rows, message):
    path = pairs_file(tmp_path, *rows)
    with pytest.raises(InputError) as error:
        import_pairs(path, 1)
    assert str(error.value).startswith(f"{path}: {message}")


def test_pairs_missing_columns_are_named(tmp_path):
    path = pairs_file(tmp_path, header="device,mode,gpus,job_a,job_b,slowdown_a")
    with pytest.raises(InputError, match=r"line 1: .*missing: slowdown_b, got device"):
        import_pairs(path, 1)
    path = pairs_file(tmp_path, header="Device,Job_A,Job_B,Slowdown_A,Slowdown_B")
    with pytest.raises(InputError, match=r"missing: job_a \(is it 'Job_A'\?\), slowdown_a"):
        import_pairs(path, 1)
    path = pairs_file(tmp_path, header="Job_A,job_b,slowdown_a,gpu")
    with pytest.raises(InputError) as error:
        import_pairs(path, 1)
    assert str(error.value) == (
        f"{path}: line 1: must have the columns job_a, slowdown_a, job_b, slowdown_b, device; "
        "missing: job_a (is it 'Job_A'?), slowdown_b, device, "
        "got Job_A, job_b, slowdown_a, gpu"
    )


@pytest.mark.parametrize(
    ("cell", "hint"),
    [("1,09", " (write a decimal point)"), ("109%", " (divide by 100)"), ("x", "")],
)
def test_how_to_write_a_number_is_reported(tmp_path, cell, hint):
    header = "job_a;slowdown_a;job_b;slowdown_b;device"
    path = pairs_file(tmp_path, f"x;{cell};y;1.2;A", header=header)
    with pytest.raises(InputError) as error:
        import_pairs(path, 1)
    message = f"line 2: slowdown_a: must be a number, got '{cell}'{hint}"
    assert str(error.value) == f"{path}: {message}"


def test_pairs_of_data_sets_are_read_too(tmp_path):
    header = "workload_1,slowdown_1,share_1,workload_2,slowdown_2,share_2,gpu_model"
    rows = ["x,1.5,40,y,2.0,60,A", ",,,,,,", "x,1.4,,y,1.6,,A"]
    instance = import_pairs(pairs_file(tmp_path, *rows, header=header), 1).instance
    assert [entry.share for entry in instance.slowdowns] == [(40, 60), None]
    assert instance.cluster.shares == (40, 60)


def test_only_names_slowdowns_and_device_are_needed(tmp_path):
    header = "job_a;slowdown_a;job_b;slowdown_b;device"
    instance = import_pairs(pairs_file(tmp_path, "x;1.5; y;2.0;A", header=header), 1).instance
    assert slowdowns_of(instance) == {("x", "y"): (1.5, 2.0)}


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        ([], "columns that are not read: note"),
        ([], "no memory figures: a GPU gets 16384 MiB and a workload needs 0"),
        (["me,A,,,X,y,1.2,1.2,,"], "x, X differ in case only and are 2 workloads"),
        (
            ["me,A,,,x,z,1.2,0.3,,"],
            "1 slowdown below 0.5 or above 20: speeds or percentages? "
            "The first is 0.3 of x + z on A",
        ),
        (
            ["me,A,,,y,x,1.2,3.9,,"],
            "repeats of 1 slowdown differ by more than a factor of 2 and are averaged, "
            "as x in x + y on A from 1.1 to 3.9",
        ),
        (
            ["me,A,,,x,z,0.97,0.99,,", "me,A,,,y,z,0.98,0.6,,"],
            "4 of 6 slowdowns are below 1: speeds?",
        ),
    ],
)
def test_pairs_that_are_likely_mistakes_are_noted(tmp_path, rows, note):
    path = pairs_file(tmp_path, "me,A,shared,1,x,y,1.1,1.2,OK,", *rows)
    assert note in import_pairs(path, 1).notes


def test_slowdowns_below_1_by_noise_are_taken(tmp_path):
    rows = ["me,A,,,x,y,0.97,1.2,,", "me,A,,,x,z,0.98,1.1,,"]
    notes = import_pairs(pairs_file(tmp_path, *rows), 1).notes
    assert not any("speeds" in note for note in notes)
    rows = ["me,A,,,x,y,0.97,1,,", "me,A,,,x,z,0.98,0.99,,"]
    found = import_pairs(pairs_file(tmp_path, *rows), 1)
    assert "3 of 4 slowdowns are below 1: speeds?" in found.notes
    assert slowdowns_of(found.instance)["x", "y"] == (0.97, 1.0)


def test_pairs_unknown_device_lists_the_known(tmp_path):
    path = pairs_file(tmp_path, "me,A,shared,1,x,y,1,1,ok,")
    with pytest.raises(InputError, match=r"device: must be one of A, got 'B'"):
        import_pairs(path, 1, device="B")
