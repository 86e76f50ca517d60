"""Inputs of a few megabytes whose faults would take gigabytes of memory are refused before that.

Each is read by a process of its own, whose peak memory is what the kernel says.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dovetail.instances.errors import InputError
from dovetail.instances.reading.contents import json_items, parse_json, parse_yaml

MANY = 1_000_000
_READ = """
import resource, sys
from dovetail.instances.errors import InputError
from dovetail.instances.files import read_instance
from dovetail.instances.traces.files import read_trace
read = read_trace if sys.argv[1].endswith((".csv", ".swf")) else read_instance
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read(sys.argv[1])
except InputError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) // 1024)
"""


def _read(path):
    command = [sys.executable, "-c", _READ, str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


def _instance(**more):
    return {"format": "dovetail-instance/1", "name": "x", **more}


def _unknown(beginning):
    return {**beginning, **{f"k{number}": 0 for number in range(MANY)}}


def _late():
    return {**_unknown({}), **_instance(cluster={"nodes": []}, workloads={}, jobs=[])}


def _jobs():
    return _instance(cluster={"nodes": []}, workloads={}, jobs=[0] * MANY)


def _workloads():
    workloads = dict.fromkeys(map(str, range(MANY)), 0)
    return _instance(cluster={"nodes": []}, workloads=workloads, jobs=[])


def _rows():
    rows = "".join(f"j{number},{number},1,10\n" for number in range(2 * MANY + 1))
    return f"id,arrival_s,workers,duration_s\n{rows}"


CASES = {
    "keys.json": (lambda: json.dumps(_unknown(_instance())), "k0: unknown field"),
    "late.json": (lambda: json.dumps(_late()), "k0: unknown field"),
    "inner.json": (lambda: json.dumps(_instance(cluster=_unknown({}))), "cluster.k0: unknown"),
    "jobs.json": (lambda: json.dumps(_jobs()), "jobs[0]: must be a mapping"),
    "workloads.json": (lambda: json.dumps(_workloads()), "must be a mapping"),
    "lists.json": (lambda: "[" + "[]," * 16 * MANY + "[]]", "must have at most 16000000 values"),
    "t.csv": (_rows, "must have at most 2000000 lines"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_fault_takes_little_memory(tmp_path, name):
    text, rule = CASES[name]
    path = tmp_path / name
    path.write_text(text())
    message, grown_mib = _read(path)
    assert rule in message
    assert int(grown_mib) < 400


def test_rows_of_a_trace_are_read_one_by_one(tmp_path):
    """A row of the Standard Workload Format takes about two kilobytes while it is read."""
    path = tmp_path / "t.swf"
    path.write_text("".join(f"{k} {k} 0 10 1{' -1' * 13}\n" for k in range(1, 200_001)))
    (grown_mib,) = _read(path)
    assert int(grown_mib) < 160


@pytest.mark.parametrize("parse", [parse_json, parse_yaml])
def test_values_are_counted(monkeypatch, parse):
    monkeypatch.setattr("dovetail.instances.reading.contents.MOST_MARKS", 12)
    assert parse('{"a": [1, 2, 3]}') == {"a": [1, 2, 3]}
    with pytest.raises(InputError, match="must have at most"):
        parse('{"a": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]}')


def test_items_of_a_list_come_one_by_one():
    items = json_items('[{"a": 1}, 2, oops')
    assert [next(items), next(items)] == [{"a": 1}, 2]
    with pytest.raises(InputError, match="is not valid JSON at line 1, column 15"):
        next(items)


@pytest.mark.parametrize("text", ["[]", " [ ] ", "[1]", '[[1, 2], {"a": [3]} , null]\n'])
def test_items_are_those_of_the_whole_list(text):
    assert [*json_items(text)] == parse_json(text)


@pytest.mark.parametrize(
    "text",
    ["[1 2]", "[1,]", "[1", "[", "[1] 2", "[1]]", '[{"a": 1, "a": 2}]', "[0, {1: 2}]", "[1e5, -]"],
)
def test_a_broken_list_has_the_message_of_the_whole(text):
    with pytest.raises(InputError) as whole:
        parse_json(text)
    with pytest.raises(InputError) as one_by_one:
        [*json_items(text)]
    assert str(one_by_one.value) == str(whole.value)


@pytest.mark.parametrize("text", ["{}", "5", ""])
def test_what_is_no_list_has_no_items(text):
    with pytest.raises(InputError, match="must be a JSON list"):
        next(json_items(text))
