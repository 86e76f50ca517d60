"""The JSON Schemas: current, and agreeing with the records."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import jsonschema
import pytest
from hypothesis import given

from dovetail.instances.schemas import FILES, SHIPPED, schema_text, write_schemas
from tests.data import EXAMPLE_PLAN, example, example_data, example_plan, plan_data, vectors
from tests.instances.odd import odd_instances

INSTANCE, PLAN = FILES


@cache
def validator(name):
    schema = json.loads((SHIPPED / name).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", FILES)
def test_shipped_schema_is_what_the_records_say(name):
    shipped = (SHIPPED / name).read_text()
    assert shipped == schema_text(FILES[name]), "run python -m dovetail.instances.schemas"


def test_the_module_writes_all_schemas(tmp_path):
    command = [sys.executable, "-m", "dovetail.instances.schemas", str(tmp_path)]
    subprocess.run(command, check=True)
    assert {path.name for path in tmp_path.iterdir()} == set(FILES)
    write_schemas(tmp_path)
    assert (tmp_path / PLAN).read_text() == schema_text(FILES[PLAN])


def test_vectors_are_valid():
    known, of_instances = vectors(), validator(INSTANCE)
    assert len(known) == 60
    for vector in known:
        of_instances.validate(vector["instance"])


def test_examples_are_valid():
    validator(INSTANCE).validate(example_data())
    validator(INSTANCE).validate(example().to_data())
    validator(PLAN).validate(plan_data())
    validator(PLAN).validate(example_plan().to_data())


@given(odd_instances())
def test_every_written_instance_is_valid(instance):
    validator(INSTANCE).validate(instance.to_data())


@pytest.mark.parametrize(
    "where",
    [
        (),
        ("cluster",),
        ("cluster", "nodes", 0),
        ("cluster", "nodes", 0, "gpus", 0),
        ("cluster", "nodes", 1, "gpu"),
        ("workloads", "resnet"),
        ("workloads", "resnet", "metrics"),
        ("workloads", "resnet", "throughput"),
        ("workloads", "resnet", "batch"),
        ("workloads", "resnet", "batch", "step_s"),
        ("jobs", 0),
        ("slowdowns", 0),
    ],
)
def test_unknown_fields_are_refused_everywhere(where):
    data = example_data()
    place = data
    for part in where:
        place = place[part]
    place["colour"] = 1
    assert not validator(INSTANCE).is_valid(data)


@pytest.mark.parametrize(("name", "data"), [(INSTANCE, example_data()), (PLAN, dict(EXAMPLE_PLAN))])
def test_a_file_must_say_its_format(name, data):
    del data["format"]
    assert not validator(name).is_valid(data)
