"""Tables of pairs that are read as columns have the outcome of those read row by row."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.instances.errors import InputError
from dovetail.instances.generate import generate
from dovetail.instances.importers import _cells, pairs
from dovetail.instances.importers.plain_pairs import plain_pairs
from dovetail.instances.reading import parquet

HEADER = ["workload_1", "share_1", "slowdown_1", "workload_2", "share_2", "slowdown_2"]
WORLD = generate(6, seed=2, workloads=6, gangs=False)
BARE = WORLD.replace(slowdowns=())
MODEL = next(iter(WORLD.places.values())).gpu.model


def table() -> list[list[object]]:
    """Return the rows of a table of all pairs, every other one turned."""
    rows: list[list[object]] = [[*HEADER, "gpu_model", "power_w", "mode", "date", "status"]]
    for k, entry in enumerate(WORLD.slowdowns):
        ends = list(zip(entry.workloads, entry.shares, entry.slowdown or (), strict=True))
        (a, x, s), (b, y, t) = ends if k % 2 else ends[::-1]
        rows.append([a, x or "", s, b, y or "", t, MODEL, entry.power_w, "", "2026-11-21", "ok"])
    return rows


def text_of(rows: list[list[object]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("pairs") / "pairs.csv"


def outcome(path, by_rows, instance=BARE):
    with pytest.MonkeyPatch.context() as patch:
        if by_rows:
            patch.setattr(pairs, "plain_pairs", lambda path: None)
        try:
            return pairs.with_pairs(instance, path)
        except InputError as error:
            return str(error)


def test_a_whole_table(path):
    path.write_text(text_of(table()))
    assert plain_pairs(path) is not None
    found = outcome(path, by_rows=False)
    assert found == outcome(path, by_rows=True)
    assert len(found.instance.slowdowns) == len(WORLD.slowdowns)
    assert found.notes == ()
    assert outcome(path, by_rows=False, instance=found.instance) == found


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_other_spellings_of_a_table(path, monkeypatch, quoting, ending, start):
    monkeypatch.setattr(_cells, "_BYTES_AT_ONCE", 512)
    rows = table()
    # Numbers, a name and a note of several words of bytes, which differ at their ends.
    rows[2][2], rows[3][2] = 1.2345678901234567, 1.2345678901234565
    rows[3][0], rows[4][0], rows[5][9] = "ä" * 50, "ä" * 49 + "b", "2026-11-22"
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=ending, quoting=quoting).writerows(rows)
    path.write_bytes((start + text.getvalue().removesuffix(ending)).encode())
    assert plain_pairs(path) is not None
    found = outcome(path, by_rows=False)
    assert found == outcome(path, by_rows=True)
    assert len(found.notes) == 2


def test_many_different_cells():
    values = np.arange(200_000) * 7919 % 100_003
    firsts, code = _cells._in_order(_cells._first_alike(values))
    assert firsts == list(range(100_003))
    assert np.array_equal(values[firsts][code], values)


def test_other_names_of_the_columns(path):
    rows = table()
    rows[0][:7] = ["job_a", "share_a", "slowdown_a", "job_b", "share_b", "slowdown_b", "device"]
    path.write_text(text_of(rows))
    assert plain_pairs(path) is not None
    assert outcome(path, by_rows=False) == outcome(path, by_rows=True)


def test_rows_of_others_are_left_out_with_notes(path):
    rows = table()
    rows[3][0], rows[5][6], rows[7][8] = "zz", "P9", "time_sliced"
    rows[7][1] = rows[7][4] = ""
    path.write_text(text_of(rows))
    assert plain_pairs(path) is not None
    found = outcome(path, by_rows=False)
    assert found == outcome(path, by_rows=True)
    assert len(found.notes) == 4


@given(st.data())
def test_a_changed_cell(path, draw):
    rows = table()
    row = draw.draw(st.integers(0, 40))
    column = draw.draw(st.integers(0, len(rows[0]) - 1))
    values = ["", " ", "w00", " w1", "1_0", "nan", "inf", "-1", "0", "101", "30", "50.0", "idle"]
    values += ["1.5", "1e3", "25", "shared", "time_sliced", "failed", "no date", "p99_1", "ä", "٣"]
    rows[row][column] = draw.draw(st.sampled_from(values))
    path.write_text(text_of(rows))
    assert outcome(path, by_rows=False) == outcome(path, by_rows=True)


def columns_of(rows: list[list[object]]) -> dict[str, Any]:
    """Return rows as pyarrow's columns; an empty cell is a missing one."""
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra parquet)")
    cells = dict(zip(rows[0], zip(*rows[1:], strict=True), strict=True))
    return {
        str(name): arrow.array([None if cell == "" else cell for cell in column])
        for name, column in cells.items()
    }


def as_parquet(path: Path, rows: list[list[object]]) -> None:
    """Write rows; an empty cell is a missing one."""
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra parquet)")
    from pyarrow.parquet import write_table

    write_table(arrow.table(columns_of(rows)), path)


@pytest.mark.parametrize("rows_at_once", [16, 1024])
@pytest.mark.parametrize(
    "names", [HEADER, ["job_a", "share_a", "slowdown_a", "job_b", "share_b", "slowdown_b"]]
)
def test_a_table_as_parquet(path, monkeypatch, names, rows_at_once):
    monkeypatch.setattr(parquet, "_BATCH_ROWS", rows_at_once)
    monkeypatch.setattr(parquet, "_BYTES_AT_ONCE", 4096)
    place = path.with_suffix(".parquet")
    rows = table()
    rows[0][:6] = names
    as_parquet(place, rows)
    assert plain_pairs(place) is not None
    path.write_text(text_of(rows))
    assert outcome(place, by_rows=False) == outcome(place, by_rows=True)
    assert outcome(place, by_rows=False) == outcome(path, by_rows=False)


@given(st.data())
def test_a_changed_cell_of_parquet(path, draw):
    place = path.with_suffix(".parquet")
    rows = table()
    row, column = draw.draw(st.integers(1, 40)), draw.draw(st.integers(0, len(rows[0]) - 1))
    odd: list[object] = ["", " ", "w00", "idle", "failed", 30, 0, 101, 1.5, 25.0, -1.0, True]
    rows[row][column] = draw.draw(st.sampled_from(odd))
    if draw.draw(st.booleans()):
        rows = [[str(cell) for cell in row] for row in rows]
    try:
        as_parquet(place, rows)
    except (TypeError, ValueError):
        return  # Not one type in a column: no such file.
    assert outcome(place, by_rows=False) == outcome(place, by_rows=True)


def test_lists_in_parquet_are_left_to_the_reader_of_rows(path):
    place = path.with_suffix(".parquet")
    rows = table()
    for row in rows[1:]:
        row[9] = [row[9]]
    as_parquet(place, rows)
    assert plain_pairs(place) is None
    assert outcome(place, by_rows=False) == outcome(place, by_rows=True)


@pytest.mark.parametrize("row_group_size", [7, 1024])
@pytest.mark.parametrize("column", [0, 9, 10])
def test_categories_in_parquet(path, column, row_group_size):
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra parquet)")
    from pyarrow.parquet import write_table

    place = path.with_suffix(".parquet")
    rows = table()
    rows[9][column] = ""
    columns = columns_of(rows)
    for name in ("workload_1", "workload_2", "gpu_model", "date"):
        columns[name] = columns[name].dictionary_encode()
    # No row has the second.
    all_first = arrow.array([0] * len(rows[1:]), arrow.int8())
    columns["driver"] = arrow.DictionaryArray.from_arrays(all_first, ["550", ""])
    write_table(arrow.table(columns), place, row_group_size=row_group_size)
    assert (plain_pairs(place) is None) == (column == 0)
    assert outcome(place, by_rows=False) == outcome(place, by_rows=True)


def test_two_columns_of_one_name_in_parquet(path):
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra parquet)")
    from pyarrow.parquet import write_table

    place = path.with_suffix(".parquet")
    columns = columns_of(table())
    made = arrow.table([*columns.values(), columns["date"]], names=[*columns, "date"])
    write_table(made, place)
    assert plain_pairs(place) is None
    assert "column 'date' is given twice" in outcome(place, by_rows=False)
