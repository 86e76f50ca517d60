"""Slowdowns as columns: the same entries, and the same errors, as their records."""

from __future__ import annotations

import pickle
from copy import deepcopy
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from dovetail.instances.errors import ArgumentError
from dovetail.instances.instance import Instance
from dovetail.instances.reading.contents import yaml_line
from dovetail.instances.reading.json_text import json_line
from dovetail.instances.slowdowns.columns import Slowdowns, SlowdownsField
from dovetail.instances.slowdowns.entry import MODES, GpuKind, SlowdownEntry
from dovetail.instances.slowdowns.lines import entry_lines
from tests.instances.odd import TRAPS

COLUMNS = TypeAdapter(SlowdownsField)
RECORDS = TypeAdapter(tuple[SlowdownEntry, ...])

NAMES = st.sampled_from("abcd")
FIGURE = st.floats(1.0, 3.0) | st.just(2)
SHARE = st.sampled_from([None, 30, 70, "idle"])


@st.composite
def plain(draw: st.DrawFn) -> dict[str, Any]:
    """Draw an entry as in a file, most of which are valid."""
    size = draw(st.sampled_from([2, 2, 2, 3]))
    members = draw(st.lists(NAMES, min_size=size, max_size=size))
    entry: dict[str, Any] = {
        "pair" if size == 2 else "set": members,
        "slowdown": draw(st.none() | st.lists(FIGURE, min_size=size, max_size=size)),
    }
    figures = st.lists(FIGURE, min_size=size, max_size=size)
    more = {
        "share": st.none() | st.lists(SHARE, min_size=size, max_size=size),
        "upper": figures.map(lambda values: [value + 2 for value in values]) | figures,
        "p99": figures,
        "power_w": st.floats(10, 400) | st.just(1e-5),
        "gpu_model": st.sampled_from(["A100", "V100", None]),
        "source": st.sampled_from(["measured", "model", "estimate", None]),
        "confidence": st.sampled_from([0.9, 0.5]),
        "mode": st.sampled_from(["mps", "time_sliced"]),
    }
    chosen = draw(st.sets(st.sampled_from([*more]), max_size=4))
    return entry | {name: draw(more[name]) for name in more if name in chosen}


def is_valid(entry: dict[str, Any]) -> bool:
    try:
        SlowdownEntry.model_validate(entry)
    except ValidationError:
        return False
    return True


VALID = st.lists(plain().filter(is_valid), max_size=8)


def canonical(entry: SlowdownEntry) -> SlowdownEntry:
    """Return an entry in which no cap for both is the same as no shares."""
    return entry if entry.pair is None or any(entry.shares) else entry.replace(share=None)


@given(VALID)
def test_they_are_a_sequence_of_their_entries(data):
    records = [canonical(entry) for entry in RECORDS.validate_python(data)]
    for known in (COLUMNS.validate_python(data), Slowdowns.of(records)):
        assert list(known) == records == [known[k] for k in range(len(records))]
        assert known == Slowdowns.of(records) == tuple(records)
        assert list(known[1:-1]) == records[1:-1]
        assert list(known[::-2]) == records[::-2]
        assert list(known.to_data()) == [entry.to_data() for entry in records]
        assert pickle.loads(pickle.dumps(known)) == deepcopy(known) == known
        with pytest.raises(IndexError):
            known[len(records)]


@given(VALID, st.permutations(TRAPS))
def test_their_lines_in_files_are_those_of_their_entries(data, names):
    known = COLUMNS.validate_python(data).renamed(dict(zip("abcd", names, strict=False)))
    for as_text in (json_line, yaml_line):
        lines = list(chain.from_iterable(entry_lines(known, as_text)))
        assert lines == [as_text(entry.to_data()) for entry in known]


@given(VALID, VALID)
def test_more_come_after_them(first, second):
    known, more = COLUMNS.validate_python(first), COLUMNS.validate_python(second)
    assert list(known.extended(more)) == [*known, *more] == list(known.extended(list(more)))


@given(VALID, st.data())
def test_some_of_them_keep_their_order(data, draw):
    known = COLUMNS.validate_python(data)
    keep = draw.draw(st.sets(st.integers(0, len(known) - 1))) if len(known) else set()
    rows = np.isin(known.row, [*keep])
    chosen = known.select(rows, keep & known.sets.keys())
    assert list(chosen) == [known[k] for k in sorted(keep)]
    assert list(known.select(rows)) == [e for k, e in enumerate(known) if k in keep or e.set]


@given(VALID)
def test_entries_are_found_by_their_keys(data):
    known = COLUMNS.validate_python(data)
    first: dict[object, int] = {}
    repeated = [(k, i) for k, e in enumerate(known) if (i := first.setdefault(e.key, k)) != k]
    assert known.repeated() == next(iter(repeated), None)
    if repeated:
        return
    by_key = known.by_key
    assert dict(by_key.items()) == {entry.key: entry for entry in known}
    assert [*by_key] == [entry.key for entry in known]
    assert [*by_key.values()] == [*known]
    for entry in known:
        assert by_key[entry.key] == entry
        assert entry.key in by_key
    ab = (("a", 0), ("b", 0))
    for model, members in [("P4", ab), (None, (("a", 1), ("z", 0))), (None, (("a", 0),))]:
        for mode in MODES:
            assert (model, members, mode) not in by_key
            assert by_key.get((model, members, mode)) is None
    for odd in ("x", 5, None, ("P4", "ab"), (None, (("a", "no code"), ("b", 0)), "mps")):
        assert odd not in by_key
    assert (None, ab, "mig") not in by_key
    kinds = [GpuKind(model, mode) for model in ("A100", "K80") for mode in MODES]
    asked = [(kind, key[1]) for kind in kinds for key in first if len(key[1]) == 2]
    keys = [((kind.model, members, kind.sharing), members) for kind, members in asked]
    held = [by_key.get(key, by_key.get((None, members, key[2]))) for key, members in keys]
    rows = known.holding(asked).tolist()
    assert [None if row < 0 else known.at(row) for row in rows] == held


@given(VALID)
def test_entries_of_a_model_come_before_those_of_all(data):
    known = COLUMNS.validate_python(data)
    for mode in MODES:
        of_mode = [entry for entry in known if entry.mode == mode]
        own = {entry.key[1] for entry in of_mode if entry.gpu_model == "A100"}
        expected = [
            entry.gpu_model == "A100" or (entry.gpu_model is None and entry.key[1] not in own)
            if entry.mode == mode
            else False
            for entry in known
            if entry.pair
        ]
        assert known.holds_on("A100", mode).tolist() == expected


@given(VALID)
def test_workloads_can_be_numbered_and_named_otherwise(data):
    known = COLUMNS.validate_python(data)
    assert known.numbered("dcbae") == known
    new = dict(zip("abcd", "wxyz", strict=True))
    renamed = known.renamed(new)
    assert [e.workloads for e in renamed] == [tuple(map(new.get, e.workloads)) for e in known]
    assert known.used() == {name for entry in known for name in entry.workloads}


BROKEN = st.one_of(
    st.builds(
        lambda entry, name, value: {**entry, name: value},
        plain(),
        st.sampled_from([*SlowdownEntry.model_fields, "speed"]),
        st.sampled_from(
            [
                *(None, True, 0, 101, -1.5, 1e16, float("nan"), float("inf"), 10**400, 0.5, {}),
                *("", "a", "idle", "time_sliced", [], [1], [1.5, True], [1.5, "2"], ["a", ""]),
                *(["a", 1], [0, 0], [None, 1.5], ["idle", "idle"], [30.0, 70], [101, 1]),
                ["a", "b", "c"],
            ]
        ),
    ),
    plain(),
    st.sampled_from([None, 3, "a", [], {}, {"pair": ["a", "b"]}, {"slowdown": [1.5, 1.5]}]),
)


@given(st.lists(plain() | BROKEN, max_size=6))
def test_errors_are_those_of_the_records(data):
    def outcome(adapter):
        try:
            return [canonical(entry) for entry in adapter.validate_python(data)]
        except ValidationError as error:
            return error.errors(include_url=False, include_input=False)

    # Not a number is not equal to itself.
    assert repr(outcome(COLUMNS)) == repr(outcome(RECORDS))


def test_an_instance_numbers_them_by_its_workloads():
    made = Instance.build("lab")
    made.add_node("n", 1, "A100", 40000)
    for name in "cab":
        made.add_workload(name, 100)
    made.add_slowdown(["b", "a"], [1.1, 1.2])
    made.add_slowdowns(["a"], ["c"], [[1.3, 1.4]], gpu_model="A100")
    for instance in (made.instance(), Instance.from_data(made.instance().to_data())):
        assert instance.slowdowns.names == ("c", "a", "b")
        assert instance.slowdowns.workload.tolist() == [[2, 1], [1, 0]]
        assert instance.slowdowns.models == ("A100",)


def test_a_copy_of_an_instance_takes_any_entries():
    made = Instance.build("lab")
    made.add_workload("a", 100)
    instance = made.instance()
    entry = SlowdownEntry(pair=("a", "a"), slowdown=(1.2, 1.2))
    for copied in (
        instance.altered(slowdowns=(entry,)),
        instance.model_copy(update={"slowdowns": [entry]}),
    ):
        assert copied.entries[entry.key] == entry
        assert copied.slowdowns.names == ("a",)
    with pytest.raises(ArgumentError, match=r"slowdowns\[1\] must be a SlowdownEntry, got a dict"):
        instance.altered(slowdowns=(entry, {}))
    for wrong in (None, 3):
        with pytest.raises(ArgumentError, match=r"slowdowns must be an Iterable, got an? "):
            instance.altered(slowdowns=wrong)


def test_columns_cannot_be_written_to():
    known = Slowdowns.of([SlowdownEntry(pair=("a", "b"), slowdown=(1.1, 1.2))])
    with pytest.raises(ValueError, match="read-only"):
        known.slowdown[0] = 2.0


def test_more_gpu_models_than_a_short_number_holds():
    entries = [
        SlowdownEntry(pair=("a", "b"), slowdown=(1.1, 1.2), gpu_model=f"g{k}") for k in range(33000)
    ]
    known = Slowdowns.of(entries)
    assert known[-1].gpu_model == "g32999"
    assert known.repeated() is None


def test_a_copied_record_may_hold_numbers_of_numpy():
    entry = SlowdownEntry(pair=("a", "b"), slowdown=(1.1, 1.2))
    copied = entry.model_copy(update={"slowdown": (np.float64(1.3), np.float64(1.4))})
    assert Slowdowns.of([entry, copied])[1].slowdown == (1.3, 1.4)
    with pytest.raises(ValidationError, match="greater than or equal"):
        Slowdowns.of([entry.model_copy(update={"slowdown": (np.float64(0), 1.4)})])
