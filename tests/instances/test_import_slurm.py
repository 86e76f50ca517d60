"""Clusters under Slurm: output of the commands of 22.05, and the newer form of their numbers."""

import json

import pytest

from dovetail.cli.main import main
from dovetail.instances.errors import InputError
from dovetail.instances.files import write_instance
from dovetail.instances.importers._hostlist import hostnames
from dovetail.instances.importers.slurm import import_slurm

NODES = """\
NodeName=n1 Arch=x86_64 CoresPerSocket=1
   ActiveFeatures=ib
   Gres=gpu:a100:2(S:0-1),nvme:1
   State=MIXED ThreadsPerCore=1
   Partitions=p,q

NodeName=n2 Arch=x86_64
   ActiveFeatures=ib,big
   Gres=gpu:a100:2
   State=IDLE
   Partitions=p

NodeName=n3
   ActiveFeatures=(null)
   Gres=gpu:v100:1
   State=IDLE+DRAIN
   Partitions=p

NodeName=n4
   ActiveFeatures=ib
   Gres=(null)
   State=IDLE
   Partitions=p
"""

RUNS = {
    "job_id": 7,
    "job_state": "RUNNING",
    "name": "train",
    "user_name": "ann",
    "cluster": "c",
    "partition": "p",
    "nodes": "n[1-2]",
    "gres_detail": ["gpu:a100:1(IDX:1)", "gpu:a100:2(IDX:0-1)"],
    "submit_time": 1000,
    "last_sched_evaluation": 2000,
    "start_time": 1500,
    "end_time": 5100,
    "time_limit": 60,
}
WAITS = {
    "job_id": 8,
    "job_state": "PENDING",
    "state_reason": "Resources",
    "name": "tune",
    "user_name": "bob",
    "partition": "p",
    "node_count": 2,
    "tres_per_node": "gres:gpu:a100:2",
    "features": "ib",
    "submit_time": 1600,
    "time_limit": 30,
}


@pytest.fixture
def files(tmp_path):
    """Return a function that writes the two files and imports them."""

    def make(*jobs, nodes=NODES, **options):
        (tmp_path / "jobs.json").write_text(json.dumps({"jobs": jobs}))
        (tmp_path / "nodes").write_text(nodes)
        paths = {"jobs": str(tmp_path / "jobs.json"), "nodes": str(tmp_path / "nodes")}
        return import_slurm({"a100": 40960.0}, **paths, **options)

    return make


def test_gangs_are_where_slurm_has_them(files):
    made = files(RUNS, WAITS)
    running, waiting = made.instance.jobs
    assert running.gpus == ("n1-1", "n2-0", "n2-1")
    # 5100 is its end; the newest time in the file is 2000.
    assert running.remaining_s == 3100
    assert (running.workload, waiting.workload) == ("ann/train", "bob/tune")
    assert (waiting.workers, waiting.remaining_s, waiting.arrival_s) == (4, 1800, 600)
    # Two nodes with two GPUs each is what the waiting one asks for.
    assert (waiting.workers_per_node, running.workers_per_node) == (2, None)
    assert made.left_out == ("nodes that are down or drained (1)", "nodes without GPUs (1)")
    assert not made.instance.slowdowns


@pytest.mark.parametrize(
    ("asked", "workers", "rule"),
    [
        # --gpus-per-node=4 -N 2, --gpus-per-node=1 -N 3
        ({"tres_per_node": "gres/gpu:4", "node_count": 2}, 8, {"workers_per_node": 4}),
        ({"tres_per_node": "gres/gpu:1", "node_count": 3}, 3, {"workers_per_node": 1}),
        ({"tres_per_node": "gres/gpu:1", "node_count": 1}, 1, {}),
        # --gpus-per-task=2 -n 3; with --ntasks-per-node=2 -N 2; with -N 1-1
        ({"tres_per_task": "gres/gpu:2", "tasks": 3}, 6, {"workers_together": 2}),
        ({"tres_per_task": "gres/gpu:1", "tasks": 3}, 3, {}),
        (
            {"tres_per_task": "gres/gpu:2", "tasks": 4, "tasks_per_node": 2, "node_count": 2},
            8,
            {"workers_per_node": 4},
        ),
        (
            {"tres_per_task": "gres/gpu:2", "tasks": 3, "tasks_per_node": 2, "node_count": 2},
            6,
            {"workers_together": 2},
        ),
        ({"tres_per_task": "gres/gpu:2", "tasks": 3, "max_nodes": 1}, 6, {"workers_per_node": 6}),
        # --gpus=4 -N 1-1; --gpus=4
        ({"tres_per_job": "gres/gpu:4", "max_nodes": 1}, 4, {"workers_per_node": 4}),
        ({"tres_per_job": "gres/gpu:4", "max_nodes": 0}, 4, None),
    ],
)
def test_gpus_per_node_and_per_task_are_rules_for_nodes(files, asked, workers, rule):
    bare = {
        key: value for key, value in WAITS.items() if key not in ("tres_per_node", "node_count")
    }
    made = files({**bare, **asked})
    (job,) = made.instance.jobs
    found = {"workers_per_node": job.workers_per_node, "workers_together": job.workers_together}
    assert job.workers == workers
    assert {name: size for name, size in found.items() if size is not None} == (rule or {})
    counted = any(line.startswith("rules that keep GPUs") for line in made.left_out)
    assert counted == (rule is None or (not rule and workers > 1))


def test_newer_slurms_write_numbers_as_objects_and_states_as_lists(files):
    newer = {
        **WAITS,
        "job_state": ["PENDING"],
        "node_count": number(2),
        "tres_per_node": "gres/gpu:a100=2",
        "submit_time": number(1600),
        "time_limit": {"set": True, "infinite": True, "number": 0},
    }
    (job,) = files(newer).instance.jobs
    assert (job.workers, job.remaining_s) == (4, None)


def number(value):
    """Return a number as Slurm 23.02 and later write it."""
    return {"set": True, "infinite": False, "number": value}


NEWER = [
    {
        **RUNS,
        "job_state": ["RUNNING"],
        "node_count": number(2),
        "tres_per_node": "gres/gpu:2",
        **{key: number(RUNS[key]) for key in ("submit_time", "start_time", "end_time")},
        "last_sched_evaluation": number(2000),
        "time_limit": number(60),
        "tasks": number(2),
        "array_job_id": number(0),
    },
    {
        "job_id": 9,
        "job_state": ["PENDING"],
        "state_reason": "Priority",
        "name": "sweep",
        "user_name": "",
        "partition": "p,q",
        "nodes": "",
        "gres_detail": [],
        "tres_per_task": "gres/gpu=1",
        "tasks": number(2),
        "submit_time": number(1600),
        "time_limit": {"set": False, "infinite": True, "number": 0},
        "features": "",
    },
    {**RUNS, "job_id": 5, "job_state": ["COMPLETED"], "nodes": "n1"},
]


def test_a_whole_file_of_a_newer_slurm(files):
    """The shapes of 23.11 and 24.05 (data_parser v0.0.40, v0.0.41), by their public schemas."""
    made = files(*NEWER)
    running, waiting = made.instance.jobs
    assert running.gpus == ("n1-1", "n2-0", "n2-1")
    assert running.remaining_s == 3100
    assert (waiting.workload, waiting.workers, waiting.remaining_s) == ("user/sweep", 2, None)
    assert "jobs that neither run nor wait (1)" in made.left_out


def test_gpus_of_jobs_that_are_left_out_are_not_free(files):
    """Job 7 is on n1-1 and both GPUs of n2; no plan may give them away."""
    made = files({**RUNS, "partition": "other"}, partition="p")
    assert [gpu.id for node in made.instance.cluster.nodes for gpu in node.gpus] == ["n1-0"]
    assert "jobs of other partitions (1)" in made.left_out
    assert "GPUs of jobs that are left out (3)" in made.left_out
    done = files({**RUNS, "job_state": "COMPLETED"})
    assert len(done.instance.cluster.nodes[0].gpus) == 2


def test_a_node_that_drains_takes_no_new_jobs(files):
    nodes = NODES.replace("State=MIXED", "State=MIXED+DRAIN")
    made = files(RUNS, nodes=nodes)
    assert [gpu.id for gpu in made.instance.cluster.nodes[0].gpus] == ["n1-1"]
    assert "idle GPUs of nodes that drain (1)" in made.left_out


@pytest.mark.parametrize("state", ["FUTURE", "UNKNOWN", "IDLE+MAINTENANCE", "IDLE*+PLANNED"])
def test_unusable_nodes_are_left_out(files, state):
    made = files(
        nodes=NODES.replace(
            "State=IDLE\n   Partitions=p\n\nNodeName=n3",
            f"State={state}\n   Partitions=p\n\nNodeName=n3",
        )
    )
    assert [node.id for node in made.instance.cluster.nodes] == ["n1"]


def test_what_people_write_is_no_fact(files):
    comment = "Partitions=p,q\n   Comment=NodeName=n9 Gres=gpu:h100:8 State=DOWN"
    made = files(nodes=NODES.replace("Partitions=p,q", comment))
    assert [node.id for node in made.instance.cluster.nodes] == ["n1", "n2"]


def test_unusable_fields_of_a_job_are_left_out_and_reported(files):
    held = {**WAITS, "state_reason": "Dependency"}
    made = files(
        {**WAITS, "features": "big"},
        {**WAITS, "excluded_nodes": "n2"},
        {**WAITS, "tres_per_node": "gres:gpu:v100:2"},
        {**WAITS, "tres_per_node": "", "job_id": 9},
        {**RUNS, "nodes": "n[2-3]"},
        {**WAITS, "job_state": "COMPLETING"},
        held,
    )
    assert not made.instance.jobs
    assert set(made.left_out) == {
        "GPUs of jobs that are left out (1)",
        "jobs that ask for certain nodes (1)",
        "jobs that ask for one of several GPU types (1)",
        "jobs that are held or wait for a time or another job (1)",
        "jobs that neither run nor wait (1)",
        "jobs that run on nodes that are not taken (1)",
        "jobs with constraints that not every node keeps (1)",
        "jobs without GPUs (1)",
        "nodes that are down or drained (1)",
        "nodes without GPUs (1)",
    }


def test_a_constraint_takes_the_nodes_that_keep_it(files):
    (job,) = files({**WAITS, "features": "big"}, constraint="big").instance.jobs
    assert job.workers == 4
    assert [n.id for n in files(WAITS, partition="q").instance.cluster.nodes] == ["n1"]


def test_leaf_switches_are_racks(files, tmp_path):
    (tmp_path / "topology").write_text(
        "SwitchName=s1 Nodes=n[1,3]\nSwitchName=s2 Nodes=n2\nSwitchName=top Switches=s[1-2]\n"
    )
    made = files(WAITS, topology=str(tmp_path / "topology"))
    assert [node.rack for node in made.instance.cluster.nodes] == ["s1", "s2"]
    (tmp_path / "topology").write_text("SwitchName=s1 Nodes=n[0-200000000]\n")
    with pytest.raises(InputError, match="topology: line 1: Nodes: must name at most 100000"):
        files(WAITS, topology=str(tmp_path / "topology"))
    with pytest.raises(InputError, match=r"nodes: must be a topology\.conf"):
        files(WAITS, topology=str(tmp_path / "nodes"))


def test_an_imported_cluster_can_be_planned(files, tmp_path):
    instance = files(RUNS, {**WAITS, "node_count": 1, "tres_per_node": "gres:gpu:1"}).instance
    path = tmp_path / "instance.json"
    write_instance(instance, path)
    assert main(["plan", str(path), "-o", str(tmp_path / "plan.json")]) == 0
    assert "n1-0" in (tmp_path / "plan.json").read_text()


@pytest.mark.parametrize(
    ("jobs", "nodes", "message"),
    [
        ("[1]", NODES, "jobs.json: must be what squeue --json prints"),
        ('{"jobs": [{}]}', NODES, "jobs.json: jobs[0].job_id: must be a whole number, got null"),
        ('{"jobs": []}', "", "nodes: must be what scontrol show node prints"),
        (
            '{"jobs": []}',
            "NodeName=n1 Gres=(null) State=IDLE",
            "nodes: must have a node with GPUs that can be taken",
        ),
        (
            '{"jobs": [{"job_id": 7}]}',
            NODES,
            "jobs.json: jobs[0].job_state: must be a state or a list of states, got null",
        ),
        (
            '{"jobs": [{"job_id": 7, "job_state": "PENDING", "submit_time": "late"}]}',
            NODES,
            "jobs.json: jobs[0].submit_time: must be a number, got 'late'",
        ),
        (
            f'{{"jobs": {"[" * 100_000}',
            NODES,
            "jobs.json: must be what squeue --json prints: must not be nested so deeply",
        ),
        (
            f'{{"jobs": [{{"job_id": 7, "job_state": "PENDING", "end_time": 1{"0" * 400}}}]}}',
            NODES,
            "jobs.json: jobs[0].end_time: must be <= 1e+15, got a huge number",
        ),
        (
            f'{{"jobs": [{{"job_id": 1{"0" * 5000}}}]}}',
            NODES,
            "jobs.json: must be what squeue --json prints: "
            "must not have a number with thousands of digits",
        ),
        (
            '{"jobs": [{"job_id": 7, "job_state": "RUNNING", "gres_detail": 5}]}',
            NODES,
            "jobs.json: jobs[0].gres_detail: must be a list, got 5",
        ),
        (
            '{"jobs": [{"job_id": 7, "job_state": "RUNNING", "nodes": "n[0-200000000]"}]}',
            NODES,
            "jobs.json: jobs[0].nodes: must name at most 100000, names more, got 'n[0-200000000]'",
        ),
        (
            '{"jobs": [{"job_id": 7, "job_state": "RUNNING", "nodes": "n1", '
            '"gres_detail": ["gpu:a100:1(IDX:0-100000000)"]}]}',
            NODES,
            "jobs.json: jobs[0].gres_detail: must name at most 100000, names more, got a list",
        ),
        (
            '{"jobs": []}',
            "NodeName=n1 Gres=gpu:a100:1",
            "nodes: node n1: State: must not be empty",
        ),
        *(
            (
                '{"jobs": []}',
                f"NodeName=n1 State=IDLE Gres=gpu:a100:{count}",
                "nodes: node n1: Gres: must be at most 1000 GPUs",
            )
            for count in ("300000000", "9" * 5000)
        ),
        (
            '{"jobs": []}',
            NODES.replace("a100", "h100"),
            "nodes: --gpu-memory: the memory of GPU type 'h100' is needed (h100=MIB)",
        ),
    ],
)
def test_faults_are_reported_in_one_line(tmp_path, jobs, nodes, message, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.json").write_text(jobs)
    (tmp_path / "nodes").write_text(nodes)
    words = ["import", "slurm", "--jobs", "jobs.json", "--nodes", "nodes"]
    assert main([*words, "--gpu-memory", "a100=40960"]) == 2
    assert capsys.readouterr().err == f"dovetail: {message}\n"


def test_missing_commands_are_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"squeue --json: cannot be read"):
        import_slurm({})


def test_lists_of_nodes():
    assert hostnames("n[1-3,07],login") == ("n1", "n2", "n3", "n07", "login")
    assert hostnames("r[1-2]n[8-10]")[:3] == ("r1n8", "r1n9", "r1n10")
    assert hostnames("") == ()


@pytest.mark.parametrize("text", ["n[0-100000]", "n[0-999][0-999]", "n[0-60000],m[0-60000]"])
def test_lists_of_too_many_nodes_are_not_expanded(text):
    with pytest.raises(InputError, match="must name at most 100000"):
        hostnames(text)
    assert hostnames("n[a-b],n[1-x]") == ("na-b", "n1-x")
