"""Alibaba's lists of jobs: fractions stay fractions, averages over instances, and bad rows."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from dovetail.advising.reader import read_usage
from dovetail.advising.usage import joined
from dovetail.instances.errors import InputError

PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
pod-0,88000,327680,8,1000,,Burstable,Succeeded,100,900,150
pod-1,4000,15258,1,220,V100M16,BE,Running,200,800,200
pod-2,16000,32768,1,1000,V100M16|V100M32,LS,Running,300,,310
pod-3,16000,32768,0,0,,BE,Running,300,400,310
pod-4,16000,32768,1,1000,,BE,Pending,300,400,
"""
BARE = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli
pod-0,12000,16384,1,1000
pod-1,6000,12288,1,460
pod-2,6000,12288,4,1000
"""
NODES = """\
sn,cpu_milli,memory_mib,gpu,model
node-1,128000,786432,8,G3
node-2,32000,262144,0,
"""
TASKS = """\
a1,worker,2.0,Terminated,100.0,500.0,600.0,29.3,50.0,T4
a1,ps,1.0,Terminated,90.0,500.0,600.0,29.3,,
b2,tensorflow,1.0,Running,200.0,,600.0,29.3,150.0,MISC
c3,worker,4.0,Terminated,100.0,400.0,600.0,29.3,200.0,V100
c3,evaluator,1.0,Terminated,150.0,450.0,600.0,29.3,100.0,V100
d4,worker,1.0,Waiting,,,600.0,29.3,25.0,P100
e5,ps,1.0,Failed,10.0,20.0,600.0,29.3,,
f6,worker,1.0,Failed,10.0,,600.0,29.3,100.0,T4
"""
SENSORS = """\
a1,worker,0d39aa867a79,e387fbc18d80,6884752e3565,/dev/nvidia0,140.1,16.0,1.4,2.3,1.25,2.5,1.0,1.0,1.0,1.0
a1,worker,1d39aa867a79,e387fbc18d80,7884752e3565,/dev/nvidia1,140.1,24.0,1.4,2.3,1.5,2.0,1.0,1.0,1.0,1.0
a1,ps,2d39aa867a79,e387fbc18d80,7884752e3565,,140.1,,1.4,2.3,,,1.0,1.0,1.0,1.0
c3,worker,3d39aa867a79,f387fbc18d80,7884752e3565,/dev/nvidia0,140.1,150.0,1.4,2.3,8.0,9.0,1.0,1.0,1.0,1.0
"""


def files() -> dict[str, dict[str, bytes]]:
    """Return sample files by reader and name."""
    return {
        "alibaba-2020": {
            "pai_task_table.csv": TASKS.encode(),
            "pai_sensor_table.csv": SENSORS.encode(),
        },
        "alibaba-2023": {
            "openb_pod_list_default.csv": PODS.encode(),
            "openb_pod_list_multigpu20.csv": BARE.encode(),
            "openb_node_list_all_node.csv": NODES.encode(),
        },
    }


def read(tmp_path: Path, text: str):
    file = tmp_path / "file.csv"
    file.write_text(text)
    return read_usage(str(file))


def rows(frame, *columns: str) -> list[list[object]]:
    found = frame[list(columns)].astype(object)
    return found.where(found.notna(), None).to_numpy().tolist()


def test_pods_keep_their_fractions(tmp_path):
    usage = read(tmp_path, PODS)
    columns = ("job", "gpus", "fraction", "gpu_model", "state", "service", "workers_together")
    assert rows(usage.jobs, *columns) == [
        ["pod-0", 8.0, None, None, "ended", False, 8.0],
        ["pod-1", 1.0, 0.22, "V100M16", "ended", False, 1.0],
        ["pod-2", 1.0, None, None, "running", True, 1.0],
    ]
    assert rows(usage.jobs, "submit_s", "start_s", "end_s") == [
        [100.0, 150.0, 900.0],
        [200.0, 200.0, 800.0],
        [300.0, 310.0, None],
    ]
    assert [str(each) for each in usage.left_out] == [
        "pods (1): ask for no GPU",
        "pods (1): were never placed",
    ]


def test_pods_without_times_run_at_one_moment(tmp_path):
    usage = read(tmp_path, BARE)
    assert rows(usage.jobs, "job", "gpus", "fraction", "state") == [
        ["pod-0", 1.0, None, "running"],
        ["pod-1", 1.0, 0.46, "running"],
        ["pod-2", 4.0, None, "running"],
    ]
    assert len(usage.notes) == 1


def test_nodes_with_gpus(tmp_path):
    nodes = read(tmp_path, NODES).nodes
    assert rows(nodes, "node", "gpu_model", "gpus") == [["node-1", "G3", 8.0]]


@pytest.mark.parametrize("header", [False, True])
def test_tasks_of_a_job_are_one_job(tmp_path, header):
    names = (
        "job_name,task_name,inst_num,status,start_time,end_time,"
        "plan_cpu,plan_mem,plan_gpu,gpu_type\n"
    )
    usage = read(tmp_path, (names if header else "") + TASKS)
    columns = ("job", "gpus", "fraction", "workers_together", "state", "start_s", "end_s")
    assert rows(usage.jobs, *columns, "gpu_model") == [
        ["a1", 2.0, 0.5, 1.0, "ended", 100.0, 500.0, "T4"],
        ["b2", 2.0, 0.75, 2.0, "running", 200.0, None, "MISC"],
        ["c3", 9.0, None, 1.0, "ended", 100.0, 450.0, "V100"],
        ["d4", 1.0, 0.25, 1.0, "waiting", None, None, "P100"],
    ]
    assert [str(each) for each in usage.left_out] == [
        "jobs (1): ask for no GPU",
        "jobs (1): ended without a start and an end",
    ]


def test_sensors_are_averages_of_instances(tmp_path):
    usage = read(tmp_path, SENSORS)
    columns = ("job", "gpus", "gpu_util_mean", "memory_mean_mib", "memory_max_mib", "node")
    assert rows(usage.jobs, *columns) == [
        ["a1", 2.0, pytest.approx(0.2), 1536.0, 2560.0, "6884752e3565,7884752e3565"],
        ["c3", 1.0, None, 8192.0, 9216.0, "7884752e3565"],
    ]
    assert [str(each) for each in usage.left_out] == ["instances (1): used no GPU"]
    both = joined([read(tmp_path, TASKS), usage]).jobs.set_index("job")
    assert both.loc["c3", "gpus"] == 9.0
    assert both.loc["a1", "memory_max_mib"] == 2560.0
    assert both.loc["b2", "state"] == "running"
    assert np.isnan(both.loc["b2", "memory_max_mib"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            BARE.replace("460", "1460"),
            "line 3: gpu_milli: must be a number from 0 to 1000, got '1460'",
        ),
        (BARE.replace(",4,", ",1.5,"), "line 4: num_gpu: must be a whole number, got '1.5'"),
        (BARE.replace("pod-1", "pod-0"), "line 3: name: must differ in every row, got 'pod-0'"),
        (BARE.replace(",460", ""), "line 3: must have 5 fields, got 4"),
        (NODES.replace(",8,", ",x,"), "line 2: gpu: must be a number from 0 to 10000, got 'x'"),
        (
            TASKS.replace("Waiting", "Waits"),
            "line 6: status: must be one of Terminated, Failed, Running, Waiting, got 'Waits'",
        ),
        (
            SENSORS.replace("24.0", "-1"),
            "line 2: gpu_wrk_util: must be a number from 0 to 1e+06, got '-1'",
        ),
    ],
)
def test_broken_rows(tmp_path, text, message):
    with pytest.raises(InputError) as error:
        read(tmp_path, text)
    assert str(error.value) == f"{tmp_path / 'file.csv'}: {message}"


def test_no_damage_causes_another_error(tmp_path):
    chance = random.Random(0)
    file = tmp_path / "damaged.csv"
    errors = []
    for form, contents in files().items():
        for content in contents.values():
            for _ in range(60):
                data = bytearray(content)
                for _ in range(chance.randrange(1, 4)):
                    data[chance.randrange(len(data))] = chance.randrange(256)
                file.write_bytes(bytes(data[: chance.randrange(len(data)) + 1]))
                try:
                    read_usage(str(file), form)
                except InputError as error:
                    errors.append(str(error))
    assert errors
    assert not [error for error in errors if "\n" in error]
