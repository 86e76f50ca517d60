"""The page on predictors is self-contained, accessible, and rendered by a browser."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dovetail.papers.studies.comparison import study
from dovetail.papers.studies.report import report_charts, report_html
from tests.api.pages import Page, in_browser
from tests.api.samples import HOSTILE
from tests.predictors.measured import measured

SECTIONS = {
    *("models", "scatter", "workloads", "features", "study", "coverage", "decisions"),
    *("matching", "worst", "settings"),
}


@pytest.fixture(scope="module")
def made():
    data = measured(families=3)
    studied = study(data, ["constant", "hierarchical"], ("random", "family"), rounds=1)
    return data, studied


@pytest.fixture(scope="module")
def html(made):
    return report_html(*made)


def test_every_section_workload_and_model_is_there(made, html):
    page = Page(html)
    assert {g["id"] for tag, g in page.tags if tag == "section" and "id" in g} == SECTIONS
    for name in made[0].families:
        assert name in page.text["workloads"]
    assert "constant" in page.text["models"]
    assert "hierarchical predicts" in page.text["h1"]


def test_the_tiles_are_of_the_weakest_setting(made):
    data, studied = made
    comparison = studied.comparison
    weak = tuple(
        each.replace(
            accuracy=each.accuracy.replace(mae=9.0), coverage=each.coverage.replace(job=0.51)
        )
        if each.setting == "random"
        else each
        for each in comparison.evaluations
    )
    page = report_html(data, replace(studied, comparison=comparison.replace(evaluations=weak)))
    head = Page(page).text
    assert "hierarchical predicts new pairs of workloads" in head["h1"]
    assert "to within 9.000 on average" in head["h1"]
    assert "51.0 % of the jobs; promised 90 %; new pair" in " ".join(
        re.sub("<[^>]+>", "", page).split()
    )


def test_the_page_loads_nothing_and_runs_its_own_script_only(html):
    page = Page(html)
    names = [tag for tag, _ in page.tags]
    assert not {"img", "iframe", "object", "form", "base"}.intersection(names)
    assert [given for tag, given in page.tags if tag == "script"] == [{}]
    for _, given in page.tags:
        for name, value in given.items():
            assert not name.startswith("on")
            if name in ("href", "src", "xlink:href"):
                assert value == "data:," or value.startswith("#")
    assert not re.search(r"url\((?!#)|@import|//", html)


def test_the_page_can_be_read_without_seeing_it(html):
    page = Page(html)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("h1") == 1
    assert tags.count("caption") == tags.count("table")
    assert all("scope" in given for tag, given in page.tags if tag == "th")
    for tag, given in page.tags:
        if tag == "svg":
            assert given.get("aria-hidden") == "true" or given["aria-label"]


def test_every_tested_row_is_a_point(made):
    charts = {chart.name: chart for chart in report_charts(made[1])}
    # 42 directed rows at random; 21 pairs of which 12 are between two of three families.
    assert len(charts["scatter-random"].data) == 42
    assert len(charts["scatter-family"].data) == 42 + 24
    assert set(charts) >= {"errors", "coverage", "decisions", "matching"}


def test_hostile_names_stay_text(made):
    data, studied = made
    named = replace(studied, comparison=studied.comparison.replace(data=HOSTILE))
    html = report_html(data, named)
    assert [given for tag, given in Page(html).tags if tag == "script"] == [{}]
    assert HOSTILE in Page(html).text["title"]


def test_nothing_that_could_be_tested_still_makes_a_page():
    data = measured(families=1)
    studied = study(data, ["constant"], ("family",))
    page = Page(report_html(data, studied))
    assert "No model could be tested on synthetic" in page.text["h1"]
    assert "needs at least two families" in page.text["models"]


@pytest.mark.parametrize("width", [1280, 500])
def test_a_browser_complains_of_nothing_and_nothing_sticks_out(html, tmp_path, width):
    measure = "<script>document.title = document.documentElement.scrollWidth - innerWidth</script>"
    made, log = in_browser(html.replace("</body>", measure + "</body>"), tmp_path, width)
    assert "CONSOLE" not in log
    assert int(re.search(r"<title>(-?\d+)</title>", made)[1]) <= 0
