"""Traces in files: small ones by hand, broken ones one by one, round trips, the published ones."""

from __future__ import annotations

import gzip
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.instances.plugins import Plugin
from dovetail.instances.traces import (
    Trace,
    TraceJob,
    TraceKind,
    kind_names,
    kind_of,
    kinds,
    read_trace,
    write_trace,
)
from tests.instances.odd import names

OWN = "id,arrival_s,workers,duration_s"

needs_pyarrow = pytest.mark.skipif(
    find_spec("pyarrow") is None, reason="pyarrow is not installed (extra parquet)"
)


def written(folder, name, *lines):
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def error_of(path, **options):
    """Return the error for a file that breaks a rule, without its folder."""
    with pytest.raises(InputError) as error:
        read_trace(path, **options)
    return str(error.value).replace(f"{path.parent}/", "")


# --- our own columns


def test_own_columns_in_any_order_with_defaults(tmp_path):
    path = written(
        tmp_path,
        "mine.csv",
        "workers,id,arrival_s,duration_s,gsla,priority,weight,workload,tenant",
        "2,b,30,100.5,1.5,latency,2,bert,ann",
        "1,a,0,60,,,,,",
    )
    trace = read_trace(path)
    assert trace.name == "mine"
    assert trace.notes == ()
    assert trace.jobs == (
        TraceJob("a", 0.0, 1, 60.0),
        TraceJob("b", 30.0, 2, 100.5, "bert", 1.5, 2.0, "latency", "ann"),
    )


def test_gzip_is_unpacked(tmp_path):
    path = tmp_path / "mine.csv.gz"
    path.write_bytes(gzip.compress(f"{OWN}\na,0,1,60\n".encode()))
    assert read_trace(path).jobs == (TraceJob("a", 0.0, 1, 60.0),)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([f"{OWN},gslo"], "line 1: unknown column 'gslo', did you mean gsla?"),
        (
            [f"{OWN},colour"],
            "line 1: unknown column 'colour', known: id, arrival_s, workers, duration_s, "
            "workload, gsla, weight, priority, tenant, workers_per_node, workers_together",
        ),
        ([f"{OWN},id"], "line 1: column 'id' is given twice"),
        (
            ["id,arrival_s,workers"],
            "line 1: must have the columns id, arrival_s, workers, duration_s; missing: duration_s,"
            " got id, arrival_s, workers; columns of other names: --columns arrival_s=COLUMN,...",
        ),
        (
            ["JobID,submit"],
            "line 1: unknown column 'JobID', known: id, arrival_s, workers, duration_s, "
            "workload, gsla, weight, priority, tenant, workers_per_node, workers_together; columns "
            "of other names: --columns arrival_s=COLUMN,...",
        ),
        ([OWN, "a,0,1"], "line 2: must have 4 fields, got 3"),
        ([OWN, ",0,1,60"], "line 2: id: must not be empty"),
        ([OWN, "a,0,,60"], "line 2: workers: must not be empty"),
        (
            [OWN, "a,soon,1,60"],
            "line 2: arrival_s: must be a number of seconds or a time as 2026-11-01T09:00:00, "
            "got 'soon'",
        ),
        ([OWN, "a,-1,1,60"], "line 2: arrival_s: must be a finite number >= 0, got -1.0"),
        (
            [OWN, "a,1770000000000,1,60"],
            "line 2: arrival_s: must be <= 1e+11 s, got 1770000000000.0 (milliseconds?)",
        ),
        ([OWN, "a,0,1.5,60"], "line 2: workers: must be a whole number, got '1.5'"),
        ([OWN, "a,0,0,60"], "line 2: workers: must be >= 1, got 0"),
        ([OWN, "a,0,1e9,60"], "line 2: workers: must be <= 1000000, got 1000000000"),
        ([OWN, "a,0,1,0"], "line 2: duration_s: must be a finite number > 0, got 0.0"),
        ([OWN, "a,0,1,nan"], "line 2: duration_s: must be a finite number > 0, got nan"),
        (
            [OWN, "a,0,1,60", "a,1,1,60"],
            "line 3: id: ids must differ, got 'a' in line 2 too",
        ),
        ([f"{OWN},gsla", "a,0,1,60,0.9"], "line 2: gsla: must be a finite number >= 1, got 0.9"),
        (
            [f"{OWN},weight", "a,0,1,60,-1"],
            "line 2: weight: must be a finite number >= 0, got -1.0",
        ),
        (
            [f"{OWN},priority", "a,0,1,60,high"],
            "line 2: priority: must be batch or latency, got 'high'",
        ),
        (
            [f"{OWN},workers_per_node", "a,0,6,60,4"],
            "line 2: workers_per_node: must be >= 1 and divide workers (6), got 4",
        ),
        (
            [f"{OWN},workers_together", "a,0,6,60,2.5"],
            "line 2: workers_together: must be a whole number, got '2.5'",
        ),
        (
            [f"{OWN},workers_per_node,workers_together", "a,0,6,60,3,2"],
            "line 2: workers_together: must not be given with workers_per_node (3), got 2",
        ),
        (
            [f"{OWN},tenant", "a,0,1,60,\x07"],
            "line 2: tenant: must be one line of printable characters, got '\\x07'",
        ),
    ],
)
def test_a_broken_own_file_is_reported_with_line_and_column(tmp_path, lines, message):
    assert error_of(written(tmp_path, "mine.csv", *lines)) == f"mine.csv: {message}"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["a,0,1,x", "b,x,1,60"], "line 2: duration_s: must be a number, got 'x'"),
        (["a,0,1.5,x"], "line 2: workers: must be a whole number, got '1.5'"),
        (["a,0,1,60", "a,0,x,60"], "line 3: workers: must be a number, got 'x'"),
        (["a,0,1,60", "a,0,1,60", "b,x,1,60"], "line 3: id: ids must differ, got 'a' in line 2 to"),
        (["a,0,1", "b,x,1,60"], "line 2: must have 4 fields, got 3"),
        (["a,-1,1,60", "b,1,60"], "line 2: arrival_s: must be a finite number >= 0, got -1.0"),
    ],
)
def test_of_several_faults_the_first_row_names_its_first(tmp_path, rows, message):
    path = written(tmp_path, "mine.csv", OWN, *rows)
    assert error_of(path).startswith(f"mine.csv: {message}")


def test_a_missing_file_is_reported(tmp_path):
    assert error_of(tmp_path / "none.csv") == "none.csv: cannot be read: no such file or directory"


def test_an_unknown_kind_is_reported(tmp_path):
    path = written(tmp_path, "mine.csv", OWN)
    rule = f"must be one of {', '.join(kind_names())}, got 'xls'"
    assert error_of(path, kind="xls") == f"kind: {rule}"


finite = st.floats(min_value=0, allow_infinity=False, allow_nan=False)
most_s = 1e11
jobs = st.builds(
    TraceJob,
    id=names,
    arrival_s=st.floats(min_value=0, max_value=most_s),
    workers=st.integers(1, 10**6),
    duration_s=st.floats(min_value=0, exclude_min=True, max_value=most_s),
    workload=st.none() | names,
    gsla=st.none() | st.floats(min_value=1, allow_infinity=False),
    weight=finite,
    priority=st.sampled_from(["batch", "latency"]),
    tenant=st.none() | names,
)
traces = st.lists(jobs, max_size=4, unique_by=lambda job: job.id).map(
    lambda each: Trace.of("odd", each)
)
ENDINGS = ["csv", "csv.gz", pytest.param("parquet", marks=needs_pyarrow)]


@pytest.mark.parametrize("ending", ENDINGS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(trace=traces)
def test_what_is_written_is_read_back_equal(ending, trace, tmp_path):
    path = tmp_path / f"odd.{ending}"
    write_trace(path, trace)
    kind = "parquet" if ending == "parquet" else "csv"
    assert read_trace(path) == read_trace(path, kind=kind) == trace


def test_columns_at_their_default_are_not_written(tmp_path):
    path = tmp_path / "mine.csv"
    write_trace(path, Trace("mine", (TraceJob("a", 0.0, 1, 60.0, tenant="ann"),)))
    assert path.read_text() == f"{OWN},tenant\na,0.0,1,60.0,ann\n"


@needs_pyarrow
def test_a_broken_parquet_file_is_reported_with_row_and_column(tmp_path):
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "mine.parquet"
    columns = {"id": ["a"], "arrival_s": [0.0], "workers": [1], "duration_s": [-2.0]}
    parquet.write_table(pyarrow.table(columns), path)
    rule = "duration_s: must be a finite number > 0, got -2.0"
    assert error_of(path) == f"mine.parquet: row 1: {rule}"
    path.write_bytes(b"id")
    assert error_of(path).startswith("mine.parquet: must be a Parquet file: ")


# --- columns of others


HELIOS = [
    "job_id,user,gpu_num,submit_time,duration,state",
    "7,ann,2,2020-04-01 00:00:10,60.5,COMPLETED",
    "8,bob,0,2020-04-01 00:00:20,60,COMPLETED",
    "9,bob,1,2020-04-01 00:00:00,0,FAILED",
    "10,ann,8,2020-04-01T00:01:00,3600,COMPLETED",
]
NAMED = {"arrival_s": "submit_time", "workers": "gpu_num", "duration_s": "duration"}


def test_columns_of_others_are_named(tmp_path):
    path = written(tmp_path, "h.csv", *HELIOS)
    trace = read_trace(path, columns={**NAMED, "id": "job_id", "tenant": "user"})
    assert trace.jobs == (
        TraceJob("7", 10.0, 2, 60.5, tenant="ann"),
        TraceJob("10", 60.0, 8, 3600.0, tenant="ann"),
    )
    assert trace.notes == (
        "2 of 4 jobs left out: no GPUs or no run time",
        "columns that are not read: state",
    )
    assert [job.id for job in read_trace(path, columns=NAMED).jobs] == ["job-2", "job-5"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arrival": "submit_time"}, "columns: must name one of id, arrival_s, workers,"),
        ({"id": "user", "tenant": "user"}, "columns: must name each column of the file once"),
        ({"tenant": "vc"}, "h.csv: line 1: must have the columns submit_time, gpu_num, duration,"),
        (
            {"arrival_s": "submittime"},
            "h.csv: line 1: must have the columns submittime, gpu_num, duration; missing: "
            "submittime (is it 'submit_time'?), "
            "got job_id, user, gpu_num, submit_time, duration, state",
        ),
        ({"duration_s": "state"}, "h.csv: line 2: state: must be a number, got 'COMPLETED'"),
        ({"arrival_s": "user"}, "h.csv: line 2: user: must be a number of seconds or a"),
    ],
)
def test_impossible_columns_are_reported(tmp_path, change, message):
    assert error_of(written(tmp_path, "h.csv", *HELIOS), columns=NAMED | change).startswith(message)


def test_milliseconds_are_not_taken_for_seconds(tmp_path):
    path = written(tmp_path, "t.csv", OWN, "a,1769853600000,1,60")
    rule = "must be in seconds, got 1769853600000: milliseconds?"
    named = {"arrival_s": "arrival_s"}
    assert error_of(path, columns=named) == f"t.csv: line 2: arrival_s: {rule}"


def test_arrivals_may_be_times_of_day(tmp_path):
    path = written(tmp_path, "t.csv", OWN, "a,2026-01-01 00:01:00,1,60", "b,2026-01-01,1,60")
    assert [(job.id, job.arrival_s) for job in read_trace(path).jobs] == [("b", 0.0), ("a", 60.0)]
    path = written(tmp_path, "t.csv", OWN, "a,2026-01-01 00:01:00,1,60", "b,60,1,60")
    rule = "must be a time as 2026-11-01T09:00:00, got '60'"
    assert error_of(path) == f"t.csv: line 3: arrival_s: {rule}"


def test_times_of_day_may_have_offsets(tmp_path):
    rows = ["a,2026-11-01T09:00:00Z,1,60", "b,2026-11-01T09:30:00+01:00,1,60"]
    trace = read_trace(written(tmp_path, "t.csv", OWN, *rows))
    assert [(job.id, job.arrival_s) for job in trace.jobs] == [("b", 0.0), ("a", 1800.0)]


@pytest.mark.parametrize(("first", "second", "has"), [("Z", "", "with"), ("", "Z", "without")])
def test_times_with_and_without_offsets_do_not_mix(tmp_path, first, second, has):
    rows = [f"a,2026-11-01T09:00:00{first},1,60", f"b,2026-11-01T10:00:00{second},1,60"]
    message = error_of(written(tmp_path, "t.csv", OWN, *rows))
    rule = f"must be {has} an offset from UTC, as in the rows before"
    assert message == f"t.csv: line 3: arrival_s: {rule}, got '2026-11-01T10:00:00{second}'"


# --- SWF: job, submit, wait, run, allocated, CPU, memory, requested, ..., user is the 12th


def swf(job=1, submit=0, run=60, allocated=8, requested=8, user=3):
    return f"{job} {submit} 9 {run} {allocated} -1 -1 {requested} -1 -1 1 {user} 1 1 1 1 -1 -1"


def test_swf(tmp_path):
    path = written(
        tmp_path,
        "cluster.swf",
        "; Version: 2.2",
        ";",
        swf(),
        "",
        swf(2, 30, 0.5, -1, 9, -1),
        swf(3, 31, -1),
        swf(4, 32, 60, 0, -1),
    )
    trace = read_trace(path, cores_per_gpu=4)
    # 8 cores are 2 GPUs, 9 cores 3.
    assert trace.jobs == (
        TraceJob("job-1", 0.0, 2, 60.0, tenant="user-3"),
        TraceJob("job-2", 30.0, 3, 0.5),
    )
    assert trace.notes == ("2 of 4 jobs left out: no GPUs or no run time",)
    assert [job.workers for job in read_trace(path).jobs] == [8, 9]


def test_an_id_twice_is_reported(tmp_path):
    path = written(tmp_path, "cluster.swf", swf(), swf())
    assert error_of(path) == "cluster: jobs[1].id: ids must differ, got 'job-1' twice"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 2 3", "line 2: must have 18 fields, got 3"),
        (swf(run="x"), "line 2: run time: must be a number >= 0, or -1 for unknown, got 'x'"),
        (swf(run=-2), "line 2: run time: must be a number >= 0, or -1 for unknown, got '-2'"),
        (swf(submit=-1), "line 2: submit time: must be a finite number >= 0, got '-1'"),
        (swf(job="x"), "line 2: job number: must be a number, got 'x'"),
    ],
)
def test_a_broken_swf_file_is_reported(tmp_path, line, message):
    assert error_of(written(tmp_path, "cluster.swf", "; c", line)) == f"cluster.swf: {message}"


def test_a_gpu_has_at_least_one_core(tmp_path):
    path = written(tmp_path, "cluster.swf", swf())
    assert error_of(path, cores_per_gpu=0) == "cores_per_gpu: must be >= 1, got 0"


# --- the format follows from the content


def test_the_format_follows_from_the_first_line(tmp_path):
    contents = {
        "job-1": f"; a comment\n{swf()}\n",
        "job-5": f"{swf(5)}\n",
        "a": f"\n{OWN}\na,0,1,60\n",
    }
    for name, content in contents.items():
        path = tmp_path / "jobs.txt"
        path.write_text(content)
        assert [job.id for job in read_trace(path).jobs] == [name]


def test_an_option_of_another_format_is_refused_with_those_that_take_it(tmp_path):
    path = written(tmp_path, "mine.csv", OWN, "a,0,1,60")
    rule = "is an option of swf, got a trace in the format csv"
    assert error_of(path, cores_per_gpu=2) == f"cores_per_gpu: {rule}"
    rule = "is an option of no format, got a trace in the format csv"
    assert error_of(path, colour=1) == f"colour: {rule}"


def test_a_format_of_a_plugin_that_cannot_be_imported_recognises_nothing(tmp_path, monkeypatch):
    broken = Plugin("trace", "broken", "other", "absent_module:KIND")
    monkeypatch.setattr(kinds, "plugins", lambda kind: {"broken": broken})
    path = written(tmp_path, "mine.txt", OWN, "a,0,1,60")
    assert kind_of(path) == "csv"
    with pytest.raises(UnsupportedError, match=r"^plugin trace\.broken of the package other"):
        read_trace(path, "broken")


def test_a_plugin_reads_its_format_but_none_of_the_cores(tmp_path, monkeypatch):
    def read(path, name, zone="utc"):
        return Trace.of(name, [TraceJob(zone, 0.0, 1, 60.0)])

    kind = TraceKind(read, lambda first: first == "mine", (".own",), ("zone",))
    monkeypatch.setattr(Plugin, "load_as", lambda *_: kind)
    named = {name: Plugin("trace", name, "other", "m:K") for name in ("mine", "csv")}
    monkeypatch.setattr(kinds, "plugins", lambda _: named)
    assert kind_names() == ("csv", "parquet", "sacct", "swf", "mine")
    for name in ("a.txt", "a.own", "a.own.gz"):
        path = written(tmp_path, name, "mine")
        assert kind_of(path) == "mine"
    assert read_trace(tmp_path / "a.own").jobs[0].id == "utc"
    assert read_trace(tmp_path / "a.txt", zone="cet").jobs[0].id == "cet"
    own = written(tmp_path, "b.csv", OWN, "a,0,1,60")
    assert read_trace(own, "csv").jobs == (TraceJob("a", 0.0, 1, 60.0),)


# --- sacct

SACCT = "JobID|User|Submit|Start|End|ElapsedRaw|State|AllocTRES"


def sacct(folder, *rows, header=SACCT):
    return written(folder, "sacct.txt", header, *rows)


def test_sacct_a_job_with_its_steps_and_gpus_counted_once(tmp_path):
    path = sacct(
        tmp_path,
        "101|u1|2026-08-11T14:36:24|2026-08-11T14:36:56|2026-08-11T16:38:56|7320|COMPLETED|"
        "billing=516,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=8000M,node=1",
        "101.batch||2026-08-11T14:36:56|2026-08-11T14:36:56|2026-08-11T16:38:56|7320|COMPLETED|"
        "cpu=8,gres/gpu:a100=2,gres/gpu=2,gres/gpumem=38888M,gres/gpuutil=100",
        "101.extern||2026-08-11T14:36:56|2026-08-11T14:36:56|2026-08-11T16:38:56|7320|COMPLETED|",
        "102_1|u2|2026-08-11T14:40:00|2026-08-11T14:41:00|2026-08-11T15:41:00|3600|"
        "CANCELLED by 1003|cpu=1,gres/gpu:a100=1,gres/gpu:v100=2",
        "104|u2|2026-08-11T14:00:00|2026-08-11T14:00:00|2026-08-11T15:00:00|3600|COMPLETED|cpu=4",
    )
    assert kind_of(path) == "sacct"
    trace = read_trace(path)
    found = [(j.id, j.arrival_s, j.workers, j.duration_s, j.tenant) for j in trace.jobs]
    # The job without GPUs came first, and does not count.
    assert found == [("101", 0.0, 2, 7320.0, "u1"), ("102_1", 216.0, 3, 3600.0, "u2")]
    assert trace.notes == ("1 of 3 jobs left out: no GPUs or no run time",)


def test_sacct_a_requeued_job_is_one_job(tmp_path):
    path = sacct(
        tmp_path,
        "103|u3|2026-08-16T10:43:33|2026-08-16T10:43:43|2026-08-16T18:38:05|28462|NODE_FAIL|"
        "gres/gpu=1",
        "103|u3|2026-08-16T18:38:10|2026-08-16T19:00:00|2026-08-16T20:00:00|3600|COMPLETED|"
        "gres/gpu=2",
        "103|u3|2026-08-16T20:00:10|None|2026-08-17T00:03:01|0|CANCELLED by 1003|",
    )
    (job,) = read_trace(path).jobs
    assert (job.arrival_s, job.workers, job.duration_s) == (0.0, 2, 32062.0)


def test_sacct_what_has_not_ended_is_left_out_and_counted(tmp_path):
    path = sacct(
        tmp_path,
        "7|u|2026-08-16T10:00:00|2026-08-16T10:00:00|Unknown|100|RUNNING|gres/gpu=1",
        "8_[2-9]|u|2026-08-16T10:00:00|Unknown|Unknown|0|PENDING|",
    )
    trace = read_trace(path)
    assert trace.jobs == ()
    assert trace.notes == (
        "2 of 2 jobs left out: no GPUs or no run time",
        "1 of them on GPUs had not ended",
    )


@pytest.mark.parametrize(
    ("submit", "start", "end", "waited"),
    [
        ("2026-08-16T12:00:00+0200", "2026-08-16T12:10:00+0200", "2026-08-16T13:10:00+0200", 0.0),
        ("1786874400", "1786875000", "1786878600", 0.0),
    ],
)
def test_sacct_times_with_an_offset_or_in_seconds(tmp_path, submit, start, end, waited):
    # Without ElapsedRaw, the span counts.
    header = "JobID|Submit|Start|End|AllocTRES"
    path = sacct(tmp_path, f"1|{submit}|{start}|{end}|gres/gpu=1", header=header)
    (job,) = read_trace(path).jobs
    assert (job.arrival_s, job.duration_s, job.tenant) == (waited, 3600.0, None)


@pytest.mark.parametrize(
    ("lines", "rule"),
    [
        (["JobID|JobName|State", "1|a|COMPLETED"], "line 1: must have the columns JobID, Submit, "),
        (["JobID    JobName  State", "------ ---- ----"], "line 1: must have the columns JobID, "),
        ([SACCT, "1|a|b|2026-08-16T10:00:00"], "line 2: must have 8 fields, got 4"),
        (['{"jobs": []}'], "must be a table, got JSON"),
    ],
)
def test_sacct_in_other_forms_is_refused_with_the_command(tmp_path, lines, rule):
    error = error_of(written(tmp_path, "sacct.txt", *lines))
    assert error.startswith(f"sacct.txt: {rule}")
    assert "sacct -a -X -P --format=JobID,User,Submit,Start,End,ElapsedRaw,AllocTRES" in error


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("mine.yaml", "# what runs today"),
        ("mine.yml", "format: dovetail-instance/1"),
        ("mine.json", '{"format": "dovetail-instance/1"}'),
        ("mine", "format: dovetail-instance/1"),
    ],
)
def test_an_instance_is_refused_as_what_it_is(tmp_path, name, first):
    rule = "must be a table of jobs and when they arrive; an instance is planned, or is a world"
    assert error_of(written(tmp_path, name, first)) == f"{name}: {rule}"


def test_sacct_times_of_other_forms_are_refused(tmp_path):
    row = "1|u|08/16-10:00:00|2026-08-16T10:00:00|2026-08-16T11:00:00|3600|COMPLETED|gres/gpu=1"
    assert error_of(sacct(tmp_path, row)) == (
        "sacct.txt: line 2: Submit: must be a time like 2026-08-11T14:36:24, got '08/16-10:00:00'"
    )


def test_rules_for_nodes_are_written_and_read(tmp_path):
    jobs = (
        TraceJob("a", 0.0, 1, 60.0),
        TraceJob("b", 1.0, 6, 60.0, workers_per_node=3),
        TraceJob("c", 2.0, 6, 60.0, workers_together=2),
    )
    for name in ("mine.csv", "mine.parquet"):
        write_trace(tmp_path / name, Trace("mine", jobs))
        assert read_trace(tmp_path / name).jobs == jobs
