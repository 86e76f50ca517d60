from __future__ import annotations

import re
from io import StringIO

import pytest
from rich.console import Console, RenderableType

from dovetail.instances import library
from dovetail.instances.checking.checker import check
from dovetail.instances.objectives import OBJECTIVES
from dovetail.instances.plan import Waiting
from dovetail.planning.check import check_view
from dovetail.planning.explain import waiting_view
from dovetail.planning.plan import gpu_table, plan_view
from dovetail.planning.views import view
from dovetail.solver.rounds import solve
from dovetail.toolkit import tables
from dovetail.toolkit.wording import figure
from tests.api import samples
from tests.data import small


def printed(*views: RenderableType) -> str:
    out = StringIO()
    Console(file=out, width=tables.WIDTH, highlight=False).print(*views, sep="\n")
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def widest(text: str) -> int:
    return max(map(len, text.splitlines()))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_lab_fits_and_cuts_nothing_off(objective):
    instance, _, comparison = samples.lab()
    plan = solve(instance, objective, "greedy").plan
    text = printed(
        plan_view(instance, plan, comparison.replace(objective=objective)),
        check_view(check(instance, plan)),
    )
    assert widest(text) <= tables.WIDTH
    assert "…" not in text


@pytest.mark.parametrize("name", library.names())
def test_every_shipped_instance_fits(name):
    instance = library.load(name)
    plan = solve(instance, solver="greedy").plan
    assert widest(printed(plan_view(instance, plan))) <= tables.WIDTH


def test_every_placed_job_is_in_the_table_once_for_each_of_its_gpus():
    instance, plan, _ = samples.lab()
    words = printed(gpu_table(view(instance, plan))).split()
    for assignment in plan.assignments:
        assert words.count(assignment.job) == len(assignment.gpus), assignment.job


def test_a_row_says_share_slowdowns_memory_and_whether_the_job_stays():
    instance = small(
        [
            {"id": "x", "state": "running", "gpus": ["g-0"], "share": [60]},
            {"id": "y", "gsla": 2.0, "workload": "b"},
        ],
        [{"pair": ["a", "b"], "share": [60, 40], "slowdown": [1.25, 1.5], "upper": [1.3, 1.75]}],
        gpus=1,
        shares=[40, 60],
    )
    text = printed(gpu_table(view(instance, solve(instance).plan)))
    x, y = (line for line in text.splitlines() if line.split()[-1:] in (["stays"], ["starts"]))
    # Two jobs of 4,000 MiB on a GPU of 16,000 MiB.
    assert x.split() == ["g-0", "x", "60", "%", "1.25", "1.30", "-", "7.8/15.6", "stays"]
    assert y.split() == ["y", "40", "%", "1.50", "1.75", "2.00", "starts"]


def test_idle_gpus_are_said_to_be_idle():
    instance = small([{"id": "x"}])
    text = printed(plan_view(instance, solve(instance).plan))
    assert "(idle)" in text
    assert "no job waits" in text


def test_headline_has_value_bound_gap_and_proof():
    instance = small([{"id": "x", "weight": 2.5}, {"id": "y", "workers": 2}])
    plan = solve(instance).plan.replace(runtime_s=1.25)
    lines = printed(plan_view(instance, plan)).splitlines()
    assert [" ".join(line.split()) for line in lines[:6]] == [
        "plan for small",
        "status optimal: no plan does better, proven",
        "throughput 2.5 bound 2.5 gap 0.00 %",
        "placed 1 of 2 jobs (1 start, 0 stay) on 1 of 2 GPUs",
        "node spans 1 (nodes of each job, summed)",
        f"solver {plan.solver}, 1.25 s, stopped: complete",
    ]


def test_an_unproven_plan_is_not_called_better_than_it_is():
    instance, plan, _ = samples.lab()
    assert plan.status == "feasible"
    text = printed(plan_view(instance, plan))
    assert "feasible\n" in text
    assert f"22.4087   bound {plan.objective.bound:.6g}   gap " in text
    claimless = plan.replace(objective=None, status=None)
    assert "no proof of how good it is" in printed(plan_view(instance, claimless))


def test_every_waiting_job_has_a_line_with_its_reason():
    instance = small([{"id": f"big-{k}", "workers": 3} for k in range(3)])
    plan = solve(instance).plan
    text = printed(plan_view(instance, plan))
    lines = text[text.index("3 jobs waiting") :].splitlines()
    assert lines[0].startswith("3 jobs waiting: 3 ")
    for line, waiting in zip(lines[1:4], plan.waiting, strict=True):
        assert line == f"{waiting.job}  {waiting.reason}"


def test_a_plan_without_reasons_still_lists_the_waiting_jobs():
    instance = small([{"id": "big", "workers": 3}])
    plan = solve(instance).plan.replace(waiting=())
    assert "big  no reason given" in printed(plan_view(instance, plan))


def test_a_large_plan_is_shortened_and_says_so():
    instance, plan = samples.large()
    text = printed(plan_view(instance, plan))
    assert "... 140 more GPUs; all of them: --json, -o PLAN or --report FILE.html" in text
    waiting = 1000 - len(plan.assignments)
    assert f"... {waiting - 20} more waiting jobs; all of them:" in text
    assert f"{waiting} jobs waiting: " in text
    assert len(text.splitlines()) < 300


def test_a_column_that_says_nothing_is_left_out():
    gpu = {"model": "V100", "memory_mib": 16000}
    jobs = [{"id": "x"}, {"id": "y", "workload": "b"}]
    pair = {"pair": ["a", "b"], "slowdown": [1.25, 1.5]}
    instance = small(jobs, [pair], gpus=1)
    heads = "GPU job slowdown"

    def shown(instance):
        text = printed(gpu_table(view(instance, solve(instance).plan)))
        # The heads have two lines, the upper one for "SM", "at" and "memory".
        return " ".join(text.splitlines()[1].split())

    assert shown(instance) == f"{heads} GiB"
    assert shown(small(jobs, [{**pair, "upper": [1.3, 1.5]}], gpus=1)) == f"{heads} most GiB"
    assert shown(small([{**jobs[0], "gsla": 2.0}, jobs[1]], [pair], gpus=1)) == f"{heads} gSLA GiB"
    assert shown(small([{"id": "x", "workers": 2}])) == "GPU job part slowdown GiB"
    own = [{"id": f"n{k}", "gpus": [{"id": f"gpu-{k}", **gpu}]} for k in (0, 1)]
    cluster = instance.cluster.replace(nodes=small([]).cluster.nodes[:0]).to_data()
    named = instance.to_data() | {"cluster": {**cluster, "nodes": own}}
    assert shown(type(instance).from_data(named)) == f"node {heads} GiB"


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", library.names())
def test_plans_fit_a_terminal_of_80_columns_and_names_stay_whole(name, width):
    instance = library.load(name)
    plan = solve(instance, solver="greedy").plan
    out = StringIO()
    console = Console(file=out, width=width, highlight=False)
    console.print(gpu_table(view(instance, plan)))
    assert widest(out.getvalue()) <= width
    words = out.getvalue().split()
    for assignment in plan.assignments:
        assert words.count(assignment.job) == len(assignment.gpus), assignment.job


@pytest.mark.parametrize("length", [40, 190])
def test_long_names_lose_their_middle(length):
    instance, plan = samples.named("n" * length)
    text = printed(gpu_table(view(instance, plan)))
    assert widest(text) <= tables.WIDTH
    first = next(line for line in text.splitlines() if line.endswith("stays"))
    gpu, job = first.split("  ")[:2]
    for name, end in ((gpu, "n-0"), (job, "n 1")):
        assert name.startswith("nnn")
        assert "…" in name
        assert name.strip().endswith(end)
    waiting = Waiting(job=f"{'n' * length} 1", reason=f"closed: {'why ' * 40}")
    first, second = printed(waiting_view([waiting])).splitlines()[:2]
    assert re.match(r"n+…n+ 1  closed: why", first)
    assert second.startswith(" " * 25)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (6.220161, 6, "6.22016"),
        (123_456_789.0, 6, "123457000"),
        (1.1574e-5, 6, "0.000011574"),
        (1234.5, 3, "1230"),
        (0.0, 6, "0"),
    ],
)
def test_figures_are_written_out(value, digits, text):
    assert figure(value, digits) == text


def test_the_gsla_of_a_latency_job_is_one_of_its_p99():
    instance = library.load("latency")
    plan = solve(instance).plan
    row = next(s for s in printed(plan_view(instance, plan)).splitlines() if "serve" in s)
    assert row.split()[2:6] == ["1.25", "1.30", "p99", "1.30"]


def test_names_are_text_and_no_markup():
    instance, plan = samples.named("[red]x[/]")
    assert "[red]x[/] 1" in printed(plan_view(instance, plan))


def test_check_view_lists_violations_and_warnings():
    instance, plan, _ = samples.lab()
    wrong = plan.objective.replace(value=99.0, bound=None, gap=None)
    report = check(instance, plan.replace(objective=wrong)).replace(warnings=("look here",))
    text = printed(check_view(report))
    assert "not valid: 1 violation\n" in text
    assert "violation  plan: claim: claims throughput 99, recomputed 22.40865327" in text
    assert "warning    look here" in text
    assert "22.4087 (recomputed)" in text


def test_console_off_a_terminal_is_80_wide_and_plain(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    instance, plan, _ = samples.lab()
    tables.console().print(plan_view(instance, plan))
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert 70 < widest(text) <= tables.WIDTH == 80
    assert text == "".join(f"{line.rstrip()}\n" for line in text.splitlines())


@pytest.mark.parametrize(("columns", "width"), [("240", 80), ("80", 80), ("60", 60), ("30", 30)])
def test_console_on_a_terminal_keeps_to_its_width(monkeypatch, columns, width):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", columns)
    assert tables.console().width == width


def test_the_plan_is_bold_among_those_of_simpler_rules_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    tables.console().print(plan_view(*samples.lab()))
    shown = capsys.readouterr().out.splitlines()
    (own,) = (line for line in shown if "this plan" in line)
    (other,) = (line for line in shown if "exclusive use" in line)
    assert "\x1b[1m" in own
    assert "\x1b[1m" not in other


@pytest.mark.parametrize("width", [79, 60, 40, 30])
def test_a_narrow_terminal_gets_lines_that_fit_and_cut_nothing_off(width):
    instance, plan, comparison = samples.lab()
    out = StringIO()
    console = Console(file=out, width=width, highlight=False)
    console.print(plan_view(instance, plan, comparison))
    text = out.getvalue()
    assert widest(text) <= width
    assert "…" not in text
    words = text.split()
    for assignment in plan.assignments:
        assert words.count(assignment.job) >= len(assignment.gpus), assignment.job
    for row in comparison.rows:
        assert row.name in " ".join(words)


def test_no_color_is_heeded_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    instance, plan, _ = samples.lab()
    tables.console().print(plan_view(instance, plan))
    assert "\x1b[3" not in capsys.readouterr().out
