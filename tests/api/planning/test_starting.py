"""Shell commands that start a plan: each line gives its process the planned share."""

from __future__ import annotations

import json
import subprocess

import pytest

from dovetail.cli.main import main
from dovetail.instances.instance import Instance
from dovetail.instances.plan import Plan
from dovetail.planning.starting import ranks, shell_lines
from dovetail.solver.rounds import solve

GPU = {"model": "V100", "memory_mib": 16000}
UUID = "GPU-0a1b2c3d-0000-1111-2222-333344445555"


@pytest.fixture
def planned() -> tuple[Instance, Plan]:
    """A gang over two nodes, a job that runs already, one that shares with the gang."""
    instance = Instance.from_data(
        {
            "name": "two nodes",
            "cluster": {
                "shares": [40, 60],
                "nodes": [
                    {"id": "n0", "gpus": [{"id": "busy", **GPU}, {"id": UUID, **GPU}]},
                    {"id": "n1", "gpu_count": 2, "gpu": GPU},
                ],
            },
            "workloads": {"a": {"memory_mib": 4000}, "b": {"memory_mib": 4000}},
            "jobs": [
                {"id": "old", "workload": "a", "state": "running", "gpus": ["busy"]},
                {"id": "full", "workload": "a", "state": "running", "gpus": ["n1-0"]},
                {"id": "gang; rm -rf x", "workload": "a", "workers": 2, "weight": 9},
                {"id": "late", "workload": "b", "priority": "latency"},
            ],
            "slowdowns": [{"pair": ["a", "b"], "share": [60, 40], "slowdown": [1.1, 1.1]}],
        }
    )
    return instance, solve(instance).plan


def environments(lines):
    """Return the variables of the process that each line starts."""
    names = "CUDA_VISIBLE_DEVICES,CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
    show = "; ".join(f'echo -n "${{{name}--}} "' for name in names.split(","))
    found = {}
    for line in lines:
        variables, comment, job = line.partition("  # command of ")
        if comment:
            command = f"{variables} bash -c '{show}'"
            ran = subprocess.run(
                ["bash", "-c", command], capture_output=True, text=True, check=True
            )
            found[job] = tuple(ran.stdout.split())
    return found


def test_each_process_of_a_starting_job_gets_its_gpu_and_share(planned):
    instance, plan = planned
    lines = "\n".join(shell_lines(instance, (), ranks(instance, plan))).splitlines()
    shared = next(row for row in plan.assignments if row.job == "late").gpus[0]
    device = {UUID: UUID, "n1-1": "1"}
    expected = {
        f"gang; rm -rf x: on {gpu}, rank {rank} of 2": (
            device[gpu],
            "60" if gpu == shared else "-",
        )
        for rank, gpu in enumerate(plan.assignments[2].gpus)
    }
    expected[f"late: on {shared}"] = (device[shared], "40")
    assert environments(lines) == expected
    assert "export CUDA_DEVICE_ORDER=PCI_BUS_ID" in lines
    assert [line for line in lines if line.startswith("# on")] == ["# on n0", "# on n1"]


def test_a_preempted_job_is_started_only_where_it_moves(planned):
    # One of the two gets a cap, next to `late`; the other stays.
    instance, _ = planned
    plan = solve(instance, preempt=True).plan
    started = {rank.job for rank in ranks(instance, plan)}
    assert len(started & {"old", "full"}) == 1
    everything = plan.replace(assignments=[a.replace(start=None) for a in plan.assignments])
    assert {rank.job for rank in ranks(instance, everything)} == {job.id for job in instance.jobs}


def test_what_must_stop_is_named_before_anything_starts_there(tmp_path, capsys):
    """A gang takes the place of a job that then waits, and of one that moves."""
    node = {"gpu_count": 2, "gpu": GPU}
    held = {"state": "running", "workload": "a"}
    data = {
        "format": "dovetail-instance/1",
        "name": "stops",
        "cluster": {
            "max_jobs_per_gpu": 1,
            "nodes": [{"id": "n0", **node}, {"id": "n1", "gpus": [{"id": "small", **GPU}]}],
        },
        "workloads": {"a": {"memory_mib": 4000}, "b": {"memory_mib": 4000, "speed": {"B": 9}}},
        "jobs": [
            {"id": "stops", **held, "gpus": ["n0-0"], "weight": 0.1},
            {"id": "moves", **held, "gpus": ["n0-1"], "workload": "b", "weight": 2},
            {"id": "gang", "workload": "a", "workers": 2, "weight": 5},
        ],
        "slowdowns": [],
    }
    data["cluster"]["nodes"][1]["gpus"][0]["model"] = "B"
    (tmp_path / "a.json").write_text(json.dumps(data))
    assert main(["plan", str(tmp_path / "a.json"), "--preempt", "--commands"]) == 0
    lines = capsys.readouterr().out.splitlines()
    on_n0 = lines[lines.index("# on n0") + 1 : lines.index("# on n1") - 1]
    assert on_n0[:2] == ["# stop first: stops on n0-0", "# stop first: moves on n0-1"]
    assert [line.partition("command of ")[2] for line in on_n0[2:]] == [
        "gang: on n0-0, rank 0 of 2",
        "gang: on n0-1, rank 1 of 2",
    ]
    assert 'Stop the jobs named in "stop first"' in lines[0]
    assert main(["plan", str(tmp_path / "a.json"), "--preempt"]) == 0
    out = capsys.readouterr().out
    assert "2 running jobs to stop first" in out
    assert "stops  on n0-0, then waits" in out
    assert "moves  on n0-1, then starts again on small" in out
    assert "stops  stopped: it runs on n0-0 now; " in out
    page = str(tmp_path / "a.html")
    assert main(["plan", str(tmp_path / "a.json"), "--preempt", "--report", page, "--json"]) == 0
    plan = Plan.from_data(json.loads(capsys.readouterr().out))
    assert {stop.job: stop.gpus for stop in plan.stops} == {
        "stops": ("n0-0",),
        "moves": ("n0-1",),
    }
    text = (tmp_path / "a.html").read_text()
    assert "Running jobs to stop before anything starts" in text
    assert "starts again on small" in text


def test_plan_prints_them_in_place_of_the_plan(tmp_path, capsys):
    assert main(["plan", "library:lab", "--commands"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert subprocess.run(["bash", "-n"], input="\n".join(lines), text=True).returncode == 0
    assert main(["plan", "library:lab", "--commands", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    plan = Plan.from_data(data["plan"])
    starting = [row for row in plan.assignments if row.start]
    assert len(data["commands"]) == sum(len(row.gpus) for row in starting)
    assert sum("  # command of " in line for line in lines) == len(data["commands"])
    assert {row["job"] for row in data["commands"]} == {row.job for row in starting}


def test_what_variables_cannot_start_is_refused_in_a_line(tmp_path, capsys):
    data = {
        "format": "dovetail-instance/1",
        "name": "isolated",
        "cluster": {
            "shares": ["idle"],
            "nodes": [{"id": "n0", "gpus": [{"id": "g0", "model": "A", "memory_mib": 2}]}],
        },
        "workloads": {"a": {"memory_mib": 1}, "b": {"memory_mib": 1, "isolation": "blocks"}},
        "jobs": [{"id": "x", "workload": "a"}, {"id": "y", "workload": "b"}],
        "slowdowns": [{"pair": ["a", "b"], "share": [None, "idle"], "slowdown": [1.1, 1.5]}],
    }
    (tmp_path / "a.json").write_text(json.dumps(data))
    assert main(["plan", str(tmp_path / "a.json"), "--commands"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    rule = "the share idle needs isolation, which variables of MPS cannot give"
    assert printed.err == f"dovetail: y on g0: {rule}\n"


def test_without_mps_the_lines_say_so():
    instance = Instance.from_data(
        {
            "name": "turns",
            "cluster": {
                "sharing": "time_sliced",
                "nodes": [{"id": "n0", "gpu_count": 1, "gpu": GPU}],
            },
            "workloads": {"a": {"memory_mib": 4000}},
            "jobs": [
                {"id": "batch", "workload": "a"},
                {"id": "late", "workload": "a", "priority": "latency"},
            ],
            "slowdowns": [{"pair": ["a", "a"], "slowdown": [1.8, 1.8], "mode": "time_sliced"}],
        }
    )
    lines = "\n".join(shell_lines(instance, (), ranks(instance, solve(instance).plan))).splitlines()
    assert set(environments(lines).values()) == {("0", "-")}
    assert "no MPS daemon may run" in lines[0]
