"""Broken input of each kind is reported in one line with file, path, rule and value."""

from __future__ import annotations

import gzip
import io
import json
import sys
from time import process_time

import pytest

from dovetail.instances.errors import InputError, UnsupportedError, source_name
from dovetail.instances.files import read_data, read_instance, read_plan
from dovetail.instances.reading import contents
from dovetail.instances.schemas import FILES as SCHEMAS
from dovetail.instances.schemas import SHIPPED
from tests.data import example_data, plan_data
from tests.instances.faults import GONE, PRINTABLE, faults


def changed(data, path, value):
    """Return ``data`` with ``value`` at a path like ``jobs.0.id`` (`GONE`: nothing there)."""
    *above, last = path.split(".")
    place = data
    for part in above:
        place = place[int(part)] if isinstance(place, list) else place[part]
    if value is GONE:
        del place[last]
    elif isinstance(place, list):
        place[int(last) : int(last) + 1] = [value]
    else:
        place[last] = value
    return data


def error_of(read, path, data):
    """Return the reader's error for ``data`` in a file, without the file's name."""
    path.write_text(json.dumps(data))
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(caught.value).count("\n") == 0
    assert caught.value.source == str(path)
    return str(caught.value).removeprefix(f"{path}: ")


GPU = {"id": "x", "model": "V100", "memory_mib": 1}
JOB = {"id": "j3", "workload": "bert"}
RUNNING = {"state": "running", "gpus": ["n1-0"], **JOB}
ENTRY = {"pair": ["resnet", "gpt"], "slowdown": [1.1, 1.2]}

INSTANCE_FIELDS = "unknown field, known are: format, name, cluster, workloads, jobs, slowdowns"
JOB_FIELDS = (
    "unknown field, known are: id, workload, workers, workers_per_node, workers_together, gsla, "
    "weight, arrival_s, remaining_s, priority, sharing, state, gpus, share, sub_batch"
)

INSTANCE = [
    # The whole and its format.
    ("format", GONE, "format: this field is required, must be 'dovetail-instance/1'"),
    (
        "format",
        "dovetail-instance/2",
        "format: must be 'dovetail-instance/1', got 'dovetail-instance/2'",
    ),
    ("format", ["x"], "format: must be 'dovetail-instance/1', got a list"),
    (
        "format",
        "dovetail-plan/1",
        "format: must be 'dovetail-instance/1', got 'dovetail-plan/1' "
        "(this is a plan, not an instance)",
    ),
    # Unknown and missing fields.
    ("colour", 1, f"colour: {INSTANCE_FIELDS}"),
    ("slowdown", [], "slowdown: unknown field, did you mean slowdowns?"),
    ("cluster.assumed", {}, "cluster.assumed: must have pair, sets or both"),
    ("cluster.assumed", {"pair": 0.9}, "cluster.assumed.pair: must be >= 1, got 0.9"),
    ("cluster.assumed", {"sets": "sum"}, "cluster.assumed.sets: must be 'product', got 'sum'"),
    ("cluster.share_sums", 1, "cluster.share_sums: unknown field, did you mean share_sum?"),
    ("cluster.uncapped", "yes", "cluster.uncapped: must be true or false, got 'yes'"),
    ("cluster.nodes.0.racks", 1, "cluster.nodes[0].racks: unknown field, did you mean rack?"),
    ("jobs.0.worker", 2, "jobs[0].worker: unknown field, did you mean workers?"),
    ("jobs.0.a b", 2, f"jobs[0]['a b']: {JOB_FIELDS}"),
    ("jobs.0.workers_per_node", 0, "jobs[0].workers_per_node: must be >= 1, got 0"),
    ("jobs.0.workers_together", 2.0, "jobs[0].workers_together: must be a whole number, got 2.0"),
    (
        "jobs.0",
        {**JOB, "workers": 6, "workers_per_node": 4},
        "jobs[0].workers_per_node: must divide workers (6), got 4",
    ),
    (
        "jobs.0",
        {**JOB, "workers": 2, "workers_together": 4},
        "jobs[0].workers_together: must divide workers (2), got 4",
    ),
    (
        "jobs.0",
        {**JOB, "workers": 4, "workers_per_node": 4, "workers_together": 2},
        "jobs[0].workers_together: must not be given with workers_per_node (4), got 2",
    ),
    ("jobs.0.\x1b[1m", 2, rf"jobs[0]['\x1b[1m']: {JOB_FIELDS}"),
    (
        "workloads.bert",
        {"memory": 1},
        "workloads.bert.memory: unknown field, did you mean memory_mib?",
    ),
    (
        "workloads.resnet.metrics.sm_activ",
        1,
        "workloads.resnet.metrics.sm_activ: unknown field, did you mean sm_active?",
    ),
    # Numbers out of their range; every range is in `test_every_fault_that_a_schema_knows`.
    (
        "cluster.nodes.0.gpus.0.memory_mib",
        -1,
        "cluster.nodes[0].gpus[0].memory_mib: must be > 0, got -1",
    ),
    ("workloads.bert.power_w", 0, "workloads.bert.power_w: must be > 0, got 0"),
    (
        "cluster.nodes.0.host",
        {"cpu_cores": 0},
        "cluster.nodes[0].host.cpu_cores: must be > 0; leave it out if unknown, got 0",
    ),
    (
        "workloads.bert.host",
        {"cpu_cores": -1},
        "workloads.bert.host.cpu_cores: must be >= 0, got -1",
    ),
    (
        "workloads.bert.host",
        {"cores": 4},
        "workloads.bert.host.cores: unknown field, did you mean cpu_cores?",
    ),
    (
        "workloads.resnet.throughput.50",
        0,
        "workloads.resnet.throughput.50: must be > 0, got 0",
    ),
    (
        "workloads.resnet.stages_s",
        [0, 0.0],
        "workloads.resnet.stages_s: an iteration must take some time, got 0",
    ),
    (
        "workloads.resnet.stages_s",
        [0.1],
        "workloads.resnet.stages_s: must have 2 or more items, got 1",
    ),
    (
        "workloads.resnet.speed.K80",
        -0.2,
        "workloads.resnet.speed.K80: must be > 0, got -0.2",
    ),
    ("jobs.0.remaining_s", 0, "jobs[0].remaining_s: must be > 0, got 0"),
    # Shares.
    ("cluster.shares.2", 40, "cluster.shares[2]: a share may be listed once, got 40 twice"),
    ("cluster.sharing", "mig", "cluster.sharing: must be 'mps' or 'time_sliced', got 'mig'"),
    (
        "cluster.sharing",
        "time_sliced",
        "cluster.shares[0]: sharing time_sliced has no caps, got 40",
    ),
    (
        "slowdowns.0.mode",
        "time_sliced",
        "slowdowns[0].share[0]: mode time_sliced has no caps, got 60",
    ),
    (
        "slowdowns.0",
        {"pair": ["resnet", "bert"], "slowdown": [2, 2], "mode": "time_sliced"},
        "slowdowns[0].mode: must be the cluster's sharing, mps, got time_sliced",
    ),
    (
        "cluster.nodes.1.gpu.sharing",
        "mig",
        "cluster.nodes[1].gpu.sharing: must be 'mps' or 'time_sliced', got 'mig'",
    ),
    ("jobs.0.sharing", 3, "jobs[0].sharing: must be 'mps' or 'time_sliced', got 3"),
    (
        "workloads.resnet.throughput.150",
        1.0,
        "workloads.resnet.throughput.150: the key must be <= 100, got 150",
    ),
    (
        "workloads.resnet.throughput.0",
        1.0,
        "workloads.resnet.throughput.0: the key must be >= 1, got 0",
    ),
    (
        "workloads.resnet.metrics_by_share.half",
        {},
        "workloads.resnet.metrics_by_share.half: the key must be a whole number, got 'half'",
    ),
    (
        "workloads.resnet.throughput.050",
        1.0,
        "workloads.resnet.throughput.050: the key must be a whole number, got '050'",
    ),
    # Names.
    ("name", "two\nlines", rf"name: {PRINTABLE}, got 'two\nlines'"),
    ("name", "\x1b", rf"name: {PRINTABLE}, got '\x1b'"),
    ("name", "\u2028", rf"name: {PRINTABLE}, got '\u2028'"),
    ("name", " \u00a0\u3000", rf"name: {PRINTABLE}, got ' \xa0\u3000'"),
    ("jobs.0.id", " ", f"jobs[0].id: {PRINTABLE}, got ' '"),
    ("jobs.0.id", "a\u202eb", rf"jobs[0].id: {PRINTABLE}, got 'a\u202eb'"),
    ("jobs.0.id", "\u2066a", rf"jobs[0].id: {PRINTABLE}, got '\u2066a'"),
    ("jobs.0.id", "a\u200bb", rf"jobs[0].id: {PRINTABLE}, got 'a\u200bb'"),
    ("workloads. ", {"memory_mib": 1}, f"workloads[' ']: the key {PRINTABLE}, got ' '"),
    ("name", "\ud800", r"name: must be text of whole Unicode characters, got '\ud800'"),
    (
        "workloads.",
        {"memory_mib": 1},
        "workloads['']: the key must not be empty, got ''",
    ),
    ("jobs.1.id", "j1", "jobs[1].id: job ids must differ, got 'j1' twice"),
    (
        "cluster.nodes.1.id",
        "n0",
        "cluster.nodes[1].id: node ids must differ, got 'n0' twice",
    ),
    (
        "cluster.nodes.0.gpus.1.id",
        "n0-0",
        "cluster.nodes[0].gpus[1].id: GPU ids must differ, got 'n0-0' twice",
    ),
    (
        "cluster.nodes.0.gpus.1.id",
        "n1-3",
        "cluster.nodes[1].id: GPU ids must differ, got 'n1-3' twice",
    ),
    # Nodes.
    (
        "cluster.nodes.1",
        {"id": "n1"},
        "cluster.nodes[1]: must have either gpus or gpu_count with gpu",
    ),
    (
        "cluster.nodes.0.gpu_count",
        1,
        "cluster.nodes[0]: must have either gpus or gpu_count with gpu",
    ),
    ("cluster.nodes.1.gpu", GONE, "cluster.nodes[1]: gpu_count and gpu go together"),
    (
        "cluster.nodes.1.gpu_count",
        100_000,
        "cluster.nodes: must have at most 100000 GPUs, got 100002",
    ),
    # Batches.
    (
        "workloads.resnet.batch.min",
        65,
        "workloads.resnet.batch.min: must be <= size (64), got 65",
    ),
    ("jobs.1.sub_batch", 48, "jobs[1].sub_batch: must be 64 / 2^k and >= 8, got 48"),
    ("jobs.1.sub_batch", 4, "jobs[1].sub_batch: must be 64 / 2^k and >= 8, got 4"),
    (
        "workloads.resnet.batch",
        GONE,
        "jobs[1].sub_batch: workload 'resnet' has no batch, got 32",
    ),
    (
        "workloads.resnet.batch",
        {
            "size": 8,
            "min": 1,
            "fixed_mib": 1,
            "mib_per_sample": 1,
            "step_s": {"fixed": 0, "per_sample": 0},
        },
        "workloads.resnet.batch.step_s: an iteration must take some time, got 0",
    ),
    # Jobs.
    (
        "jobs.0.workload",
        "vgg",
        "jobs[0].workload: must be one of workloads (resnet, bert, gpt), got 'vgg'",
    ),
    ("jobs.0.gpus", ["n0-0"], "jobs[0].gpus: only a running job has this field"),
    ("jobs.0.share", [50], "jobs[0].share: only a running job has this field"),
    ("jobs.0.sub_batch", 32, "jobs[0].sub_batch: only a running job has this field"),
    ("jobs.1.gpus", GONE, "jobs[1].gpus: this field is required of a running job"),
    ("jobs.1.gpus", ["n0-0"], "jobs[1].gpus: must name 2 GPUs, got 1"),
    (
        "jobs.1.gpus",
        ["n0-0", "n0-0"],
        "jobs[1].gpus[1]: a gang's GPUs must differ, got 'n0-0' twice",
    ),
    ("jobs.1.gpus.1", "n9-0", "jobs[1].gpus[1]: must be a GPU of the cluster, got 'n9-0'"),
    (
        "jobs.1.gpus.1",
        "n0-1",
        "jobs[1].gpus[1]: a gang's GPUs must be of one model ('V100'), got 'K80'",
    ),
    ("jobs.1.share", [50], "jobs[1].share: must have 2 items, got 1"),
    ("jobs.2", RUNNING | {"gpus": []}, "jobs[2].gpus: must name 1 GPUs, got 0"),
    # Entries.
    ("slowdowns.0.pair", GONE, "slowdowns[0]: must have either pair or set"),
    ("slowdowns.0.set", ["gpt"] * 3, "slowdowns[0]: must have either pair or set"),
    ("slowdowns.0.pair", ["resnet"], "slowdowns[0].pair[1]: this item is required"),
    (
        "slowdowns.0.pair",
        ["resnet", "bert", "gpt"],
        "slowdowns[0].pair: must have 2 or fewer items, got 3",
    ),
    ("slowdowns.2.set", ["gpt"] * 2, "slowdowns[2].set: must have 3 or more items, got 2"),
    (
        "slowdowns.0.pair.1",
        "vgg",
        "slowdowns[0].pair[1]: must be one of workloads (resnet, bert, gpt), got 'vgg'",
    ),
    (
        "slowdowns.2.set.2",
        "vgg",
        "slowdowns[2].set[2]: must be one of workloads (resnet, bert, gpt), got 'vgg'",
    ),
    ("slowdowns.0.share", [60], "slowdowns[0].share: must have 2 items, got 1"),
    ("slowdowns.0.slowdown", [1.1] * 3, "slowdowns[0].slowdown: must have 2 items, got 3"),
    ("slowdowns.0.upper", [1.9], "slowdowns[0].upper: must have 2 items, got 1"),
    ("slowdowns.0.p99", [], "slowdowns[0].p99: must have 2 items, got 0"),
    (
        "slowdowns.0.upper.1",
        1.8,
        "slowdowns[0].upper[1]: must be >= slowdown[1] (1.9), got 1.8",
    ),
    (
        "slowdowns.0.slowdown",
        None,
        "slowdowns[0].upper: must be absent if slowdown is null",
    ),
    (
        "slowdowns.2.power_w",
        300,
        "slowdowns[2].power_w: must be absent if slowdown is null",
    ),
    (
        "slowdowns.1.slowdown.1",
        1.5,
        "slowdowns[1].slowdown[1]: must equal slowdown[0] (1.25), as 'bert' runs with itself "
        "at one share, got 1.5",
    ),
    (
        "slowdowns.3",
        {"pair": ["bert", "bert"], "slowdown": [2, 2]},
        "slowdowns[3]: (bert, bert) at these shares and model is already in slowdowns[1]",
    ),
    (
        "slowdowns.3",
        {
            "pair": ["bert", "resnet"],
            "share": [40, 60],
            "slowdown": [2, 2],
            "gpu_model": "V100",
        },
        "slowdowns[3]: (bert, resnet) at these shares and model is already in slowdowns[0]",
    ),
    (
        "slowdowns.3",
        {"set": ["gpt", "resnet", "bert"], "slowdown": [2, 2, 2]},
        "slowdowns[3]: (gpt, resnet, bert) at these shares and model is already in slowdowns[2]",
    ),
]

PLAN = [
    ("format", GONE, "format: this field is required, must be 'dovetail-plan/1'"),
    (
        "format",
        "dovetail-instance/1",
        "format: must be 'dovetail-plan/1', got 'dovetail-instance/1' "
        "(this is an instance, not a plan)",
    ),
    ("assignment", [], "assignment: unknown field, did you mean assignments?"),
    (
        "objective.name",
        "speed",
        "objective.name: must be 'throughput', 'slowdown', 'sensitivity', 'jct', 'energy', "
        "'completion', 'fewest' or 'python:MODULE.CLASS', "
        "got 'speed'",
    ),
    ("assignments.0.gpus", [], "assignments[0].gpus: must have 1 or more items, got 0"),
    ("assignments.0.share", [50], "assignments[0].share: must have 2 items, got 1"),
    ("assignments.0.co_runners", [[]], "assignments[0].co_runners: must have 2 items, got 1"),
    ("assignments.0.slowdown", 0, "assignments[0].slowdown: must be > 0, got 0"),
    (
        "waiting.0.nearest.corunner",
        "j",
        "waiting[0].nearest.corunner: unknown field, did you mean co_runner?",
    ),
    ("stops", [{"job": "j"}], "stops[0].gpus: this field is required"),
]


@pytest.mark.parametrize(
    ("schema", "valid", "read"),
    list(zip(SCHEMAS, (example_data(), plan_data()), (read_instance, read_plan), strict=True)),
)
def test_every_fault_that_a_schema_knows(tmp_path, schema, valid, read):
    known = json.loads((SHIPPED / schema).read_text())
    pairs = [(error_of(read, tmp_path / "a", data), line) for data, line in faults(known, valid)]
    assert len(pairs) > 140
    assert [found for found, _ in pairs] == [line for _, line in pairs]


def _names(table):
    return [f"{path or 'empty'}-{k}" for k, (path, _, _) in enumerate(table)]


@pytest.mark.parametrize(("path", "value", "message"), INSTANCE, ids=_names(INSTANCE))
def test_broken_instance(tmp_path, path, value, message):
    data = changed(example_data(), path, value)
    assert error_of(read_instance, tmp_path / "a.json", data) == message


@pytest.mark.parametrize(("path", "value", "message"), PLAN, ids=_names(PLAN))
def test_broken_plan(tmp_path, path, value, message):
    data = changed(plan_data(), path, value)
    assert error_of(read_plan, tmp_path / "p.json", data) == message


def test_more_running_jobs_on_a_gpu_than_it_may_hold(tmp_path):
    data = example_data()
    data["jobs"] = [RUNNING | {"id": f"j{k}"} for k in range(3)]
    message = "jobs[2].gpus[0]: 'n1-0' may hold at most 2 jobs, got more"
    assert error_of(read_instance, tmp_path / "a.json", data) == message


def test_same_pair_twice_without_and_with_null_shares(tmp_path):
    data = example_data()
    data["slowdowns"] = [ENTRY, ENTRY | {"share": [None, None]}]
    message = "slowdowns[1]: (resnet, gpt) at these shares and model is already in slowdowns[0]"
    assert error_of(read_instance, tmp_path / "a.json", data) == message


@pytest.mark.parametrize("name", ["upper", "p99"])
def test_bounds_of_a_workload_with_itself_must_be_equal_too(tmp_path, name):
    data = example_data()
    data["slowdowns"][1][name] = [1.5, 1.6]
    message = (
        f"slowdowns[1].{name}[1]: must equal {name}[0] (1.5), as 'bert' runs with itself "
        "at one share, got 1.6"
    )
    assert error_of(read_instance, tmp_path / "a.json", data) == message


def test_only_some_of_the_known_names_are_listed(tmp_path):
    data = example_data()
    data["workloads"] |= {f"w{k}": {"memory_mib": 1} for k in range(9)}
    data["jobs"][0]["workload"] = "vgg"
    message = (
        "jobs[0].workload: must be one of workloads "
        "(resnet, bert, gpt, w0, w1, w2, ... (6 more)), got 'vgg'"
    )
    assert error_of(read_instance, tmp_path / "a.json", data) == message


def test_ten_thousand_errors_are_one_message(tmp_path):
    data = example_data()
    data["jobs"] = [{"colour": k} for k in range(10_000)]
    start = process_time()
    assert error_of(read_instance, tmp_path / "a.json", data) == f"jobs[0].colour: {JOB_FIELDS}"
    assert process_time() - start < 3


PACKED = gzip.compress(b'{"a": 1}' * 1000, mtime=0)

FILES = [
    ("a.json", b"", "is empty"),
    ("a.json", b" \n", "is empty"),
    ("a.yaml", b"# nothing\n", "is empty"),
    ("a.json.gz", b"", "is empty"),
    ("a.json", b"[]", "must be a mapping of field names to values, got an empty list"),
    ("a.json", b"5", "must be a mapping of field names to values, got 5"),
    ("a.yaml", b"- 1\n", "must be a mapping of field names to values, got a list"),
    ("a.yaml", b"text\n", "must be a mapping of field names to values, got 'text'"),
    ("a", b"null", "must be a mapping of field names to values, got null"),
    ("a.json", b"\xff\xfe{}", "must be UTF-8 text, got another byte at 0"),
    ("a.json", b'{"a": "\xe9"}', "must be UTF-8 text, got another byte at 7"),
    ("a.gz", b"{}", "must be a gzip file, got something else or a damaged one"),
    ("a.gz", PACKED + b"tail", "must be a gzip file, got something else or a damaged one"),
    (
        "a.gz",
        PACKED[:12] + b"\xff\xff" + PACKED[14:],
        "must be a gzip file, got something else or a damaged one",
    ),
    ("a.gz", PACKED[:-9], "must be a whole gzip file, got one cut short"),
    ("a.gz", PACKED[:5], "must be a whole gzip file, got one cut short"),
    # JSON.
    (
        "a.json",
        b'{"a": 1,\n "b" 2}',
        "is not valid JSON at line 2, column 6: expecting ':' delimiter",
    ),
    ("a.json", b'{"a": 1', "is not valid JSON at line 1, column 8: expecting ',' delimiter"),
    ("a.json", b"{} {}", "is not valid JSON at line 1, column 4: extra data"),
    ("a.json", b"a: 1", "is not valid JSON at line 1, column 1: expecting value"),
    (
        "a",
        b"{a: 1}",
        "is not valid JSON at line 1, column 2: expecting property name enclosed in double quotes",
    ),
    ("a.json", b'{"a": 1, "a": 2}', "a: this key is given twice"),
    ("a.json", b'{"a": [{"b": {"c": 1, "c": 2}}]}', "a[0].b.c: this key is given twice"),
    ("a.json", b'{"a": {"b": 1, "b": 2}, "a": {}}', "a: this key is given twice"),
    ("a.json", b'{"a\\nb": 1, "a\\nb": 2}', r"['a\nb']: this key is given twice"),
    ("a.json", b"[" * 100_000, "must not be nested so deeply"),
    ("a.json", b'{"a":' * 100_000, "must not be nested so deeply"),
    ("a.json", b"[" + b"7" * 5000 + b"]", "must not have a number with thousands of digits"),
    # YAML.
    (
        "a.yaml",
        b"a: 1\nb: : 2\n",
        "is not valid YAML at line 2, column 4: mapping values are not allowed in this context",
    ),
    (
        "a.yaml",
        b"a: [1, 2\n",
        "is not valid YAML at line 2, column 1: did not find expected ',' or ']'",
    ),
    (
        "a.yaml",
        b"a:\n\t- 1\n",
        "is not valid YAML at line 2, column 1: found character that cannot start any token",
    ),
    ("a.yaml", b"a: \x07\n", "is not valid YAML: control characters are not allowed"),
    ("a.yaml", b"a: 1\nb: 2\na: 3\n", "a: this key is given twice"),
    ("a.yaml", b"a: {50: 1, '50': 2}\n", "a.50: this key is given twice"),
    (
        "a.yaml",
        b"a: &x [1]\nb: *x\n",
        "line 1, column 4: anchors and aliases are not accepted, write values out",
    ),
    (
        "a.yaml",
        b"a: *x\n",
        "line 1, column 4: anchors and aliases are not accepted, write values out",
    ),
    (
        "a.yaml",
        b"&x a: 1\n",
        "line 1, column 1: anchors and aliases are not accepted, write values out",
    ),
    (
        "a.yaml",
        b"a: !!python/object/apply:os.system [ls]\n",
        "line 1, column 4: tags are not accepted, "
        "got 'tag:yaml.org,2002:python/object/apply:os.system'",
    ),
    ("a.yaml", b"a: !x 1\n", "line 1, column 4: tags are not accepted, got '!x'"),
    ("a.yaml", b"a: 1\n---\nb: 2\n", "line 2, column 1: must hold one document, got another"),
    ("a.yaml", b"? [1, 2]\n: 3\n", "line 1, column 3: a key must be text"),
    ("a.yaml", b"[" * 500, "line 1, column 101: must not be nested so deeply"),
    ("a.yaml", b"- " * 100_000, "line 1, column 201: must not be nested so deeply"),
    ("a.yaml", b"{a: " * 100_000, "line 1, column 401: must not be nested so deeply"),
    (
        "a.yaml",
        b"a: 1\nb: " + b"7" * 5000,
        "line 2, column 4: must not have a number with thousands of digits",
    ),
    # A file that holds the other thing.
    (
        "a.yaml",
        b"format: dovetail-plan/1\nassignments: []\n",
        "format: must be 'dovetail-instance/1', got 'dovetail-plan/1' "
        "(this is a plan, not an instance)",
    ),
]


@pytest.mark.parametrize(
    ("name", "content", "message"), FILES, ids=[f"{row[0]}-{k}" for k, row in enumerate(FILES)]
)
def test_broken_file(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    start = process_time()
    with pytest.raises(InputError) as caught:
        read_instance(path)
    assert str(caught.value) == f"{path}: {message}"
    assert process_time() - start < 10


def test_nesting_beyond_what_the_parser_itself_takes(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_bytes(b"[" * 100_000)
    # Which limit is met first, libyaml's or ours, depends on its version.
    with pytest.raises(
        InputError, match=r"a\.yaml: line 1, column \d+: must not be nested so deeply$"
    ):
        read_instance(path)


def test_aliases_cannot_ask_for_more_than_there_is(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k + 1}: &a{k + 1} [{', '.join([f'*a{k}'] * 9)}]" for k in range(30)]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines))
    with pytest.raises(InputError, match="line 1, column 5: anchors and aliases"):
        read_data(tmp_path / "bomb.yaml")


def test_packed_content_cannot_ask_for_more_than_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr(contents, "MOST_BYTES", 2**24)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * 2**25, compresslevel=1))
    assert path.stat().st_size < 2**18
    with pytest.raises(InputError) as caught:
        read_data(path)
    assert str(caught.value) == f"{path}: must hold at most 16 MiB, got more"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("loop", "too many levels of symbolic links"),
        ("none.json", "no such file or directory"),
        ("folder", "is a directory"),
        ("a" * 300, "file name too long"),
        ("a\0b", "embedded null byte"),
    ],
)
def test_file_that_cannot_be_read(tmp_path, monkeypatch, name, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError) as caught:
        read_instance(name)
    assert str(caught.value) == f"{source_name(name)}: cannot be read: {reason}"


def test_a_long_key_is_reported_shortened(tmp_path):
    # Comparing such a key with the known fields at its full length takes minutes.
    path = tmp_path / "a.json"
    path.write_text(json.dumps({**example_data(), "x" * 20_000_000: 1}))
    with pytest.raises(InputError) as caught:
        read_instance(path)
    assert str(caught.value) == f"{path}: ['{'x' * 60}'...]: {INSTANCE_FIELDS}"


def test_messages_are_short_and_on_one_line():
    long = "y" * 5000
    assert str(InputError(f"must be one\nof a, b, got {long}", f"jobs[{long}]", long)) == (
        f"{long}: jobs[{'y' * 135}...{'y' * 39}]: must be one of a, b, got {'y' * 140}...{'y' * 40}"
    )
    assert len(str(UnsupportedError("word " * 5000))) < 1500
    assert str(UnsupportedError("a\u202eb\x07")) == "a?b?"


def test_broken_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"format": 1}')))
    with pytest.raises(InputError) as caught:
        read_plan("-")
    assert str(caught.value) == "standard input: format: must be 'dovetail-plan/1', got 1"


def test_name_of_a_file_cannot_break_the_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a\nb").write_text("{}")
    with pytest.raises(InputError) as caught:
        read_plan("a\nb")
    message = r"'a\nb': format: this field is required, must be 'dovetail-plan/1'"
    assert str(caught.value) == message


PODS = """\
apiVersion: v1
kind: Pod
metadata: {name: a, annotations: {gpu-fraction: "0.5"}}
"""


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("pods.yaml", PODS, ""),
        ("pods.yaml", f"{PODS}---\n{PODS}", "line 4, column 1: "),
        ("pods.json", '{"apiVersion": "v1", "kind": "List", "items": []}', ""),
    ],
)
def test_manifests_of_kubernetes_are_refused_with_what_to_do(tmp_path, name, text, where):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_instance(path)
    assert str(error.value) == (
        f"{path}: {where}is a manifest of Kubernetes: dovetail import usage makes an instance of "
        "pods and nodes, or write a workload with its memory and a job for each pod"
    )
