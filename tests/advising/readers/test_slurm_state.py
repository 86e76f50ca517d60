"""The state of a Slurm by ``squeue`` and ``scontrol``: files of real shapes, and a real Slurm."""

from __future__ import annotations

import json
import random
import re
from contextlib import suppress

import numpy as np
import pytest

from dovetail.advising.reader import read_usage
from dovetail.advising.usage import joined
from dovetail.instances.errors import InputError
from tests.cluster.slurm_bench import running_slurm as running_slurm
from tests.cluster.slurm_bench import slurm as slurm
from tests.executor.waiting import wait_until

from .slurm_files import JOBS, NODES, QUEUE, STARTED_S, SUBMITTED_S, squeue_document


def written(folder, text, name="slurm.txt"):
    path = folder / name
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return str(path)


def rows(usage, *columns):
    return list(usage.jobs[[*columns]].itertuples(index=False, name=None))


def error_of(folder, text, form=None):
    with pytest.raises(InputError) as error:
        read_usage(written(folder, text), form)
    return str(error.value).replace(f"{folder}/", "")


def one_line_each(text, first):
    """Return a text as ``scontrol -o`` prints it."""
    parts = re.split(rf"^(?={first}=)", text, flags=re.MULTILINE)
    return "".join(" ".join(part.split("\n   ")).strip() + " \n" for part in parts if part)


# Nodes.


@pytest.mark.parametrize("text", [NODES, one_line_each(NODES, "NodeName")])
def test_nodes(tmp_path, text):
    usage = read_usage(written(tmp_path, text))
    nodes = usage.nodes[["node", "gpu_model", "gpus", "closed"]]
    assert list(nodes.itertuples(index=False, name=None)) == [
        ("n1", "a100", 2, False),
        ("n2", None, 2, True),
        ("n2", "v100", 1, True),
        ("n3", "a100", 4, True),
        ("n5", "a100", 1, False),
    ]
    assert usage.nodes["card_mib"].isna().all()
    assert usage.jobs.empty
    assert [str(each) for each in usage.left_out] == [
        "nodes (1): have no GPU",
        "instances of MIG (7): Slurm does not list the GPUs that they are of",
    ]


def test_other_files_are_no_output_of_scontrol(tmp_path):
    assert error_of(tmp_path, JOBS, "scontrol-nodes") == (
        "slurm.txt: must be what scontrol show node prints"
    )
    assert error_of(tmp_path, NODES, "scontrol-jobs") == (
        "slurm.txt: must be what scontrol show job -d prints"
    )


def test_broken_nodes(tmp_path):
    assert error_of(tmp_path, NODES + NODES) == (
        "slurm.txt: must have each node once, got 'n1' twice"
    )
    assert error_of(tmp_path, NODES.replace("a100:2(", "a100:2000(")) == (
        "slurm.txt: node n1: Gres: must be at most 1000 GPUs"
    )


# Jobs.


@pytest.mark.parametrize(
    "text",
    [
        squeue_document(newer=False),
        squeue_document(newer=True),
        JOBS,
        one_line_each(JOBS, "JobId"),
    ],
    ids=["squeue of 22.05", "squeue of 23.x", "scontrol", "scontrol -o"],
)
def test_jobs(tmp_path, text):
    usage = read_usage(written(tmp_path, text))
    assert rows(usage, "job", "user", "name", "gpu_model", "state", "reason", "gpus") == [
        ("1", "ann", "two words", "a100", "running", None, 6),
        ("3_2", "bob", "arr|x", "v100", "waiting", "JobArrayTaskLimit", 8),
        ("3_3", "bob", "arr|x", "v100", "waiting", "JobArrayTaskLimit", 8),
        ("3_4", "bob", "arr|x", "v100", "waiting", "JobArrayTaskLimit", 8),
        ("6+1", "bob", "het", None, "waiting", "Resources", 8),
    ]
    assert usage.jobs["placement"].tolist() == [
        "n1/0,n1/1,n2/0,n2/1,n3/1,n3/3",
        *[None] * 4,
    ]
    assert usage.jobs["node"].tolist() == ["n1,n2,n3", *[None] * 4]
    np.testing.assert_array_equal(usage.jobs["workers_per_node"], [2, 4, 4, 4, 8])
    assert usage.jobs["submit_s"].tolist() == [SUBMITTED_S] * 5
    np.testing.assert_array_equal(usage.jobs["start_s"], [STARTED_S, *[np.nan] * 4])
    assert usage.jobs["end_s"].isna().all()
    assert [str(each) for each in usage.left_out] == ["jobs (1): used no GPU"]


def test_a_queue_as_text(tmp_path):
    usage = read_usage(written(tmp_path, QUEUE))
    assert rows(usage, "job", "name", "gpu_model", "state", "gpus", "workers_per_node")[:3] == [
        (f"3_{task}", "arr|x", "v100", "waiting", 8, 4) for task in (2, 3, 4)
    ]
    assert rows(usage, "job", "node", "state", "gpus")[3:] == [
        ("7+1", None, "waiting", 1),
        ("1", "n1,n2,n3", "running", 6),
    ]
    assert usage.jobs["start_s"].tolist()[-1] == STARTED_S
    assert usage.notes == (
        "Jobs that ask for GPUs in another way than the columns of this file show are missing: "
        "squeue --json shows all.",
    )


def test_gpus_in_the_resources_of_a_queue_as_text(tmp_path):
    text = (
        "JOBID               |USER|TRES_ALLOC|ST|NODELIST(REASON)|\n"
        "1                   |ann|cpu=1,node=2,gres/gpu:a100=4,gres/gpu=4|R|n[1-2]|\n"
        "2                   |bob|cpu=1,node=1|R|n1|\n"
        "3                   |bob|cpu=1,node=1,gres/gpu=1|PD|(Resources)|\n"
    )
    usage = read_usage(written(tmp_path, text))
    assert rows(usage, "job", "gpu_model", "gpus", "node", "reason") == [
        ("1", "a100", 4, "n1,n2", None),
        ("3", None, 1, None, "Resources"),
    ]
    np.testing.assert_array_equal(usage.jobs["workers_per_node"], [2, np.nan])
    assert usage.notes == ()


def test_jobs_that_have_ended(tmp_path):
    document = squeue_document(newer=False)
    (job, *_) = document["jobs"]
    job |= {"job_state": "COMPLETED", "end_time": STARTED_S + 60}
    usage = read_usage(written(tmp_path, document))
    assert rows(usage, "state", "end_s", "placement")[0] == ("ended", STARTED_S + 60, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "             JOBID PARTITION     NAME     USER ST       TIME  NODES\n",
            "line 1: must have columns with delimiters; print it by squeue --json",
        ),
        (
            "JOBID|USER|STATE\n",
            "line 1: must have the column TRES_ALLOC or TRES_PER_JOB or TRES_PER_NODE or "
            "TRES_PER_TASK; print it by squeue --json",
        ),
        (
            "JOBID|TRES_PER_NODE\n",
            "line 1: must have the column STATE; print it by squeue --json",
        ),
        (
            "JOBID|STATE|TRES_PER_NODE|NODELIST\n1|R|gres:gpu:1|n[1-999999]\n",
            "line 2: NODELIST: must name at most 100000, names more",
        ),
        (
            "JOBID|STATE|TRES_PER_NODE|NODES\n1|R|gres:gpu:1|two\n",
            "line 2: NODES: must be a number >= 0, got 'two'",
        ),
        (
            "JOBID|STATE|TRES_PER_NODE\n1|R|gres:gpu:1\n1|R|gres:gpu:1\n",
            "must have each job once, got 1 twice",
        ),
        (
            '{"jobs": [{"job_id": 1, "job_state": 5}]}',
            "jobs[0].job_state: must be a state or a list of states, got 5",
        ),
        ('{"jobs": 1, "job_state": 2}', "jobs: must be a list of jobs"),
        (
            JOBS.replace("SubmitTime=2026-08-11T10:00:00", "SubmitTime=noon", 1),
            "job 1: SubmitTime: must be a time like 2026-08-11T14:36:24, got 'noon'",
        ),
        (
            JOBS.replace("NumNodes=3", "NumNodes=some", 1),
            "job 1: NumNodes: must be a whole number, got 'some'",
        ),
        (
            JOBS.replace("NodeList=n[1-3]", "NodeList=n[1-300000]", 1),
            "job 1: must name at most 100000, names more",
        ),
    ],
)
def test_broken_jobs(tmp_path, text, message):
    assert error_of(tmp_path, text) == f"slurm.txt: {message}"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("squeue", json.dumps(squeue_document(newer=True), indent=1)),
        ("squeue", QUEUE),
        ("scontrol-jobs", JOBS),
        ("scontrol-nodes", NODES),
    ],
)
def test_damaged_files_are_refused_or_read(tmp_path, form, text):
    draws = random.Random(11)
    path = tmp_path / "damaged"
    for _ in range(150):
        content = bytearray(text.encode())
        for _damage in range(draws.randrange(1, 4)):
            first = draws.randrange(len(content))
            last = first + draws.choice((1, 1, 5, 100))
            filler = (b"", b"|", b"\n", b"\xff", b"9" * 20, b"-", b"[1-9]", b'"', b"e9")
            content[first:last] = draws.choice(filler)
        if draws.random() < 0.3:
            del content[draws.randrange(len(content)) :]
        path.write_bytes(bytes(content))
        with suppress(InputError):
            read_usage(str(path), form)


# A real Slurm.


@pytest.mark.slow
def test_a_real_slurm_in_all_forms(slurm, tmp_path):
    def submit(*options):
        slurm.ask("sbatch", "--output=/dev/null", *options, "--wrap", "sleep 600")

    submit("-J", "two words", "--nodes=2", "--gres=gpu:a100:2")
    submit("-J", "arr|x", "--gres=gpu:1", "--array=1-4%1")
    submit("-J", "cpu")
    submit("-J", "held", "--hold", "--gpus=3")
    states = ["PENDING"] * 2 + ["RUNNING"] * 3
    wait_until(lambda: sorted(slurm.ask("squeue", "-h", "-o", "%T").split()) == states, "jobs run")
    commands = (
        ("squeue", "--json"),
        ("scontrol", "show", "job", "-d"),
        ("scontrol", "-o", "show", "job", "-d"),
    )
    for command in commands:
        usage = read_usage(written(tmp_path, slurm.ask(*command)))
        found = {row[0]: row[1:] for row in rows(usage, "job", "name", "state", "gpus", "node")}
        assert found == {
            "1": ("two words", "running", 4, "n1,n2"),
            "2_1": ("arr|x", "running", 1, "n3"),
            **{f"2_{task}": ("arr|x", "waiting", 1, None) for task in (2, 3, 4)},
            "4": ("held", "waiting", 3, None),
        }
        placed = dict(rows(usage, "job", "placement"))
        assert placed["1"] == "n1/0,n1/1,n2/0,n2/1"
        assert placed["2_1"] in ("n3/0", "n3/1")
        assert dict(rows(usage, "job", "reason"))["4"] == "JobHeldUser"
    columns = "%i|%u|%j|%T|%b|%D|%S|%V|%N|%r"
    as_text = read_usage(written(tmp_path, slurm.ask("squeue", "-o", columns)))
    assert {*as_text.jobs["job"]} == {"1", "2_1", "2_2", "2_3", "2_4"}
    slurm.ask("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=a test")
    listed = [slurm.ask("scontrol", *form, "show", "node") for form in ((), ("-o",))]
    slurm.ask("scontrol", "update", "NodeName=n3", "State=RESUME")
    for text in listed:
        nodes = read_usage(written(tmp_path, text, "nodes.txt"))
        assert nodes.nodes[["node", "gpu_model", "gpus", "closed"]].to_numpy().tolist() == [
            ["n1", "a100", 2.0, False],
            ["n2", "a100", 2.0, False],
            ["n3", "a100", 2.0, True],
        ]
    assert len(joined([as_text, nodes]).nodes) == 3
