from __future__ import annotations

import re
from functools import cache

import pytest

from dovetail import __version__
from dovetail.instances import library
from dovetail.instances.checking.checker import check
from dovetail.instances.generate import generate
from dovetail.instances.objectives import OBJECTIVES
from dovetail.instances.plan import Plan
from dovetail.planning.comparison import compare
from dovetail.planning.report import comparison_chart, report_charts, report_html
from dovetail.solver.rounds import solve
from tests.api import samples
from tests.api.pages import Page, in_browser
from tests.data import small

SECTIONS = {"where", "slowdowns", "waiting", "comparison", "settings"}


@cache
def lab_page() -> Page:
    return Page(report_html(*samples.lab()))


def heads(page: Page, section: str) -> list[str]:
    return [head.strip() for head in page.row_heads.get(section, [])]


def test_every_job_is_once_in_the_section_where_it_belongs():
    instance, plan, _ = samples.lab()
    page = lab_page()
    placed = {assignment.job for assignment in plan.assignments}
    waiting = {job.id for job in instance.jobs} - placed
    assert sorted(heads(page, "slowdowns")) == sorted(placed)
    assert sorted(heads(page, "waiting")) == sorted(waiting)
    for job in placed:
        assert job in page.text["where"]


def test_jobs_nearest_to_their_limit_come_first():
    instance, plan, _ = samples.lab()
    bound = check(instance, plan).job_bound
    used = [
        bound[job] / gsla if (gsla := instance.jobs_by_id[job].gsla) else 0.0
        for job in heads(lab_page(), "slowdowns")
    ]
    assert used == sorted(used, reverse=True)


def test_every_gpu_reason_note_and_setting_is_there():
    instance, plan, comparison = samples.lab()
    page = lab_page()
    assert all(gpu in page.text["where"] for gpu in instance.places)
    assert all(waiting.reason in page.text["waiting"] for waiting in plan.waiting)
    assert all(row.name in page.text["comparison"] for row in comparison.rows)
    for text in (*plan.notes, "lab", "greedy", __version__, "throughput: sum of weight x rate"):
        assert text in page.text["settings"]


def test_the_page_loads_nothing_and_runs_its_own_script_only():
    html = report_html(*samples.lab())
    page = Page(html)
    names = [tag for tag, _ in page.tags]
    assert not {"img", "iframe", "object", "form", "base"}.intersection(names)
    assert [given for tag, given in page.tags if tag == "script"] == [{}]
    for _, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("href", "src", "xlink:href"):
                assert value == "data:," or value.startswith("#")
    assert not re.search(r"url\((?!#)|@import|//", html)


def test_the_page_can_be_read_without_seeing_it():
    page = lab_page()
    tags = [tag for tag, _ in page.tags]
    assert page.tags[0] == ("html", {"lang": "en"})
    assert page.text["title"].strip() == "Dovetail plan: lab"
    assert tags.count("h1") == 1
    assert {given["id"] for tag, given in page.tags if tag == "section" and "id" in given} == (
        SECTIONS
    )
    assert tags.count("caption") == tags.count("table")
    assert all("scope" in given for tag, given in page.tags if tag == "th")
    for tag, given in page.tags:
        if tag == "svg":
            assert given.get("aria-hidden") == "true" or given["aria-label"]


@pytest.mark.parametrize(
    ("plan", "headline"),
    [
        ({}, "1 of 2 jobs run on 1 of 2 GPUs; optimal: no plan does better, proven"),
        (
            {"status": "feasible", "objective": {"value": 1.0, "bound": 1.5, "gap": 1 / 3}},
            "1 of 2 jobs run on 1 of 2 GPUs; feasible, bound 1.5, gap 33.33 %",
        ),
        (
            {"status": "feasible", "objective": {"value": 1.0}},
            "1 of 2 jobs run on 1 of 2 GPUs; feasible, no bound proven",
        ),
        (
            {"status": None, "objective": None},
            "1 of 2 jobs run on 1 of 2 GPUs; checked and valid; no proof of how good it is",
        ),
    ],
)
def test_the_headline_claims_what_is_proven(plan, headline):
    instance = small([{"id": "x"}, {"id": "y", "workers": 3}])
    made = solve(instance).plan
    if plan.get("objective"):
        plan = {**plan, "objective": {"name": "throughput", **plan["objective"]}}
    shown = made.replace(**plan)
    page = Page(report_html(instance, shown, compare(instance, shown)))
    assert page.text["h1"].strip().replace("\N{NO-BREAK SPACE}", " ") == headline


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_has_a_page(objective):
    instance = samples.lab()[0]
    plan = solve(instance, objective, "greedy").plan
    page = Page(report_html(instance, plan, compare(instance, plan)))
    assert objective in page.text["settings"]


def test_a_rule_that_costs_more_than_it_saves_is_drawn_below_zero():
    instance = generate(30, seed=2, running=0.5)
    comparison = compare(instance, solve(instance, "completion").plan)
    assert comparison.rows[-1].value < 0
    assert comparison_chart(comparison).data["completion"].min() == comparison.rows[-1].value


@pytest.mark.parametrize("name", library.names())
def test_every_shipped_instance_has_a_page(name):
    instance = library.load(name)
    plan = solve(instance, solver="greedy").plan
    page = Page(report_html(instance, plan, compare(instance, plan)))
    assert len(heads(page, "slowdowns")) == len(plan.assignments)
    assert len(heads(page, "waiting")) == len(plan.waiting)


def test_hostile_names_stay_text():
    instance, plan = samples.named(samples.HOSTILE)
    html = report_html(instance, plan, compare(instance, plan))
    page = Page(html)
    assert [given for tag, given in page.tags if tag == "script"] == [{}]
    assert not any(name.startswith("on") for _, given in page.tags for name in given)
    assert heads(page, "slowdowns") == [f"{samples.HOSTILE} 1", f"{samples.HOSTILE} 2"]
    assert heads(page, "waiting") == [f"{samples.HOSTILE} 3"]
    assert samples.HOSTILE in page.text["title"]


def test_gangs_shares_and_states_are_described_in_words():
    instance, plan = samples.named("j")
    where = Page(report_html(instance, plan, compare(instance, plan))).text["where"]
    words = " ".join(where.split())
    assert "j 1 1/2 stays no cap, slowdown 1.25" in words
    assert "j 2 starts no cap, slowdown 1.25" in words
    assert "2 jobs, unpartitioned" in words


def test_gangs_never_have_the_red_of_broken_limits():
    instance = generate(jobs=120, seed=3, gpus=300, shares=())
    plan = solve(instance).plan
    page = report_html(instance, plan, compare(instance, plan))
    hues = {int(hue) for hue in re.findall(r"--hue:(\d+)", page)}
    assert len(hues) > 3
    assert all(40 <= hue <= 320 for hue in hues)


def test_an_upper_bound_that_equals_the_slowdown_hides_no_mark():
    instance = library.load("first-pairs")
    plan = solve(instance).plan
    charts = report_charts(instance, plan, compare(instance, plan))
    marks = next(chart.data for chart in charts if chart.name == "slowdowns")
    assert marks["slowdown"].notna().all()
    assert marks["at_most"].isna().all()


def test_idle_nodes_and_empty_plans():
    instance = small()
    plan = Plan(assignments=())
    page = Page(report_html(instance, plan, compare(instance, plan)))
    assert "all 2 GPUs idle" in page.text["where"]
    assert "No job runs." in page.text["slowdowns"]
    assert "No job waits." in page.text["waiting"]


def test_far_limits_do_not_stretch_the_chart():
    instance = small(
        [{"id": "x", "gsla": 900.0}, {"id": "y"}],
        [{"pair": ["a", "a"], "slowdown": [0.8, 0.8]}],
        gpus=1,
    )
    plan = solve(instance).plan
    near = report_charts(instance, plan, compare(instance, plan))[0]
    assert near.data["gSLA"].isna().all()
    assert near.data["slowdown"].tolist() == [0.8, 0.8]
    assert "900.00" in report_html(instance, plan, compare(instance, plan))


def test_a_large_plan_stays_small_and_whole():
    instance, plan = samples.large()
    html = report_html(instance, plan, samples.lab()[2])
    page = Page(html)
    assert len(html) < 3_000_000
    assert len(heads(page, "slowdowns")) == len(plan.assignments)
    assert len(heads(page, "waiting")) == 1000 - len(plan.assignments)


def test_a_browser_shows_the_headline_and_complains_of_nothing(tmp_path):
    made, log = in_browser(report_html(*samples.lab()), tmp_path, 1280)
    assert "16 of 40 jobs run on 12 of 12 GPUs" in made
    assert "CONSOLE" not in log


@pytest.mark.parametrize("width", [1280, 500])
def test_nothing_sticks_out_of_the_page(tmp_path, width):
    # Names without a place to break are the hardest to fit.
    instance, plan = samples.named("n" * 190)
    measure = "<script>document.title = document.documentElement.scrollWidth - innerWidth</script>"
    html = report_html(instance, plan, compare(instance, plan))
    made, _ = in_browser(html.replace("</body>", measure + "</body>"), tmp_path, width)
    assert int(re.search(r"<title>(-?\d+)</title>", made)[1]) <= 0
