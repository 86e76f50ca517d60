"""The page that compares schedulers: its figures are the runs', and a browser shows it."""

from __future__ import annotations

import io
import json
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
from dovetail.simulating.drawings import loads, promises
from dovetail.simulating.gantt import WIDTH, Piece, gantt, pieces
from dovetail.simulating.groups import Groups, leads
from dovetail.simulating.report import SIMULATED, comparison_page
from dovetail.simulating.tables import TABLES, longest_waits, metric_tables, round_table
from dovetail.simulating.text import comparison_view
from dovetail.simulating.verdict import headline, verdict
from dovetail.simulating.wording import duration, three_digits
from dovetail.solver.policies import Decision, RoundProof, State, policy_named
from dovetail.solver.policies.draft import Draft
from dovetail.toolkit.charts import SIDE, binned, count_axis, log_time_axis, ratio_axis, time_axis
from tests.api.pages import Page, in_browser
from tests.api.samples import HOSTILE
from tests.executor.simulation.worlds import run, trace, world

SECTIONS = {
    *("facts", "table", "jct", "sizes", "load", "lanes", "promises", "waits", "rounds"),
    "definitions",
}


class Pairing:
    """Starts everyone at once, two on a GPU where it must; else it claims a gap of a quarter.

    What it claims to have proven is checked, and it does not look at gSLAs.
    """

    def decide(self, state: State) -> Decision:
        draft = Draft(state)
        for job in draft.pending():
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
    return comparison_page(runs, "forty jobs", {"world": "slowdowns by hand"}, cluster)


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
    page = Page(html)
    assert {g["id"] for tag, g in page.tags if tag == "section"} == SECTIONS
    assert "slowdowns by hand" in page.text["facts"]
    assert "forty jobs" in page.text["title"]
    for name in ("fifo", "sjf", "dovetail"):
        assert all(name in page.text[section] for section in SECTIONS - {"definitions"})
    assert SIMULATED.split(":")[0] in html


def test_the_page_loads_nothing_and_runs_its_own_script_only(html):
    page = Page(html)
    names = [tag for tag, _ in page.tags]
    assert not {"img", "iframe", "object", "form", "base", "link"}.intersection(names) - {"link"}
    scripts = [given for tag, given in page.tags if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "names"}, {}]
    for _, given in page.tags:
        for name, value in given.items():
            assert not name.startswith("on")
            if name in ("href", "src", "xlink:href"):
                assert value == "data:," or value.startswith("#")
    assert not re.search(r"url\(|@import|//|fetch\(|XMLHttp|import\(", html)


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
    table = metric_tables(Groups.of(runs))[0]
    assert table.columns[0][:2] == ("mean JCT", "min")
    cell = {group.policy: cells[0] for group, cells in table.rows}["dovetail"]
    assert float(cell.mean) == pytest.approx(fmean(mine) / 60, rel=5e-3)
    assert float(cell.spread.strip("± ")) == pytest.approx(stdev(mine) / 60, rel=5e-3)
    assert float(cell.gain.strip(" ×")) == pytest.approx(fmean(base) / fmean(mine), rel=5e-3)
    rows = {row[0]: row[1:] for row in reversed(Cells(html).rows) if len(row) == 10}
    assert rows["dovetail"][0] == cell.mean + " best" * cell.best


def test_every_figure_of_the_main_tables_is_the_mean_of_the_runs(several):
    runs, _ = several
    groups = Groups.of(runs)
    units = {"s": 1, "min": 60, "h": 3600, "d": 86400, "%": 0.01, "ms": 1e-3}
    seen = 0
    for table, (_, _, metrics) in zip(metric_tables(groups), TABLES, strict=True):
        shown = [m for m in metrics if any(g.mean(m) for g in groups.every)]
        shown = [m for m in shown if any(math.isfinite(g.mean(m)) for g in groups.every)]
        for group, cells in table.rows:
            for metric, column, cell in zip(shown, table.columns, cells, strict=True):
                scaled = METRICS[metric].unit in ("s", "part")
                size = units[column.unit] if scaled else 1
                if cell.mean != "-":
                    told = float(cell.mean.replace(",", "")) * size
                    assert told == pytest.approx(group.mean(metric), rel=6e-3)
                    seen += 1
    assert seen > 50


def test_two_jobs_by_hand(tiny):
    groups = Groups.of(tiny)
    assert groups.baseline.policy == "fifo"
    time, sharing, machines = metric_tables(groups)
    fifo, ours = (
        dict(zip((c.label for c in time.columns), cells, strict=True)) for _, cells in time.rows
    )
    # Makespan 200 s beside 150 s; p99 of (100, 200) is 199.
    assert (fifo["makespan"].mean, ours["makespan"].mean) == ("3.33", "2.50")
    assert (ours["makespan"].gain, ours["makespan"].best) == ("1.33 ×", True)
    assert (fifo["p99 JCT"].mean, ours["p99 JCT"].mean) == ("3.32", "2.50")
    assert not fifo["mean JCT"].best
    assert not ours["mean JCT"].best
    # The one with a gSLA of 1.2 is slowed by 1.5: one of two, by 25 %.
    rate = [c.label for c in sharing.columns].index("gSLA violation rate")
    assert [cells[rate].mean for _, cells in sharing.rows] == ["0", "50.0"]
    assert headline(groups) == "Both policies have the same mean job completion time: 2.50 min"
    told = verdict(groups)
    assert "Best at gSLA violation rate: fifo." in told
    assert "dovetail is not the best at gSLA violation rate (50.0 %; fifo 0 %)." in told
    assert "One seed only: small differences may be chance." in told
    assert machines.absent == ("energy",)


def test_nobody_is_best_where_some_have_no_figure(tiny):
    groups = Groups.of(tiny)
    assert groups.best("excess_p50") == ()
    assert [group.policy for group in groups.best("makespan_s")] == ["dovetail"]
    assert groups.best("jobs") == ()


def test_seeds_are_compared_one_by_one(tiny):
    def of(policy, *makespans):
        return [
            replace(tiny[0], policy=policy, seed=seed, summary={**tiny[0].summary, "makespan_s": m})
            for seed, m in enumerate(makespans)
        ]

    groups = Groups.of([*of("a", 3.0, 5.0, 7.0), *of("b", 4.0, 4.0, 9.0)])
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
    ("rates", "told"),
    [
        # 60 beside 120 s and 90 s.
        (
            (0.0, 0.01, 0.31),
            ", 50.0 % less than fifo, but breaks 31.0 % of its gSLAs; of those that keep 99 % "
            "ssf is the best: 1.50 min, 25.0 % less than fifo",
        ),
        (
            (0.0, 0.02, 0.31),
            ", 50.0 % less than fifo, but breaks 31.0 % of its gSLAs; of those that keep 99 % "
            "fifo is the best: 2.00 min, the baseline itself",
        ),
        (
            (0.1, 0.02, 0.31),
            ", 50.0 % less than fifo, but breaks 31.0 % of its gSLAs; no policy keeps 99 % "
            "of its own",
        ),
        ((0.0, 0.5, 0.01), ", 50.0 % less than fifo"),
        ((math.nan,) * 3, ", 50.0 % less than fifo"),
    ],
)
def test_who_breaks_promises_is_not_praised_without_saying_so(rates, told):
    policies = zip(("fifo", "ssf", "castor"), (120.0, 90.0, 60.0), rates, strict=True)
    groups = Groups.of([promised(*each) for each in policies])
    best = "castor has the shortest mean job completion time of 3 policies: 60.0 s"
    assert headline(groups) == best + told
    breaks = " (breaks 31.0 % of its gSLAs)" if rates[2] > 0.01 else ""
    assert f"Best at mean JCT: castor{breaks}." in verdict(groups)


def test_the_page_and_the_terminal_say_the_same_of_a_cell(tiny):
    groups = Groups.of(tiny)
    runs, facts = io.StringIO(), {"trace": "two jobs"}
    Console(file=runs, width=100).print(comparison_view(groups, facts))
    row = [line.split() for line in runs.getvalue().splitlines() if line.startswith("dovetail")][-1]
    # Makespan, the third column, is 200 s beside 150 s.
    assert row[3] == "1.33"
    html = comparison_page(tiny, "two jobs", facts)
    assert "1.33 ×" in html
    for text in (html, runs.getvalue()):
        assert "how many times better than fifo (below 1: worse)" in " ".join(text.split())


def test_missing_runs_are_said(several):
    runs = [r for r in several[0] if (r.policy, r.seed) != ("sjf", 2)]
    told = " ".join(verdict(Groups.of(runs)))
    assert "Seed 2 is left out: not every policy has a run of it." in told
    assert "One seed only" in told


def test_means_are_over_the_seeds_that_all_policies_have(several):
    runs = [r for r in several[0] if (r.policy, r.seed) != ("sjf", 2)]
    groups = Groups.of(runs)
    assert (groups.seeds, groups.left_out) == ((1,), (2,))
    for group in groups.every:
        (first,) = [r for r in runs if (r.policy, r.seed) == (group.policy, 1)]
        assert group.mean("jct_mean_s") == first.summary["jct_mean_s"]
    with pytest.raises(UnsupportedError, match="no seed for which all policies"):
        Groups.of([r for r in runs if (r.policy, r.seed) in {("fifo", 1), ("dovetail", 2)}])


def test_what_the_caller_tells_replaces_what_the_runs_tell(tiny):
    page = Page(comparison_page(tiny, "two jobs", {"seeds": "none drawn"}))
    assert "none drawn" in page.text["facts"]
    assert page.text["facts"].count("seeds") == 1


def test_points_above_the_line_are_counted_and_drawn(tiny, several):
    found = promises(Groups.of(tiny))
    assert [(each.jobs, each.violations) for each in found.every] == [(2, 0), (2, 1)]
    assert found.every[1].broken.count("M") == 1
    for each in promises(Groups.of(several[0])).every:
        runs = [r for r in several[0] if r.policy == each.policy]
        broken = sum(int((r.jobs["slowdown"] > r.jobs["gsla"] * (1 + 1e-6)).sum()) for r in runs)
        assert (each.violations, each.jobs) == (broken, 80)


def test_load_over_time_is_the_mean_of_each_stretch(tiny):
    found = loads(Groups.of(tiny))
    # FIFO lets one job wait for 100 of 200 s; the queue's axis is 0..1, y grows downwards.
    assert [each.longest_queue for each in found.every] == [1, 0]
    assert found.every[0].waiting.startswith("M0 0L")
    assert "L500 0L500 1000" in found.every[0].waiting
    assert found.every[1].shared.startswith("M0 0L")
    assert [each.ends for each in found.every] == ["3.33 min", "2.50 min"]


def test_lanes_split_while_two_share():
    where = tiny_world()
    jobs = [(0, 1, 100, "a"), (60, 1, 40, "a")]
    made = result("pairing", 0, jobs, where, Pairing())
    # From 60 s both run at 2/3: each has 40 s left and ends at 120 s.
    half = WIDTH // 2
    assert sorted(pieces(made, 120.0, 1)) == [
        Piece(0, half, 0, 0, 1, 0),
        Piece(half, WIDTH, 0, 0, 2, 0),
        Piece(half, WIDTH, 0, 1, 2, 1),
    ]


def test_lanes_cover_the_time_of_all_stays(several):
    runs, cluster = several
    drawn = gantt(Groups.of(runs), cluster, 8)
    assert [node.name for node in drawn.nodes] == ["n0", "n1"]
    for lanes, r in zip(drawn.every, [runs[0], runs[1], runs[2]], strict=True):
        lengths = [int(w) for bars in lanes.bars for w in re.findall(r"h(\d+)", bars.path)]
        assert sum(bars.jobs.count(",") + 1 for bars in lanes.bars) == len(lengths)
        held = float((r.stays["end_s"] - r.stays["start_s"]).sum())
        assert sum(lengths) / WIDTH * drawn.end_s == pytest.approx(held, rel=1e-2)


def test_too_many_bars_are_thinned_and_said_so(several, monkeypatch):
    monkeypatch.setattr("dovetail.simulating.gantt.MOST_PIECES", 60)
    lanes = gantt(Groups.of(several[0]), several[1], 8).every[0]
    assert sum(bars.path.count("M") for bars in lanes.bars) == 20
    assert lanes.caption.startswith("the longest 20 of ")


def test_those_who_waited_longest_come_first(several):
    group = Groups.of(several[0]).every[1]
    waited = sorted(
        ((float(w), r.seed) for r in group.runs for w in r.jobs["queueing_s"]), reverse=True
    )
    found = longest_waits(group)
    assert [(each.waited, each.seed) for each in found] == [
        (duration(w), seed) for w, seed in waited[:10]
    ]


def test_proofs_are_told_of_those_who_prove(several):
    rows = {row.policy: row for row in round_table(Groups.of(several[0]))}
    assert (rows["fifo"].proven, rows["fifo"].gap) == ("-", "-")
    ours = rows["dovetail"]
    # Of its rounds a part starts jobs that share, and claims nothing.
    assert (ours.proven, ours.optimal, ours.gap) == ("15.2 %", "0 %", "25.0 %")


def test_no_gslas_no_waits_and_no_sharing_still_make_a_page():
    jobs = [(0, 1, 3, "a"), (10, 1, 3, "a")]
    made = [result("fifo", 0, jobs, tiny_world(), policy_named("fifo"))]
    page = Page(comparison_page(made, "two", {}))
    assert "No job of this trace has a gSLA" in page.text["promises"]
    assert "no job waited" in page.text["waits"]
    assert "fifo: jobs take 3.00 s from arrival to end on average" in page.text["h1"]


def test_hostile_names_stay_text(tiny):
    jobs = {**tiny[0].jobs, "job": np.array([HOSTILE, f"{HOSTILE} 2"])}
    named = [replace(r, policy=f"{HOSTILE} {k}", jobs=jobs) for k, r in enumerate(tiny)]
    html = comparison_page(named, HOSTILE, {HOSTILE: HOSTILE})
    page = Page(html)
    assert [g for tag, g in page.tags if tag == "script"][1:] == [{}]
    assert not any(name.startswith("on") for _, given in page.tags for name in given)
    for section in ("title", "facts", "waits", "table"):
        assert HOSTILE in page.text[section]
    names = re.search(r'id="names">(.*?)</script>', html)[1]
    assert json.loads(names) == [HOSTILE, f"{HOSTILE} 2"]


def test_many_policies_and_seeds_stay_small(several):
    runs = [r for r in several[0] if r.seed == 1]
    many = [
        replace(r, policy=f"{r.policy}-{k}", seed=seed)
        for k in range(6)
        for seed in range(10)
        for r in runs
    ]
    html = comparison_page(many, "many", {}, several[1])
    page = Page(html)
    assert len(html) < 1_500_000
    assert page.text["jct"].count("median") == 18


def test_nothing_to_compare_is_said():
    with pytest.raises(UnsupportedError, match="at least one run"):
        comparison_page([], "none", {})


def test_axes_by_hand():
    # 10 h in at most seven steps: every two hours.
    assert [label for _, label in time_axis(36000.0).ticks] == [
        "0",
        "2 h",
        "4 h",
        "6 h",
        "8 h",
        "10 h",
    ]
    assert [label for _, label in time_axis(7 * 86400, 5 * 86400).ticks][-1] == "168 h"
    assert [label for _, label in count_axis(62).ticks] == ["0", "20", "40", "60"]
    assert count_axis(0).high == 1
    axis = log_time_axis(1.05, 10000 / 1.05)
    assert axis.at(100.0) == pytest.approx(SIDE / 2)
    assert "1 h" in [label for _, label in axis.ticks]
    assert ratio_axis(2.0).ticks[0][1] == "1"


def test_means_of_stretches_by_hand():
    # 0 until 1, then 4 until 3, then 2 for ever.
    found = binned(np.array([1.0, 3.0]), np.array([4.0, 2.0]), np.array([0.0, 2.0, 4.0, 6.0]))
    assert found.tolist() == [2.0, 3.0, 2.0]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        *((0.0, "0"), (0.9999999, "1.00"), (0.0379, "0.0379"), (0.00021, "0.0002")),
        *((12.345, "12.3"), (99.96, "100"), (123456.7, "123,457"), (math.nan, "-")),
    ],
)
def test_figures_have_three_digits(value, told):
    assert three_digits(value) == told


@pytest.mark.parametrize(
    ("time_s", "told"),
    [
        (0.0123, "12.3 ms"),
        (2.5e-5, "25.0 µs"),
        (60, "60.0 s"),
        (5000, "83.3 min"),
        (7200, "2.00 h"),
        (864000, "10.0 d"),
    ],
)
def test_times_have_a_fitting_unit(time_s, told):
    assert duration(time_s) == told


PROBE = """<script>
const lanes = document.querySelector(".lanes"), box = lanes.getBoundingClientRect();
const [x, y] = [box.left + 1, box.top + box.height / 2];
lanes.dispatchEvent(new PointerEvent("pointermove", {clientX: x, clientY: y}));
const width = document.getElementById("width");
const before = lanes.getAttribute("viewBox");
width.value = 500; width.dispatchEvent(new Event("input"));
document.title = [document.documentElement.scrollWidth - innerWidth,
  document.getElementById("who").textContent, before, lanes.getAttribute("viewBox")].join("|");
</script>"""


@pytest.mark.parametrize("width", [1280, 500])
def test_a_browser_complains_of_nothing_and_moves_the_window(tiny, tmp_path, width):
    html = comparison_page(tiny, "two jobs", {})
    made, log = in_browser(html.replace("</body>", f"{PROBE}</body>"), tmp_path, width)
    assert "CONSOLE" not in log
    out, who, before, after = re.search(r"<title>(.*?)</title>", made)[1].split("|")
    assert int(out) <= 0
    # FIFO's first job has the only GPU from 0 to 100 s of 200 s.
    assert who == "j0 on GPU 0, 0 s to 100 s"
    assert before == f"0 0 {WIDTH} 1"
    # Half way on a logarithmic scale from 50 to the whole.
    assert float(after.split()[2]) == pytest.approx(math.sqrt(50 * WIDTH))
