"""Random file contents give a record or an error of one line.

Changed bytes are in `tests.mutants`; here data are changed, and texts made up.
"""

from __future__ import annotations

import json
from copy import deepcopy
from time import process_time

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dovetail.instances.errors import InputError
from dovetail.instances.files import read_instance, read_plan
from dovetail.instances.reading import contents
from tests.data import example_data, plan_data

PARSERS = [yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)]
SECONDS = 10

odd_values = st.sampled_from(
    [
        *(None, True, False, 0, -1, 1, 2, 101, 10**9, 10**30, 10**400, 0.5, -0.0, 1e-300, 1e300),
        *(float("nan"), float("inf"), "", "n0-0", "j1", "bert", "\n", "\x00", "\ud800", "名"),
        *([], {}, [[]], {"": None}, [None], ["n0-0"], {"a": {"a": {}}}, "running", "x" * 1000),
    ]
).map(deepcopy)
random_data = st.recursive(
    odd_values | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def places(data, path=()):
    """Return the path of every value inside ``data``."""
    inner = data.items() if isinstance(data, dict) else enumerate(data)
    found = []
    for key, value in inner:
        found.append((*path, key))
        if isinstance(value, dict | list):
            found += places(value, (*path, key))
    return found


def mutate(draw, data):
    """Delete, replace, or add to one value at a random place of ``data``."""
    *above, last = draw(st.sampled_from(places(data)))
    holder = data
    for part in above:
        holder = holder[part]
    match draw(st.sampled_from(["delete", "replace", "rename", "repeat"])):
        case "delete":
            del holder[last]
        case "replace":
            holder[last] = draw(odd_values | random_data)
        case "rename" if isinstance(holder, dict):
            holder[draw(st.sampled_from(["", "50", "gpus", "share", "a.b"]) | st.text())] = (
                holder.pop(last)
            )
        case "repeat" if isinstance(holder, list):
            holder.append(holder[last])


@st.composite
def mutated(draw, start):
    """Draw a valid file's data with one to three changes."""
    data = start()
    for _ in range(draw(st.integers(1, 3))):
        if not places(data):
            break
        mutate(draw, data)
    return data


def judge(read, path):
    """Read a file and fail unless it is a record or one line of complaint, soon."""
    start = process_time()
    try:
        assert read(path).to_data()["format"]
    except InputError as error:
        text = str(error)
        assert text.startswith(f"{path}: ")
        assert len(text.splitlines()) == 1
        assert text.isprintable()
        assert len(text) < len(str(path)) + 500
    assert process_time() - start < SECONDS


@pytest.fixture
def folder(tmp_path_factory):
    return tmp_path_factory.getbasetemp()


fuzzed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@fuzzed
@given(data=mutated(example_data))
def test_changed_instances(folder, data):
    path = folder / "fuzz.json"
    path.write_text(json.dumps(data))
    judge(read_instance, path)


@fuzzed
@given(data=mutated(plan_data))
def test_changed_plans(folder, data):
    path = folder / "fuzz.json"
    path.write_text(json.dumps(data))
    judge(read_plan, path)


@fuzzed
@given(data=random_data)
def test_any_data(folder, data):
    path = folder / "fuzz.json"
    path.write_text(json.dumps(data))
    judge(read_instance, path)
    judge(read_plan, path)


@pytest.mark.parametrize("parser", PARSERS)
@fuzzed
@given(
    text=st.text(st.sampled_from("ab01 \n\t:-,[]{}&*!|>'\"%@`#?~.\\\x85\u2028\ufeff"), max_size=60)
)
@example(text='"\\U00110000"')
@example(text='"\\ud800": 1')
@example(text="!<tag:yaml.org,2002:str> a")
@example(text="%TAG ! tag:x\n---\n!a b")
@example(text="%YAML 9.9\n---\na")
@example(text="a: " + "0x" + "f" * 5000)
def test_any_yaml(folder, parser, text):
    path = folder / "fuzz.yaml"
    path.write_text(text, encoding="utf-8")
    kept, contents.LOADER = contents.LOADER, parser
    try:
        judge(read_plan, path)
    finally:
        contents.LOADER = kept


@fuzzed
@given(text=st.text(st.sampled_from('ab01 \n:,[]{}"\\eE+-.tfnu\x00\ufeff'), max_size=60))
def test_any_json(folder, text):
    path = folder / "fuzz.json"
    path.write_text("{" + text, encoding="utf-8")
    judge(read_plan, path)


@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
@pytest.mark.parametrize(
    "piece",
    ["[", "{", "- ", "? ", "a: ", "[{", "&a ", "!a ", "*a ", "'", '"', "|\n", "\\", "%", "- - "],
)
def test_endless_repetition_ends_soon(folder, name, piece):
    (folder / name).write_text(piece * 200_000)
    judge(read_plan, folder / name)
