"""``dovetail next``: from an instance and its plan to the instance of the next round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.cli.main import main
from dovetail.instances.checking.checker import check
from dovetail.instances.errors import InputError
from dovetail.instances.files import read_instance, read_plan, write_instance
from dovetail.instances.instance import Instance
from dovetail.instances.library import load, names, path
from dovetail.instances.plan import Plan
from dovetail.solver.rounds import solve

MINE = """\
format: dovetail-instance/1
name: mine
cluster:
  shares: [30, 70]
  nodes: [{id: box, gpu_count: 2, gpu: {model: A100, memory_mib: 40960}}]
workloads: {w: {memory_mib: 9000}, s: {memory_mib: 1000}}
jobs:
  # Anna's
  - {id: anna-1, workload: w}   # until Friday
  - id: anna-2   # the long one
    workload: w
    workers: 2
    weight: 9
  # Ben's
  - {id: ben-1, workload: s, gsla: 1.3}
slowdowns:
  - {pair: [w, s], share: [70, 30], slowdown: [1.1, 1.2]}   # measured in May
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Run in an empty folder, with the file and the plan of a small round."""
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(MINE)
    assert main(["plan", "mine.yaml", "-o", "plan.yaml"]) == 0
    return tmp_path


def refused(capsys, *words):
    """Return the line with which the command refuses."""
    capsys.readouterr()
    assert main(["next", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    return line.removeprefix("dovetail: ")


def test_what_was_placed_runs_and_the_file_stays_as_it_was_written(here, capsys):
    assert main(["next", "mine.yaml", "plan.yaml", "-o", "next.yaml"]) == 0
    assert capsys.readouterr().out.endswith(
        "mine: jobs: 2 running, 1 waiting, 0 ended -> next.yaml\n"
    )
    after = Path("next.yaml").read_text()
    added = [line for line in after.splitlines() if line not in MINE.splitlines()]
    gang, ben = read_plan("plan.yaml").assignments
    shares = ", ".join("null" if share is None else str(share) for share in gang.shares)
    assert added == [
        "    state: running",
        f"    gpus: [{', '.join(gang.gpus)}]",
        f"    share: [{shares}]",
        "  - {id: ben-1, workload: s, gsla: 1.3, state: running, "
        f"gpus: [{ben.gpus[0]}], share: [30]}}",
    ]
    left = [line for line in MINE.splitlines() if "ben-1" not in line]
    assert [line for line in after.splitlines() if line in left] == left


def test_jobs_that_have_ended_are_gone(here, capsys):
    Path("gone").write_text("anna-2\n\n")
    words = ["next", "mine.yaml", "plan.yaml", "--ended", "ben-1", "--ended-in", "gone", "--json"]
    assert main([*words, "-o", "next.yaml"]) == 0
    told = json.loads(capsys.readouterr().out.partition("{")[2].join("{ "))
    assert told == {
        "name": "mine",
        "running": 0,
        "waiting": 1,
        "ended": 2,
        "written_to": "next.yaml",
    }
    assert "# Anna's\n  - {id: anna-1, workload: w}   # until Friday\n  # Ben's\nslow" in (
        Path("next.yaml").read_text()
    )
    assert main(["plan", "next.yaml"]) == 0


def test_jobs_that_came_after_the_plan_wait(here):
    late = "  - {id: late, workload: s}\nslowdowns:"
    Path("mine.yaml").write_text(MINE.replace("slowdowns:", late))
    assert main(["next", "mine.yaml", "plan.yaml", "-o", "next.yaml"]) == 0
    assert late in Path("next.yaml").read_text()
    assert [job.id for job in read_instance("next.yaml").jobs if not job.running] == (
        ["anna-1", "late"]
    )


def test_json_stays_json(here, capsys):
    write_instance(read_instance("mine.yaml"), "mine.json")
    capsys.readouterr()
    assert main(["next", "mine.json", "plan.yaml"]) == 0
    printed = capsys.readouterr().out
    assert Instance.from_data(json.loads(printed)) == (
        read_instance("mine.json").after(read_plan("plan.yaml"))
    )
    assert main(["next", "mine.yaml", "plan.yaml"]) == 0
    assert "# Anna's" in capsys.readouterr().out


def test_a_plan_that_does_not_belong_to_the_instance_is_refused(here, capsys):
    plan = read_plan("plan.yaml").to_data()
    Path("other.json").write_text(json.dumps({**plan, "instance": "yours"}))
    line = refused(capsys, "mine.yaml", "other.json")
    assert line == "other.json: instance: must be 'mine', the name of the instance, got 'yours'"
    Path("none.json").write_text(
        json.dumps({**plan, "assignments": [{"job": "x", "gpus": ["box-0"]}]})
    )
    assert refused(capsys, "mine.yaml", "none.json").startswith(
        "none.json: is not a valid plan of 'mine': "
    )
    Path("mine.yaml").write_text(MINE.replace("gsla: 1.3", "gsla: 1.15"))
    assert "gsla" in refused(capsys, "mine.yaml", "plan.yaml", "-o", "next.yaml")
    assert not Path("next.yaml").exists()


@pytest.mark.parametrize(
    ("ended", "rule"),
    [
        ("ben-2", "ended: must be jobs of 'mine', got 'ben-2', did you mean ben-1?"),
        ("anna-1", "ended: must be placed by the plan, got 'anna-1', which waits"),
    ],
)
def test_jobs_that_cannot_have_ended_are_refused(here, capsys, ended, rule):
    assert refused(capsys, "mine.yaml", "plan.yaml", "--ended", ended) == rule


def test_nothing_is_overwritten_unasked(here, capsys):
    Path("next.yaml").write_text("mine")
    line = refused(capsys, "mine.yaml", "plan.yaml", "-o", "next.yaml")
    assert line == "next.yaml: exists already: name a new file, or give --overwrite"
    assert Path("next.yaml").read_text() == "mine"
    assert "another file" in refused(
        capsys, "mine.yaml", "plan.yaml", "-o", "mine.yaml", "--overwrite"
    )
    assert main(["next", "mine.yaml", "plan.yaml", "-o", "next.yaml", "--overwrite"]) == 0
    assert read_instance("next.yaml").jobs_by_id["ben-1"].running


def test_a_plan_that_rests_on_predictions_needs_them_again(here, capsys):
    text = MINE.replace("slowdowns:\n", "").partition("  - {pair")[0]
    metrics = "metrics: {sm_active: 0.3, dram_active: 0.2}"
    text = text.replace("memory_mib: 1000", f"memory_mib: 1000, {metrics}")
    text = text.replace("memory_mib: 9000", f"memory_mib: 9000, {metrics}").replace(
        ", gsla: 1.3", ""
    )
    Path("mine.yaml").write_text(text)
    predicted = ["--predictor", "analytic"]
    assert main(["plan", "mine.yaml", *predicted, "-o", "plan.yaml"]) == 0
    assert any(row.co_runners[0] for row in read_plan("plan.yaml").assignments)
    assert "entry" in refused(capsys, "mine.yaml", "plan.yaml")
    assert main(["next", "mine.yaml", "plan.yaml", *predicted, "-o", "next.yaml"]) == 0
    assert read_instance("next.yaml").slowdowns == ()
    assert main(["plan", "next.yaml", *predicted]) == 0


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("preempt", [False, True])
def test_every_shipped_instance_goes_on(name, preempt, tmp_path, monkeypatch):
    """The next round has exactly the jobs of the plan on their GPUs, and is planned at once."""
    monkeypatch.chdir(tmp_path)
    plan = ["plan", "-o", "plan.json", *["--preempt"] * preempt]
    assert main([*plan, f"library:{name}"]) == 0
    assert main(["next", f"library:{name}", "plan.json", "-o", "next.yaml"]) == 0
    made, after = read_plan("plan.json"), read_instance("next.yaml")
    placed = {row.job: (row.gpus, row.shares) for row in made.assignments}
    assert {job.id: (job.gpus, job.shares) for job in after.jobs if job.running} == placed
    assert [job.id for job in after.jobs] == [job.id for job in load(name).jobs]
    comments = [line for line in path(name).read_text().splitlines() if line.startswith("#")]
    assert [line for line in Path("next.yaml").read_text().splitlines() if "#" in line][
        : len(comments)
    ] == comments
    again = solve(after)
    assert check(after, again.plan).valid
    assert {row.job for row in again.plan.assignments} >= placed.keys()


def test_the_lab_for_three_rounds(tmp_path, monkeypatch):
    """Every round some jobs end and one comes; the others stay where they were put."""
    monkeypatch.chdir(tmp_path)
    source = "library:lab"
    for number in range(3):
        limit = ("--time-limit", "inf")  # on a busy machine, too, the plan is the best one
        assert main(["plan", source, *limit, "-o", f"plan-{number}.yaml"]) == 0
        plan = read_plan(f"plan-{number}.yaml")
        assert plan.status == "optimal"
        ended = [row.job for row in plan.assignments if "new" not in row.job][number::5]
        words = [word for job in ended for word in ("--ended", job)]
        file = f"round-{number}.yaml"
        assert main(["next", source, f"plan-{number}.yaml", *words, "-o", file]) == 0
        after = read_instance(file)
        assert {job.id for job in after.jobs if job.running} == (
            {row.job for row in plan.assignments} - set(ended)
        )
        new = f"  - {{id: new-{number}, workload: mobilenetv3-imagenet}}\nslowdowns:"
        Path(file).write_text(Path(file).read_text().replace("slowdowns:", new))
        source = file
    assert {f"new-{k}" for k in range(3)} <= read_instance(source).jobs_by_id.keys()


def test_from_python():
    instance = load("running")
    plan = solve(instance).plan
    after = instance.after(plan, ["r"])
    assert [(job.id, job.gpus) for job in after.jobs if job.running] == [
        (row.job, row.gpus) for row in plan.assignments if row.job != "r"
    ]
    with pytest.raises(InputError, match="assignments: must be jobs of 'running', got 'x'"):
        instance.after(Plan.from_data({"assignments": [{"job": "x", "gpus": ["n0-0"]}]}))
    stopped = instance.after(Plan(preempt=True, assignments=()))
    assert [job.state for job in stopped.jobs] == ["pending"] * 3
