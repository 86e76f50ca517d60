"""Traces of papers in files: small ones by hand, and broken ones one by one."""

from __future__ import annotations

import json

import pytest

from dovetail.instances.errors import InputError
from dovetail.instances.traces import TraceJob, kind_of, read_trace
from dovetail.papers.traces.muri import muri_stages
from tests.instances.traces.test_files import error_of, written

PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster"
MURI = (
    "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,"
    "iteration_time,resource_time_0,resource_time_1,resource_time_2,priority"
)

# --- Microsoft's log of Philly


def logged(job, submitted, *attempts, **fields):
    return {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": job,
        "submitted_time": f"2017-10-07 {submitted}",
        "user": "ce2f4c",
        "attempts": [
            {
                "start_time": start and f"2017-10-07 {start}",
                "end_time": end and f"2017-10-07 {end}",
                "detail": [{"ip": "m1", "gpus": [f"gpu{k}" for k in range(gpus)]}] * machines,
            }
            for start, end, gpus, machines in attempts
        ],
        **fields,
    }


def test_the_log_that_microsoft_publishes(tmp_path):
    twice = [("01:12:00", "01:13:00", 8, 1), ("01:14:00", "01:24:00", 8, 2)]
    jobs = [
        logged("application_1", "01:11:00", *twice),
        logged("application_2", "01:00:00", ("01:01:00", "01:02:00", 1, 1), vc="6c71a0"),
        logged("never-scheduled", "01:00:00"),
        logged("still-running", "01:00:00", ("01:01:00", None, 1, 1)),
        logged("no-gpus", "01:00:00", ("01:01:00", "01:02:00", 0, 1)),
    ]
    path = tmp_path / "cluster_job_log"
    path.write_text(json.dumps(jobs, indent=1))
    trace = read_trace(path)
    assert trace.jobs == (
        TraceJob("application_2", 0.0, 1, 60.0, tenant="6c71a0"),
        TraceJob("application_1", 660.0, 16, 660.0, tenant="ee9e8c"),
    )
    assert trace.notes == ("3 of 5 jobs left out: no GPUs or no run time",)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"submitted_time": "soon"}, "jobs[0].submitted_time: must be a time like 2017-10-09"),
        ({"jobid": ""}, "jobs[0].jobid: must not be empty"),
        ({"attempts": 5}, "jobs[0].attempts: must be a list, got 5"),
        (
            {"attempts": [{"start_time": "x", "end_time": "y", "detail": [{"gpus": ["gpu0"]}]}]},
            "jobs[0].attempts[0].start_time: must be a time like 2017-10-09 07:01:55, got 'x'",
        ),
    ],
)
def test_a_broken_log_is_reported(tmp_path, job, message):
    path = tmp_path / "cluster_job_log"
    path.write_text(json.dumps([logged("a", "01:00:00") | job]))
    assert error_of(path).startswith(f"cluster_job_log: {message}")


def test_a_log_of_more_lines_than_a_table_may_have_is_recognised(tmp_path, monkeypatch):
    # What Microsoft publishes has some 20 lines for each of 117,325 jobs.
    monkeypatch.setattr("dovetail.instances.reading.tables.MOST_ROWS", 3)
    path = tmp_path / "cluster_job_log"
    job = logged("a", "01:00:00", ("01:01:00", "01:02:00", 1, 1))
    path.write_text(json.dumps([job], indent=4))
    assert kind_of(path) == "philly-log"
    assert len(read_trace(path).jobs) == 1


def test_a_broken_second_job_of_the_log_is_named(tmp_path):
    path = tmp_path / "cluster_job_log"
    jobs = [logged("a", "01:00:00"), logged("b", "01:00:00") | {"vc": 5}]
    path.write_text(json.dumps(jobs))
    assert error_of(path).startswith("cluster_job_log: jobs[1].vc: must be text, got 5")
    path.write_text(json.dumps([jobs[0], 7]))
    assert error_of(path).startswith("cluster_job_log: jobs[1]: must be")
    path.write_text(json.dumps(jobs[:1])[:-1])
    assert "is not valid JSON" in error_of(path)


# --- Philly: sorted by the time of submission, which begins the trace


def test_philly(tmp_path):
    path = written(
        tmp_path,
        "jobs.csv",
        PHILLY,
        "2017-10-09 00:01:00,66.0,2,132.0,vc-b",
        "2017-10-08 23:59:30,10.5,1,10.5,vc-a",
        "2017-10-09 00:00:00,0.0,1,0.0,vc-a",
        "2017-10-09 00:00:10,5,0,0.0,vc-a",
    )
    trace = read_trace(path)
    # 23:59:30 to 00:01:00 are 90 s.
    assert trace.jobs == (
        TraceJob("job-3", 0.0, 1, 10.5, tenant="vc-a"),
        TraceJob("job-2", 90.0, 2, 66.0, tenant="vc-b"),
    )
    assert trace.notes == ("2 of 4 jobs left out: no GPUs or no run time",)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "yesterday,66,1,66,vc",
            "timestamp: must be a time like 2017-10-09 07:01:55, got 'yesterday'",
        ),
        (
            "2017-10-09 07:01:55+00:00,66,1,66,vc",
            "timestamp: must be a time like 2017-10-09 07:01:55, got '2017-10-09 07:01:55+00:00'",
        ),
        ("2017-10-09 07:01:55,-1,1,66,vc", "duration: must be a finite number >= 0, got '-1'"),
        ("2017-10-09 07:01:55,66,1.5,66,vc", "num_gpus: must be a whole number >= 0, got 1.5"),
        ("2017-10-09 07:01:55,66,1,66,", "cluster: must not be empty"),
    ],
)
def test_a_broken_philly_file_is_reported(tmp_path, row, message):
    assert error_of(written(tmp_path, "jobs.csv", PHILLY, row)) == f"jobs.csv: line 2: {message}"


def test_philly_without_a_column_is_reported(tmp_path):
    path = written(tmp_path, "jobs.csv", "timestamp,duration,num_gpus")
    rule = "must have the columns timestamp, duration, num_gpus, cluster; missing: cluster"
    assert (
        error_of(path, kind="philly")
        == f"jobs.csv: line 1: {rule}, got timestamp, duration, num_gpus"
    )


# --- logs of other clusters: rows of our own in the formats that their owners publish

SENSETIME = (
    "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"
)
OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,deletion_time,scheduled_time"
)
DLRM = (
    "instance_sn,role,app_name,cpu_request,cpu_limit,gpu_request,gpu_limit,rdma_request,"
    "rdma_limit,memory_request,memory_limit,disk_request,disk_limit,max_instance_per_node,"
    "creation_time,scheduled_time,deletion_time"
)
SPOT = (
    "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,"
    "job_type"
)
PARTS = "asked for parts of GPUs: rounded up to whole ones"


def test_the_log_of_helios(tmp_path):
    day = "2020-06-09"
    path = written(
        tmp_path,
        "cluster_log.csv",
        SENSETIME,
        f"12,uA,vcX,8,32,1,FAILED,{day} 18:42:00,{day} 18:43:00,{day} 18:45:00,120,60",
        f"11,uA,vcY,1,4,1,COMPLETED,{day} 18:41:00,{day} 18:41:00,{day} 19:41:00,3600,0",
        f"13,uB,vcX,0,4,1,COMPLETED,{day} 18:40:00,{day} 18:40:00,{day} 18:41:00,60,0",
    )
    assert kind_of(path) == "helios"
    trace = read_trace(path)
    assert trace.jobs == (
        TraceJob("11", 60.0, 1, 3600.0, tenant="vcY"),
        TraceJob("12", 120.0, 8, 120.0, tenant="vcX"),
    )
    assert trace.notes == ("1 of 3 jobs left out: no GPUs or no run time",)


def test_the_pods_of_alibaba_2023(tmp_path):
    path = written(
        tmp_path,
        "pods.csv",
        OPENB,
        "whole,12000,16384,8,1000,,Burstable,Succeeded,100,400,150",
        "part,4000,15258,1,220,V100M16|V100M32,BE,Running,110,310,110",
        "serving,4000,15258,1,1000,,LS,Failed,120,320,120",
        "no-gpu,4000,15258,0,0,,LS,Running,130,330,130",
        "never-scheduled,4000,15258,1,1000,,BE,Pending,140,240,",
    )
    assert kind_of(path) == "alibaba-2023"
    trace = read_trace(path)
    assert trace.jobs == (
        TraceJob("whole", 100.0, 8, 250.0),
        TraceJob("part", 110.0, 1, 200.0),
        TraceJob("serving", 120.0, 1, 200.0, priority="latency"),
    )
    assert trace.notes == (
        "2 of 5 jobs left out: no GPUs or no run time",
        f"1 of 3 jobs {PARTS}",
    )


def test_the_instances_of_alibaba_2025(tmp_path):
    path = written(
        tmp_path,
        "instances.csv",
        DLRM,
        "i0,HN,app_0,12,12,1,1,25,25,120.0,120.0,640.0,800.0,8,,,",
        "i1,HN,app_0,12,12,1,1,25,25,120.0,120.0,640.0,800.0,8,90.0,100.0,400.0",
        "i2,CN,app_1,64,64,0,0,1,1,320.0,320.0,255.0,300.0,-1,10.0,10.0,20.0",
    )
    assert kind_of(path) == "alibaba-2025"
    trace = read_trace(path)
    assert trace.jobs == (TraceJob("i1", 90.0, 1, 300.0, tenant="app_0", priority="latency"),)
    assert trace.notes == ("2 of 3 jobs left out: no GPUs or no run time",)


def test_the_jobs_of_alibaba_2026(tmp_path):
    path = written(
        tmp_path,
        "job_info_df.csv",
        SPOT,
        "7,13,A10,20,1,1,0,2764799,HP",
        "8,57,A100-SXM4-80GB,15,2,16,9589663,41060,Spot",
        "9,57,A10,15,0.1,30,9589664,60,Spot",
        "10,57,A10,15,0.5,3,9589665,60,Spot",
    )
    assert kind_of(path) == "alibaba-2026"
    trace = read_trace(path)
    assert trace.jobs == (
        TraceJob("7", 0.0, 1, 2764799.0, tenant="13"),
        TraceJob("8", 9589663.0, 32, 41060.0, tenant="57"),
        TraceJob("9", 9589664.0, 3, 60.0, tenant="57"),  # 0.1 x 30 is 3, not a little more
        TraceJob("10", 9589665.0, 2, 60.0, tenant="57"),
    )
    assert trace.notes == (f"1 of 4 jobs {PARTS}",)


TASKS = (
    "j1,ps,2,Terminated,1000.0,5000.0,600.0,29.3,,",
    "j1,worker,3,Terminated,1010.0,4010.0,600.0,29.3,50.0,T4",
    "j1,evaluator,1,Terminated,1500.0,4510.0,600.0,29.3,100.0,T4",
    "j2,tensorflow,1.0,Failed,900.0,960.0,600.0,29.3,100.0,MISC",
    "j3,worker,1.0,Running,900.0,,600.0,29.3,100.0,V100",
    "j4,worker,1.0,Waiting,,,600.0,29.3,100.0,V100",
)


def test_the_tasks_of_alibaba_2020(tmp_path):
    path = written(tmp_path, "pai_task_table.csv", *TASKS)
    assert kind_of(path) == "alibaba-2020"
    trace = read_trace(path)
    assert trace.jobs == (
        TraceJob("j2", 900.0, 1, 60.0),
        TraceJob("j1", 1010.0, 3, 3500.0),  # 3 x 50 % + 100 % is two and a half GPUs
    )
    assert trace.notes == (
        "2 of 4 jobs left out: no GPUs or no run time",
        f"1 of 2 jobs {PARTS}",
    )


def test_the_jobs_of_alibaba_2020_have_submissions_and_users(tmp_path):
    header = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,"
    path = written(tmp_path, "tasks.csv", f"{header}gpu_type", *TASKS)
    rows = ["j1,8cb3,ann,Terminated,990.0,5000.0", "j2,9dc4,bob,Failed,,960.0"]
    written(tmp_path, "pai_job_table.csv", *rows)
    assert read_trace(path).jobs == (
        TraceJob("j2", 900.0, 1, 60.0, tenant="bob"),
        TraceJob("j1", 990.0, 3, 3500.0, tenant="ann"),
    )


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        (
            SENSETIME,
            "1,u,vc,1,4,1,COMPLETED,yesterday,,,60,0",
            "line 2: submit_time: must be a time like 2017-10-09 07:01:55, got 'yesterday'",
        ),
        (
            SENSETIME,
            "1,u,vc,,4,1,COMPLETED,2020-06-09 18:42:00,,,60,0",
            "line 2: gpu_num: must be a number, got ''",
        ),
        (
            SENSETIME,
            "1,u,vc,1,4,1,COMPLETED,2020-06-09 18:42:00,,,1:00:00,0",
            "line 2: duration: must be a number, got '1:00:00'",
        ),
        (
            OPENB,
            "a,1,1,1,x,,LS,Running,0,9,0",
            "line 2: gpu_milli: must be a number, got 'x'",
        ),
        (
            SPOT,
            "7,13,A10,20,1,1.5,0,60,HP",
            "line 2: worker_num: must be a whole number >= 0, got 1.5",
        ),
        (
            SPOT,
            "7,13,A10,20,1e300,1e300,0,60,HP",
            "jobs[0].workers: must be <= 1000000, got 1000000000",
        ),
        (SPOT, "7,13,A10,20,1,1,-5,60,HP", "line 2: submit_time: must be a finite number >= 0"),
    ],
)
def test_a_broken_log_of_a_cluster_is_reported(tmp_path, header, row, message):
    assert f": {message}" in error_of(written(tmp_path, "log.csv", header, row))


def test_a_broken_table_of_tasks_is_reported(tmp_path):
    path = written(tmp_path, "t.csv", TASKS[0], "j9,w,one,Failed,1,2,3,4,5,T4")
    assert error_of(path) == "t.csv: line 2: inst_num: must be a number, got 'one'"


# --- Gavel: "a" does 10 it/s alone, and 16 on two GPUs; "b" 4, and was not measured on two

DEVICE = {"('a', 1)": {"null": 10.0}, "('a', 2)": {"null": 16.0}, "('b', 1)": {"null": 4.0}}


def throughputs(folder):
    path = folder / "simulation_throughputs.json"
    path.write_text(json.dumps({"v100": DEVICE, "k80": {"('a', 1)": {"null": 5.0}}}))
    return path


def gavel_row(job_type="a", steps="100", arrival="0", gpus="1"):
    return "\t".join([job_type, "cmd", "-n", "1", steps, arrival, gpus])


def test_gavel_takes_durations_from_throughputs_in_the_folder_above(tmp_path):
    throughputs(tmp_path)
    (tmp_path / "traces").mkdir()
    path = written(
        tmp_path / "traces",
        "some.trace",
        gavel_row(),
        gavel_row(steps="320", arrival="5.5", gpus="2"),
        gavel_row("b", steps="8", arrival="7", gpus="2"),
    )
    trace = read_trace(path)
    assert trace.jobs == (
        TraceJob("job-1", 0.0, 1, 10.0, "a"),  # 100 / 10
        TraceJob("job-2", 5.5, 2, 20.0, "a"),  # 320 / 16
        TraceJob("job-3", 7.0, 2, 2.0, "b"),  # 8 / 4, the rate of one GPU
    )
    assert trace.notes == (
        "1 of 3 jobs are gangs whose throughput was not measured on v100: "
        "their durations take that of one GPU",
    )


def test_gavel_on_another_gpu_model(tmp_path):
    path = written(tmp_path, "rows.txt", gavel_row())
    rates = throughputs(tmp_path)
    slow = read_trace(path, throughputs=rates, gpu_model="k80")
    assert slow.jobs == (TraceJob("job-1", 0.0, 1, 20.0, "a"),)
    assert slow.notes == ()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            gavel_row("c"),
            "line 1: job type: must be one with a throughput on one GPU (a, b), got 'c'",
        ),
        (gavel_row(steps="0"), "line 1: total steps: must be > 0, got '0'"),
        (gavel_row(arrival="-3"), "line 1: arrival s: must be a finite number >= 0, got '-3'"),
        (gavel_row(gpus="0"), "line 1: GPUs: must be a whole number >= 1, got 0"),
        ("a\tb", "line 1: must have 7 fields, got 2"),
    ],
)
def test_a_broken_gavel_trace_is_reported(tmp_path, row, message):
    throughputs(tmp_path)
    assert error_of(written(tmp_path, "some.trace", row)) == f"some.trace: {message}"


def test_gavel_needs_throughputs(tmp_path):
    path = written(tmp_path, "some.trace", gavel_row())
    rule = "needs simulation_throughputs.json of Gavel in its folder or the one above"
    assert error_of(path) == f"some.trace: {rule}, or given as throughputs"
    assert "simulation_throughputs.json: device: must be one of v100, k80, got 'a100'" in error_of(
        path, throughputs=throughputs(tmp_path), gpu_model="a100"
    )


# --- Muri: milliseconds


def test_muri(tmp_path):
    path = written(
        tmp_path,
        "trace9.csv",
        MURI,
        "7,4,1500,10,bert,4,1900,1500,190,0.5,163,18,1",
        "8,1,2000,20,vgg16,16,2140,500,107,117,68,0,0",
        "9,1,2500,0,vgg16,16,0,500,107,117,68,0,0",
    )
    trace = read_trace(path)
    assert trace.jobs == (
        TraceJob("job-7", 1.5, 4, 1.9, "bert"),
        TraceJob("job-8", 2.0, 1, 2.14, "vgg16"),
    )
    assert trace.notes == ("1 of 3 jobs left out: no GPUs or no run time",)
    assert muri_stages(path) == {
        ("bert", 4): (0.19, 0.0005, 0.163, 0.018),
        ("vgg16", 1): (0.107, 0.117, 0.068, 0.0),
    }


def test_a_broken_muri_trace_is_reported(tmp_path):
    path = written(tmp_path, "t.csv", MURI, "7,4,1500,10,,4,1900,1500,190,0.5,163,18,1")
    assert error_of(path) == "t.csv: line 2: model_name: must not be empty"
    path = written(tmp_path, "t.csv", MURI, "7,4,soon,10,bert,4,1900,1500,190,0.5,163,18,1")
    assert error_of(path) == "t.csv: line 2: submit_time: must be a number, got 'soon'"


def test_stages_that_contradict_each_other_are_reported(tmp_path):
    path = written(
        tmp_path,
        "t.csv",
        MURI,
        "7,4,1500,10,bert,4,1900,1500,190,0.5,163,18,1",
        "8,4,1500,10,bert,4,1900,1500,190,0.5,164,18,1",
    )
    rule = "iteration_time or resource_time: must be as in the other rows of bert on 4 GPUs"
    with pytest.raises(InputError, match=f"t.csv: line 3: {rule}$"):
        muri_stages(path)


def test_openb_pods_without_times_are_refused_with_what_to_do(tmp_path):
    header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli"
    path = written(tmp_path, "pods.csv", header, "openb-pod-0001,6000,12288,1,460")
    assert error_of(path) == (
        "pods.csv: line 1: has no arrivals and no run times, which a trace needs: take another "
        "list of pods, or write a table id,arrival_s,workers,duration_s"
    )


# --- the format follows from the content


def test_the_format_follows_from_the_first_line(tmp_path):
    throughputs(tmp_path)
    contents = {
        "job-2": f"{PHILLY}\n2017-10-09 00:01:00,66.0,2,132.0,vc\n",
        "job-7": f"{MURI}\n7,4,1500,10,bert,4,1900,1500,190,0.5,163,18,1\n",
    }
    for name, content in contents.items():
        path = tmp_path / "jobs.txt"
        path.write_text(content)
        assert [job.id for job in read_trace(path).jobs] == [name]
    path.write_text(gavel_row() + "\n")
    assert [job.workload for job in read_trace(path).jobs] == ["a"]
