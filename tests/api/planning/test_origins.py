"""Where slowdowns are from is said wherever a plan is shown, next to what is proven."""

import json

import pytest

from dovetail.cli.main import main
from dovetail.instances.checking.checker import check
from dovetail.instances.instance import Instance
from dovetail.planning.comparison import compare
from dovetail.planning.plan import plan_view
from dovetail.planning.report import report_html
from dovetail.solver.explaining.explanations import explain
from dovetail.solver.rounds import solve
from tests.api.planning.test_tables import printed
from tests.data import small

MODEL = {"source": "model", "upper": [1.3, 1.4], "confidence": 0.9}
PROOF = "(the proof holds for these numbers)"


def two(**more) -> Instance:
    """Return two jobs on one GPU, whose slowdowns are from where the entry says."""
    jobs = [{"id": "x"}, {"id": "y", "workload": "b"}]
    entry = {"pair": ["a", "b"], "slowdown": [1.2, 1.25], **more}
    return small(jobs, [entry], gpus=1)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"source": "estimate"}, "estimate, no bound"),
        (MODEL, "model, 90 % bound"),
        ({"source": "measured", "upper": [1.3, 1.4], "confidence": 0.95}, "measured, 95 % bound"),
        ({"source": "measured"}, "measured"),
    ],
)
def test_a_source_is_in_table_page_json_and_explanation(more, words):
    instance = two(**more)
    plan = solve(instance).plan
    assert {(row.source, row.confidence) for row in plan.assignments} == {
        (more["source"], more.get("confidence"))
    }
    assert check(instance, plan).valid
    text = printed(plan_view(instance, plan))
    page = report_html(instance, plan, compare(instance, plan))
    assert f"({words})" in explain(instance, plan, "x").reason
    assert words in page
    # What is measured is what a plan is thought to rest on, and needs no column.
    doubtful = more["source"] != "measured"
    assert (f"{words}: 2 jobs {PROOF}" in " ".join(text.split())) == doubtful
    assert (PROOF in page) == doubtful
    assert (words in text.partition("GPU")[2]) == (words != "measured")


def test_nothing_is_said_of_slowdowns_as_given_and_of_jobs_alone():
    for instance in (two(), small([{"id": "x"}])):
        plan = solve(instance).plan
        assert "source" not in json.dumps(plan.to_data())
        assert "from" not in printed(plan_view(instance, plan))
        assert PROOF not in printed(plan_view(instance, plan))


def test_a_gang_has_the_weakest_of_its_sources():
    jobs = [{"id": "x", "workers": 2}, {"id": "y", "workload": "b"}, {"id": "z", "workload": "c"}]
    entries = [
        {"pair": ["a", "b"], "slowdown": [1.2, 1.25], "source": "measured"},
        {"pair": ["a", "c"], "slowdown": [1.2, 1.25], "source": "estimate"},
    ]
    plan = solve(small(jobs, entries)).plan
    found = {row.job: row.source for row in plan.assignments}
    assert found == {"x": "estimate", "y": "measured", "z": "estimate"}


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({"source": "measured"}, "claims that its slowdown is measured; it is model, 90 % bound"),
        (
            {"source": "model", "confidence": 0.99},
            "claims that its slowdown is model, 99 % bound; it is model, 90 % bound",
        ),
    ],
)
def test_a_false_source_is_a_false_claim(claim, message):
    instance = two(**MODEL)
    plan = solve(instance).plan
    row = plan.assignments[0].replace(confidence=None).replace(**claim)
    found = check(instance, plan.replace(assignments=(row, *plan.assignments[1:])))
    assert [str(each) for each in found.violations] == [f"job x: claim: {message}"]
    given = check(two(), plan).violations
    assert [each.message for each in given if "source" in each.message or "model" in each.message]


def test_a_plan_on_estimates_says_so(tmp_path, capsys):
    instance = two().to_data()
    instance["slowdowns"] = []
    for workload in instance["workloads"].values():
        workload["metrics"] = {"gpu_util": 0.2}
    (tmp_path / "i.json").write_text(json.dumps(instance))
    assert main(["plan", str(tmp_path / "i.json"), "--predictor", "analytic"]) == 0
    said = capsys.readouterr()
    assert "optimal: no plan does better, proven" in said.out
    assert f"estimate, no bound: 2 jobs {PROOF}" in " ".join(said.out.split())
    assert "sm_active by gpu_util" in said.err
