import gzip
import math
import sys
from dataclasses import replace

import numpy as np
import pytest

from dovetail.executor.simulation import results
from dovetail.executor.simulation.results import RunResult
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import run, trace, world

JOBS = trace((0, 1, 10, "a", 1.5), (1, 2, 7.3, "b"), (2.25, 1, 4, "a"), tenant="me, too")


@pytest.fixture(scope="module")
def result():
    return RunResult.of("fifo", 3, run(JOBS, world(gpus=2), policy_named("fifo")), JOBS, "f1")


@pytest.fixture(params=["csv", "parquet"])
def kind(request, monkeypatch):
    if request.param == "parquet":
        pytest.importorskip("pyarrow")
    else:
        monkeypatch.setattr(results, "find_spec", lambda name: None)
    return request.param


def same(one, other):
    assert list(one) == list(other)
    for name in one:
        assert one[name].dtype.kind == other[name].dtype.kind, name
        np.testing.assert_array_equal(one[name], other[name])


def test_reads_what_it_wrote(result, kind, tmp_path):
    result.write(tmp_path / "run")
    found = RunResult.read(tmp_path / "run")
    assert (found.policy, found.seed, found.fingerprint) == ("fifo", 3, "f1")
    assert list(found.summary) == list(result.summary)
    np.testing.assert_array_equal(list(found.summary.values()), list(result.summary.values()))
    for name in ("jobs", "series", "stays"):
        same(getattr(found, name), getattr(result, name))
    files = {path.name for path in (tmp_path / "run").iterdir()}
    ending = "parquet" if kind == "parquet" else "csv.gz"
    assert files == {"summary.json", *(f"{n}.{ending}" for n in ("jobs", "series", "stays"))}


def test_keeps_which_stays_are_at_idle(result, kind, tmp_path):
    idle = np.array([True, False, *[False] * (len(result.stays["share"]) - 2)])
    replace(result, stays=result.stays | {"best_effort": idle}).write(tmp_path / "run")
    found = RunResult.read(tmp_path / "run").stays["best_effort"]
    assert (found.dtype.kind, found.tolist()) == ("b", idle.tolist())


def test_takes_the_place_of_a_run_and_of_nothing_else(result, kind, tmp_path):
    result.write(tmp_path / "run")
    result.write(tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("mine")
    with pytest.raises(InputError, match="holds something other than a run"):
        result.write(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter1.tex").read_text() == "mine"


def test_what_is_interrupted_leaves_nothing(result, tmp_path, monkeypatch):
    def interrupted(table, path):
        raise KeyboardInterrupt

    monkeypatch.setattr(results, "_write_table", interrupted)
    with pytest.raises(KeyboardInterrupt):
        result.write(tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_summary_can_be_read_without_the_tables(result, tmp_path):
    result.write(tmp_path / "run")
    about = RunResult.read(tmp_path / "run", tables=False)
    assert about.jobs == about.series == about.stays == {}
    assert about.summary["jct_mean_s"] == result.summary["jct_mean_s"]
    assert math.isnan(about.summary["energy_kwh"])


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("{}", "format: must be 'dovetail-run/1'"),
        ('{"format": "dovetail-run/1"}', "must have policy, seed and metrics"),
        ("{", "is not valid JSON"),
    ],
)
def test_a_broken_summary_is_reported(text, rule, tmp_path):
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(InputError, match=rule):
        RunResult.read(tmp_path)


def test_broken_tables_are_reported(result, kind, tmp_path):
    result.write(tmp_path / "run")
    table = next((tmp_path / "run").glob("jobs.*"))
    table.write_bytes(b"job,workers\nj0,many\n")
    with pytest.raises(InputError, match="jobs"):
        RunResult.read(tmp_path / "run")


def test_a_cell_that_is_neither_true_nor_false_is_reported(result, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "find_spec", lambda name: None)
    result.write(tmp_path / "run")
    table = tmp_path / "run" / "stays.csv.gz"
    table.write_bytes(gzip.compress(gzip.decompress(table.read_bytes()).replace(b"False", b"101")))
    with pytest.raises(InputError, match="must be True or False, got '101'"):
        RunResult.read(tmp_path / "run")


def test_a_folder_that_cannot_be_written_is_reported(result, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        result.write(tmp_path / "file" / "run")


def test_parquet_without_pyarrow_is_reported(result, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    result.write(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        UnsupportedError, match=r"needs pyarrow: pip install './dovetail\[parquet\]'"
    ):
        RunResult.read(tmp_path / "run")
