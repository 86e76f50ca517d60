"""The page that compares schedulers: its figures are the runs', and a browser shows it."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from statistics import fmean, stdev

import numpy as np
import pytest
from rich.console import Console

from dovetail.executor.simulation.metrics import METRICS
from dovetail.executor.simulation.results import RunResult
from dovetail.instances.errors import UnsupportedError
from dovetail.simulating.compare import comparison_view
from dovetail.simulating.drawings import (
    Bar,
    _window,
    bars,
    binned,
    lanes,
    loads,
    metric_bars,
    promises,
)
from dovetail.simulating.groups import RunsByPolicy, leads
from dovetail.simulating.report import SIMULATED, simulation_page
from dovetail.simulating.tables import (
    TABLES,
    best_line,
    best_table,
    longest_waits,
    metric_tables,
    round_table,
)
from dovetail.simulating.units import digits, duration, fixed, three_digits
from dovetail.solver.policies import Decision, RoundProof, State, policy_named
from dovetail.solver.policies.draft import Draft
from tests.api.pages import Page, in_browser
from tests.api.samples import HOSTILE
from tests.executor.simulation.worlds import run, trace, world

SECTIONS = {
    "bars",
    "best",
    *("facts", "table", "jct", "load", "lanes", "promises", "waits", "rounds", "definitions"),
}


class Pairing:
    """Starts everyone at once, two on a GPU where it must; else it claims a gap of a quarter.

    What it claims to have proven is checked, and it does not look at gSLAs.
    """

    def decide(self, state: State) -> Decision:
        draft = Draft(state)
        for job in draft.queue.jobs:
            rooms = [g for g in range(len(state.machines)) if draft.has_room(g, job)]
            rooms.sort(key=lambda gpu: len(draft.residents(gpu)))
            if len(rooms) >= job.workers:
                draft.start(job, rooms[: job.workers])
        shared = any(len(draft.residents(gpu)) > 1 for gpu in range(len(state.machines)))
        return draft.decision(proof=None if shared else RoundProof(3.0, 4.0, 0.25, 1))


def result(policy: str, seed: int, jobs: list[tuple[object, ...]], where, by) -> RunResult:
    given = trace(*jobs)
    return RunResult.of(policy, seed, run(given, where, by), given)


TWO = [(0, 1, 100, "a", 1.2), (0, 1, 100, "a", 2.0)]
"""Two jobs at once for one GPU: 100 s each alone; together at 1.5 times the time."""


def tiny_world():
    return world(gpus=1, slowdowns=[("a", "a", 1.5, 1.5)])


@pytest.fixture(scope="module")
def tiny():
    # FIFO: ends at 100 and 200, JCT 150 on average. Pairing: both end at 150, JCT 150.
    where = tiny_world()
    return [
        result("fifo", 0, TWO, where, policy_named("fifo")),
        result("dovetail", 0, TWO, where, Pairing()),
    ]


@pytest.fixture(scope="module")
def several():
    """Three policies, two seeds, forty jobs on two nodes of four GPUs."""
    where = world(2, 4, [("a", "a", 1.1, 1.1), ("a", "b", 1.3, 1.6), ("b", "b", 1.9, 1.9)])
    made = []
    for seed in (1, 2):
        draw = np.random.default_rng(seed)
        jobs = [
            (
                float(draw.uniform(0, 4000)),
                int(draw.choice([1, 1, 2, 4])),
                float(draw.lognormal(6, 1)),
                str(draw.choice(["a", "b"])),
                float(draw.choice([1.05, 1.4, 2.0])),
            )
            for _ in range(40)
        ]
        jobs.sort()
        policies = {"sjf": policy_named("sjf"), "fifo": policy_named("fifo"), "dovetail": Pairing()}
        made += [result(name, seed, jobs, where, by) for name, by in policies.items()]
    return made, where.cluster


@pytest.fixture(scope="module")
def html(several):
    runs, cluster = several
    return simulation_page(runs, "forty jobs", {"world": "slowdowns by hand"}, cluster)


class Cells(Page):
    """Reads the cells of all rows, too."""

    def __init__(self, html: str) -> None:
        self.rows: list[list[str]] = []
        super().__init__(html)

    def handle_starttag(self, tag, attrs):
        super().handle_starttag(tag, attrs)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_data(self, data):
        super().handle_data(data)
        if ("td" in self.open or "th" in self.open) and self.open[-1] != "small":
            self.rows[-1][-1] += data


def test_every_section_policy_and_fact_is_there(html):
    pytest.importorskip("matplotlib")
    page = Page(html)
    assert {g["id"] for tag, g in page.tags if tag == "section"} == SECTIONS
    assert "slowdowns by hand" in page.text["facts"]
    assert "forty jobs" in page.text["title"]
    for name in ("fifo", "sjf", "dovetail"):
        assert all(
            name in page.text[section] for section in SECTIONS - {"definitions", "bars", "best"}
        )
    assert SIMULATED.split(":")[0] in html


def test_the_page_loads_nothing_and_runs_its_own_script_only(html):
    page = Page(html)
    names = [tag for tag, _ in page.tags]
    assert not {"img", "iframe", "object", "form", "base", "link"}.intersection(names) - {"link"}
    scripts = [given for tag, given in page.tags if tag == "script"]
    assert scripts == [{}]
    for _, given in page.tags:
        for name, value in given.items():
            assert not name.startswith("on")
            if name in ("href", "src", "xlink:href"):
                assert value == "data:," or value.startswith("#")
    assert not re.search(r"url\((?!#)|@import|//|fetch\(|XMLHttp|import\(", html)


def test_the_page_can_be_read_without_seeing_it(html):
    page = Page(html)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("h1") == 1
    assert tags.count("caption") == tags.count("table")
    assert all("scope" in given for tag, given in page.tags if tag == "th")
    for tag, given in page.tags:
        if tag == "svg":
            assert given.get("aria-hidden") == "true" or given["aria-label"]


def test_figures_are_means_and_spreads_of_the_runs(several, html):
    runs, _ = several
    mine = [r.summary["jct_mean_s"] for r in runs if r.policy == "dovetail"]
    base = [r.summary["jct_mean_s"] for r in runs if r.policy == "fifo"]
    table = metric_tables(RunsByPolicy.of(runs))[0].table
    assert table.heads[1][:2] == ("mean JCT", "min, lower")
    cell = {name: cells[0] for name, *cells in table.rows}["dovetail"]
    assert float(cell.text) == pytest.approx(fmean(mine) / 60, abs=0.051)
    assert float(cell.small[0].strip("± ")) == pytest.approx(stdev(mine) / 60, abs=0.051)
    assert float(cell.small[1].strip(" ×")) == pytest.approx(fmean(base) / fmean(mine), rel=5e-3)
    rows = {row[0]: row[1:] for row in reversed(Cells(html).rows) if len(row) == 10}
    assert rows["dovetail"][0] == cell.text + " best" * cell.mark


def test_every_figure_of_the_main_tables_is_the_mean_of_the_runs(several):
    runs, _ = several
    groups = RunsByPolicy.of(runs)
    units = {"s": 1, "min": 60, "h": 3600, "d": 86400, "%": 0.01, "ms": 1e-3}
    seen = 0
    metrics_of = {title: metrics for title, _, metrics in TABLES}
    for title, table, _, _ in metric_tables(groups):
        metrics = metrics_of.get(title, ())
        shown = [m for m in metrics if any(g.mean(m) for g in groups.every)]
        shown = [m for m in shown if any(math.isfinite(g.mean(m)) for g in groups.every)]
        for group, (_, *cells) in zip(groups.every, table.rows, strict=True):
            assert not metrics or len(shown) == len(cells)
            for metric, head, cell in zip(shown, table.heads[1:], cells, strict=False):
                scaled = METRICS[metric].unit in ("s", "part")
                size = units[head.small.partition(",")[0]] if scaled else 1
                if cell.text != "-":
                    last = 10.0 ** -len(cell.text.partition(".")[2])
                    shown_value = float(cell.text.replace(",", ""))
                    assert shown_value == pytest.approx(group.mean(metric) / size, abs=last)
                    seen += 1
    assert seen > 50


def test_two_jobs_by_hand(tiny):
    groups = RunsByPolicy.of(tiny)
    assert groups.baseline.policy == "fifo"
    time, sharing, machines, _ = metric_tables(groups)
    heads = [head.text for head in time.table.heads]
    fifo, ours = (dict(zip(heads, row, strict=True)) for row in time.table.rows)
    # Makespan 200 s against 150 s; p99 of (100, 200) is 199.
    assert (fifo["makespan"].text, ours["makespan"].text) == ("3.33", "2.50")
    assert (ours["makespan"].small, ours["makespan"].mark) == (("1.33 ×",), True)
    assert (fifo["p99 JCT"].text, ours["p99 JCT"].text) == ("3.32", "2.50")
    assert not fifo["mean JCT"].mark
    assert not ours["mean JCT"].mark
    # The one with a gSLA of 1.2 is slowed by 1.5: one of two, by 25 %.
    rate = [head.text for head in sharing.table.heads].index("gSLA violation rate")
    assert [row[rate].text for row in sharing.table.rows] == ["0", "50"]
    assert best_line(groups) == "mean JCT: all policies the same, 2.50 min"
    best = {row[0]: row[1:] for row in best_table(groups).rows}
    assert best["gSLA violation rate"] == (
        ("fifo", ("0 %",), False),
        ("dovetail", ("50.0 %",), False),
    )
    assert "mean JCT" not in best
    assert machines.absent == ("energy",)


def test_no_policy_is_best_where_some_have_no_figure(tiny):
    groups = RunsByPolicy.of(tiny)
    assert groups.best("excess_p50") == ()
    assert [group.policy for group in groups.best("makespan_s")] == ["dovetail"]
    assert groups.best("jobs") == ()


def test_seeds_are_compared_one_by_one(tiny):
    def of(policy, *makespans):
        return [
            replace(tiny[0], policy=policy, seed=seed, summary={**tiny[0].summary, "makespan_s": m})
            for seed, m in enumerate(makespans)
        ]

    groups = RunsByPolicy.of([*of("a", 3.0, 5.0, 7.0), *of("b", 4.0, 4.0, 9.0)])
    assert leads(groups.every[0], groups.every[1], "makespan_s") == (2, 3)
    assert groups.baseline.policy == "a"
    frame = groups.to_frame()
    assert [*zip(frame.policy, frame.seed, frame.makespan_s, strict=True)][:2] == [
        ("a", 0, 3.0),
        ("a", 1, 5.0),
    ]


def promised(policy, jct_mean_s, violation_rate=math.nan):
    """Return a run of which only these two figures are known."""
    known = {"jct_mean_s": jct_mean_s, "violation_rate": violation_rate}
    return RunResult(policy, 0, dict.fromkeys(METRICS, math.nan) | known, {}, {}, {})


@pytest.mark.parametrize(
    ("rates", "more"),
    [
        # 60 against 120 s and 90 s.
        ((0.0, 0.01, 0.31), "ssf 1.50 min; 1.00 % of gSLAs broken"),
        ((0.0, 0.02, 0.31), "fifo 2.00 min; 0 % of gSLAs broken"),
        ((0.1, 0.02, 0.31), "no policy breaks at most 1 % of its gSLAs"),
        ((0.0, 0.5, 0.01), ""),
        ((math.nan,) * 3, ""),
    ],
)
def test_the_best_policy_that_keeps_its_gslas_is_named_beside_one_that_does_not(rates, more):
    policies = zip(("fifo", "ssf", "castor"), (120.0, 90.0, 60.0), rates, strict=True)
    line = best_line(RunsByPolicy.of([promised(*each) for each in policies]))
    assert line.startswith("best mean JCT: castor 60.0 s")
    assert line.endswith(more)
    assert ("at most 1 %" in line) == bool(more)


def test_all_policies_with_the_best_mean_are_named():
    policies = (promised("fifo", 60.0, 0.5), promised("ssf", 60.0, 0.0), promised("mine", 90.0))
    assert best_line(RunsByPolicy.of(policies)) == (
        "best mean JCT: ssf 60.0 s; 0 % of gSLAs broken; the same: fifo"
    )


def test_the_best_policies_are_listed_with_the_next():
    policies = (promised("fifo", 120.0), promised("ssf", 90.0), promised("mine", 100.0))
    (row,) = best_table(RunsByPolicy.of(policies)).rows
    assert row == ("mean JCT", ("ssf", ("1.50 min",), False), ("mine", ("1.67 min",), False))


def test_the_page_and_the_terminal_say_the_same_of_a_cell(tiny):
    groups = RunsByPolicy.of(tiny)
    runs, facts = io.StringIO(), {"trace": "two jobs"}
    Console(file=runs, width=100).print(comparison_view(groups, facts))
    row = [line.split() for line in runs.getvalue().splitlines() if line.startswith("dovetail")][-1]
    # Makespan, the third column, is 200 s against 150 s.
    assert row[3] == "1.33"
    html = simulation_page(tiny, "two jobs", facts)
    assert "1.33 ×" in html
    for text in (html, runs.getvalue()):
        assert "how many times better than fifo (below 1: worse)" in " ".join(text.split())


def test_a_rate_that_is_0_has_no_factor():
    def seen(*rates):
        names = ("fifo", "sjf", "ssf")[: len(rates)]
        runs = [promised(name, 60.0, rate) for name, rate in zip(names, rates, strict=True)]
        out = io.StringIO()
        Console(file=out, width=100).print(
            comparison_view(RunsByPolicy.of(runs), {"trace": "made up"})
        )
        return out.getvalue().partition("how many times better")[2]

    # fifo breaks no gSLA: the table of means says so, and by what factor cannot be said.
    assert "gSLA" not in seen(0.0, 0.16)
    assert "gSLA" not in seen(0.16, 0.0)
    some = seen(0.2, 0.1, 0.0)
    assert "gSLA" in some
    assert [line.split()[-1] for line in some.splitlines()[-4:-2]] == ["2.00", "-"]
    assert "∞" not in some


def test_missing_runs_are_said(several):
    runs = [r for r in several[0] if (r.policy, r.seed) != ("sjf", 2)]
    assert "1 (left out: 2)" in simulation_page(runs, "several", {})
    assert "one seed" in best_table(RunsByPolicy.of(runs)).caption


def test_means_are_over_the_seeds_that_all_policies_have(several):
    runs = [r for r in several[0] if (r.policy, r.seed) != ("sjf", 2)]
    groups = RunsByPolicy.of(runs)
    assert (groups.seeds, groups.left_out) == ((1,), (2,))
    for group in groups.every:
        (first,) = [r for r in runs if (r.policy, r.seed) == (group.policy, 1)]
        assert group.mean("jct_mean_s") == first.summary["jct_mean_s"]
    with pytest.raises(UnsupportedError, match="no seed for which all policies"):
        RunsByPolicy.of([r for r in runs if (r.policy, r.seed) in {("fifo", 1), ("dovetail", 2)}])


def test_metrics_are_bars_with_their_deviations(several, tiny):
    groups = RunsByPolicy.of(several[0])
    found = {chart.name: chart.data for chart in metric_bars(groups)}
    assert next(iter(found)) == "metrics-jct-mean"
    data = found["metrics-jct-mean"]
    assert data["policy"].tolist() == [group.policy for group in groups.every]
    ratio = data.iloc[:, 1] / data.iloc[0, 1]
    means = np.array([group.mean("jct_mean_s") for group in groups.every])
    assert ratio.to_numpy() == pytest.approx(means / means[0])
    spread = np.array([group.spread("jct_mean_s") for group in groups.every])
    assert (data["deviation"] / data.iloc[:, 1]).to_numpy() == pytest.approx(spread / means)
    assert list(metric_bars(RunsByPolicy.of(tiny[:1]))) == []


def test_gpus_are_drawn_in_a_time_with_starts_under_every_policy(tiny):
    early, late = (
        replace(run, stays={**run.stays, "start_s": starts})
        for run, starts in zip(
            tiny, (np.linspace(0, 1000, 2000), np.linspace(900, 9000, 2000)), strict=True
        )
    )
    first, last = _window([early, late], 10_000.0)
    assert first < 1000
    assert last > 900
    (chart, *_) = lanes(RunsByPolicy.of(tiny), None, 1, hours=(0.0, 0.001))
    assert chart.title == "GPUs over time under fifo"
    assert (chart.data["start_s"] < 3.6).all()


def test_values_of_the_caller_replace_those_of_the_runs(tiny):
    page = Page(simulation_page(tiny, "two jobs", {"seeds": "none drawn"}))
    assert "none drawn" in page.text["facts"]
    assert page.text["facts"].count("seeds") == 1


def test_points_above_the_line_are_counted_and_drawn(tiny, several):
    found = list(promises(RunsByPolicy.of(tiny)))
    assert [chart.data["broken"].sum() for chart in found] == [0, 1]
    assert found[1].note == "1 of 2 jobs above their gSLA (50.0 %)"
    for chart in promises(RunsByPolicy.of(several[0])):
        runs = [r for r in several[0] if chart.title.endswith(f" under {r.policy}")]
        broken = sum(int((r.jobs["slowdown"] > r.jobs["gsla"] * (1 + 1e-6)).sum()) for r in runs)
        assert chart.note.startswith(f"{broken} of 80 jobs")


def test_load_over_time_is_the_mean_of_each_stretch(tiny):
    fifo, ours = loads(RunsByPolicy.of(tiny), 1)
    # FIFO lets one job wait for 100 of 200 s.
    assert (fifo.data["waiting_jobs"][fifo.data["time_s"] < 100] == 1).all()
    assert (fifo.data["waiting_jobs"][fifo.data["time_s"] >= 100] == 0).all()
    assert (ours.data["shared_gpus"][ours.data["time_s"] < 149] == 1).all()
    notes = [chart.note for chart in (fifo, ours)]
    assert notes == [
        "longest queue 1; last job ends after 3.33 min",
        "longest queue 0; last job ends after 2.50 min",
    ]


def test_lanes_split_while_two_share():
    where = tiny_world()
    jobs = [(0, 1, 100, "a"), (60, 1, 40, "a")]
    made = result("pairing", 0, jobs, where, Pairing())
    # From 60 s both run at 2/3: each has 40 s left and ends at 120 s.
    assert sorted(bars(made, 1)) == [
        Bar(0, 60, 0, 0, 1, 0),
        Bar(60, 120, 0, 0, 2, 0),
        Bar(60, 120, 0, 1, 2, 1),
    ]


def test_lanes_cover_the_time_of_all_stays(several):
    runs, cluster = several
    for chart, r in zip(lanes(RunsByPolicy.of(runs), cluster, 8), runs[:3], strict=True):
        held = float((r.stays["end_s"] - r.stays["start_s"]).sum())
        assert (chart.data["end_s"] - chart.data["start_s"]).sum() == pytest.approx(held)


def test_too_many_bars_are_thinned_and_said_so(several, monkeypatch):
    monkeypatch.setattr("dovetail.simulating.drawings.MOST_BARS", 60)
    chart = next(lanes(RunsByPolicy.of(several[0]), several[1], 8))
    assert len(chart.data) == 20
    assert chart.note.startswith("the longest 20 of ")


def test_jobs_that_waited_longest_come_first(several):
    group = RunsByPolicy.of(several[0]).every[1]
    waited = sorted(
        ((float(w), str(r.seed)) for r in group.runs for w in r.jobs["queueing_s"]), reverse=True
    )
    found = longest_waits(group)
    column = [head.text for head in found.heads].index("waited in all")
    assert found.heads[column].small == "min"
    assert [(row[column], row[1]) for row in found.rows] == [
        (f"{w / 60:.1f}", seed) for w, seed in waited[:10]
    ]


def test_proofs_are_shown_of_policies_that_prove(several):
    rows = {row[0]: row[-3:] for row in round_table(RunsByPolicy.of(several[0])).rows}
    assert rows["fifo"] == ("-", "-", "-")
    # Of its rounds a part starts jobs that share, and claims nothing.
    assert rows["dovetail"] == ("15.2", "0.0", "25.00")


def test_no_gslas_no_waits_and_no_sharing_still_make_a_page():
    jobs = [(0, 1, 3, "a"), (10, 1, 3, "a")]
    made = [result("fifo", 0, jobs, tiny_world(), policy_named("fifo"))]
    html = simulation_page(made, "two", {})
    page = Page(html)
    assert "No job of this trace has a gSLA" in page.text["promises"]
    assert "no job waited" in page.text["waits"]
    assert "baseline" not in page.text["facts"]
    assert "mean JCT: fifo, 3.00\N{NO-BREAK SPACE}s" in page.text["h1"]


def test_hostile_names_stay_text(tiny):
    jobs = {**tiny[0].jobs, "job": np.array([HOSTILE, f"{HOSTILE} 2"])}
    named = [replace(r, policy=f"{HOSTILE} {k}", jobs=jobs) for k, r in enumerate(tiny)]
    html = simulation_page(named, HOSTILE, {HOSTILE: HOSTILE})
    page = Page(html)
    assert [g for tag, g in page.tags if tag == "script"] == [{}]
    assert not any(name.startswith("on") for _, given in page.tags for name in given)
    for section in ("title", "facts", "waits", "table"):
        assert HOSTILE in page.text[section]


def test_many_policies_and_seeds_stay_small(several):
    pytest.importorskip("matplotlib")
    runs = [r for r in several[0] if r.seed == 1]
    many = [
        replace(r, policy=f"{r.policy}-{k}", seed=seed)
        for k in range(4)
        for seed in range(4)
        for r in runs
    ]
    html = simulation_page(many, "many", {}, several[1])
    page = Page(html)
    assert len(html) < 1_500_000
    assert "6 other policies in grey" in page.text["jct"]


def test_nothing_to_compare_is_said():
    with pytest.raises(UnsupportedError, match="at least one run"):
        simulation_page([], "none", {})


def test_means_of_stretches_by_hand():
    # 0 until 1, then 4 until 3, then 2 for ever.
    found = binned(np.array([1.0, 3.0]), np.array([4.0, 2.0]), np.array([0.0, 2.0, 4.0, 6.0]))
    assert found.tolist() == [2.0, 3.0, 2.0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.0, "0"), (0.9999999, "1.00"), (0.0379, "0.0379"), (0.00021, "0.0002")),
        *((12.345, "12.3"), (99.96, "100"), (123456.7, "123,457"), (math.nan, "-")),
    ],
)
def test_figures_have_three_digits(value, text):
    assert three_digits(value) == text


def test_columns_have_the_same_digits():
    values = [0.3, 31.04, 7.0]
    assert [fixed(value, digits(values)) for value in values] == ["0.30", "31.04", "7.00"]
    assert [fixed(value, digits([12.0, 1e4])) for value in (12.0, 1e4)] == ["12", "10,000"]
    assert fixed(math.nan, 2) == "-"


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (0.0123, "12.3 ms"),
        (2.5e-5, "25.0 µs"),
        (60, "60.0 s"),
        (5000, "83.3 min"),
        (7200, "2.00 h"),
        (864000, "10.0 d"),
    ],
)
def test_times_have_a_fitting_unit(time_s, text):
    assert duration(time_s) == text


PROBE = """<script>
const head = document.querySelector("#table thead").rows[0].cells[1];
head.querySelector("button").click();
const first = () => document.querySelector("#table tbody th").textContent;
const names = [first()];
head.querySelector("button").click();
document.title = [document.documentElement.scrollWidth - innerWidth, ...names, first(),
  head.ariaSort].join("|");
</script>"""


@pytest.mark.parametrize("width", [1280, 500])
def test_a_browser_complains_of_nothing_and_sorts_tables(html, several, tmp_path, width):
    made, log = in_browser(html.replace("</body>", f"{PROBE}</body>"), tmp_path, width)
    assert "CONSOLE" not in log
    out, lowest, highest, sort = re.search(r"<title>(.*?)</title>", made)[1].split("|")
    assert int(out) <= 0
    ranked = sorted(RunsByPolicy.of(several[0]).every, key=lambda group: group.mean("jct_mean_s"))
    assert (lowest, highest) == (ranked[0].policy, ranked[-1].policy)
    assert sort == "descending"
