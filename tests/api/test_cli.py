"""The command line from end to end: files, pipes, exit status, one line for a mistake."""

from __future__ import annotations

import gzip
import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from dovetail.cli.main import main, parsed
from dovetail.instances import library
from dovetail.instances.checking.checker import check
from dovetail.instances.files import read_instance, read_plan, write_instance
from dovetail.instances.generate import generate
from dovetail.instances.objectives import OBJECTIVES
from dovetail.solver.rounds import UnknownPairs, solve
from tests.data import example_data
from tests.executor.waiting import LIMIT_S, wait_until
from tests.instances.test_broken_inputs import INSTANCE, PLAN, changed, plan_data
from tests.solver.test_limits import strangers


def dovetail(*arguments, stdin="", **options):
    """Run the installed program."""
    command = [sys.executable, "-m", "dovetail", *map(str, arguments)]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=LIMIT_S, **options
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_plan_goes_to_a_file_and_passes_the_check(run, tmp_path, objective):
    path = tmp_path / "plan.json"
    status, out, err = run("plan", "library:lab", "--objective", objective, "-o", path)
    assert (status, err) == (0, "")
    assert "proven" in out
    assert check(library.load("lab"), read_plan(path)).valid
    status, out, _ = run("check", "library:lab", path)
    assert status == 0
    assert "valid" in out


def test_a_bound_is_verified_by_its_certificate(run):
    status, out, err = run("plan", "library:first-pairs", "--verify")
    assert (status, err) == (0, "")
    assert "bound and gap by a certificate, against all 3 pairs of jobs" in " ".join(out.split())
    _, out, _ = run("plan", "library:first-pairs", "--verify", "--json")
    assert json.loads(out)["verification"] == {"certificate": "checked", "pairs": 3}


def test_a_bound_without_a_certificate_is_said_to_have_none(run):
    status, out, err = run("plan", "library:lab", "--verify")
    assert (status, err) == (0, "")
    assert "not its bound: matching left no certificate of it" in " ".join(out.split())


def test_a_failed_verification_is_one_line_and_writes_nothing(run, tmp_path, monkeypatch):
    def liar(*arguments, **options):
        result = solve(*arguments, **options)
        claim = result.plan.objective.replace(bound=2.0 * result.bound, gap=0.5)
        plan = result.plan.replace(objective=claim, status="feasible")
        return replace(result, plan=plan, bound=2.0 * result.bound)

    monkeypatch.setattr("dovetail.solver.rounds.solve", liar)
    path = tmp_path / "plan.json"
    status, out, err = run("plan", "library:first-pairs", "--verify", "-o", path)
    assert (status, out) == (1, "")
    message = "dovetail: verification failed: the certificate proves a bound of 2.425"
    assert err.startswith(message)
    assert err.count("\n") == 1
    assert not path.exists()


def test_a_plan_of_another_instance_is_reported_in_one_line_first(run, tmp_path):
    path = tmp_path / "plan.json"
    assert run("plan", "library:first-pairs", "-o", path)[0] == 0
    status, out, err = run("check", "library:weights", path)
    assert (status, "not valid" in out) == (1, True)
    message = "the plan was made for instance first-pairs, this one is weights"
    assert err == f"dovetail: {message}: are these the right files?\n"
    assert run("check", "library:first-pairs", path)[::2] == (0, "")


def test_json_is_the_plan_itself(run):
    status, out, _ = run("plan", "library:first-pairs", "--json")
    assert status == 0
    assert json.loads(out)["objective"]["value"] == pytest.approx(2.425)


def test_output_to_standard_output_is_the_plan_alone(run):
    _, out, _ = run("plan", "library:first-pairs", "-o", "-")
    assert json.loads(out)["format"] == "dovetail-plan/1"


def test_instance_from_standard_input_and_plan_through_a_pipe(tmp_path):
    path = tmp_path / "instance.json"
    write_instance(library.load("running"), path)
    planned = dovetail("plan", "-", "-o", "-", stdin=path.read_text())
    assert planned.returncode == 0, planned.stderr
    checked = dovetail("check", path, "-", stdin=planned.stdout)
    assert checked.returncode == 0, checked.stderr


def test_packed_yaml_is_read_and_written(run, tmp_path):
    path = tmp_path / "made.yaml.gz"
    assert run("generate", "--jobs", 12, "--seed", 3, "-o", path)[0] == 0
    assert gzip.decompress(path.read_bytes()).startswith(b"format: dovetail-instance/1")
    assert run("plan", path, "-o", tmp_path / "plan.yaml.gz")[0] == 0
    assert run("check", path, tmp_path / "plan.yaml.gz")[0] == 0


def test_a_plan_with_predictions_is_checked_and_explained_with_them(run, tmp_path):
    path = tmp_path / "plan.json"
    predicted = ("--predictor", "analytic")
    assert run("plan", "library:sm-allocation", *predicted, "-o", path)[0] == 0
    assert run("check", "library:sm-allocation", path)[0] == 1
    assert run("check", "library:sm-allocation", path, *predicted)[0] == 0
    assert run("explain", "library:sm-allocation", path)[0] == 2
    assert run("explain", "library:sm-allocation", path, *predicted)[0] == 0


def test_a_wrong_plan_is_found_wrong(run, tmp_path):
    path = tmp_path / "plan.json"
    run("plan", "library:gang-partial", "-o", path)
    data = json.loads(path.read_text())
    data["assignments"][0]["gpus"][0] = data["assignments"][0]["gpus"][1]
    path.write_text(json.dumps(data))
    status, out, err = run("check", "library:gang-partial", path)
    assert (status, err) == (1, "")
    assert "gang" in out
    status, out, _ = run("check", "library:gang-partial", path, "--json")
    assert status == 1
    assert json.loads(out)["valid"] is False


def test_preempted_jobs_may_move_and_the_plan_says_so(run, tmp_path):
    path = tmp_path / "plan.json"
    run("plan", "library:lab", "--preempt", "-o", path)
    plan = read_plan(path)
    assert plan.preempt
    assert run("check", "library:lab", path)[0] == 0
    _, out, _ = run("plan", "library:lab", "--preempt")
    stay = sum(not a.start for a in plan.assignments)
    ran = {job.id for job in library.load("lab").jobs if job.running}
    moves = len({a.job for a in plan.assignments if a.start} & ran)
    changes = f"{stay} stay, {moves} move, {len(ran) - stay - moves} stop"
    assert f"({len(plan.assignments) - stay - moves} start, {changes})" in out


def test_explain_gives_the_reasons_of_a_waiting_job(run, tmp_path):
    path = tmp_path / "plan.json"
    run("plan", "library:lab", "-o", path)
    job = read_plan(path).waiting[0].job
    status, out, _ = run("explain", "library:lab", path, job)
    assert status == 0
    assert job in out
    status, out, _ = run("explain", "library:lab", path, job, "--json")
    assert json.loads(out)["job"] == job
    status, _, err = run("explain", "library:lab", path, "absent")
    assert status == 2
    assert "absent" in err


def test_explain_without_a_job_lists_all_waiting_jobs_and_all_unmeasured_pairs(run, tmp_path):
    path = tmp_path / "plan.json"
    assert run("plan", "library:lab", "-o", path)[0] == 0
    made, pairs = read_plan(path), list(UnknownPairs.of(library.load("lab")).names())
    status, out, _ = run("explain", "library:lab", path, "--json")
    data = json.loads(out)
    assert status == 0
    assert data["waiting"] == [row.to_data() for row in made.waiting]
    assert [tuple(pair) for pair in data["unknown_pairs"]] == pairs
    status, out, _ = run("explain", "library:lab", path)
    assert status == 0
    assert all(f"\n{row.job} " in f"\n{out}" for row in made.waiting)
    assert all(f"\n{a} + {b}\n" in out for a, b in pairs)
    assert len(pairs) > 3


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_is_no_fault(closed):
    command = f"{sys.executable} -m dovetail plan library:energy {closed}"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, timeout=LIMIT_S)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_explain_prints_the_first_thousand_of_many_unmeasured_pairs(run, tmp_path):
    file, path = tmp_path / "many.json", tmp_path / "plan.json"
    file.write_text(json.dumps(strangers(50).to_data()))
    status, out, _ = run("plan", file, "-o", path)
    assert status == 0
    assert "1125 of 1225 pairs of workloads have no known slowdown" in out
    status, out, _ = run("explain", file, path)
    assert status == 0
    assert "1,125 pairs of workloads without a known slowdown" in out
    assert out.count(" + ") < 1100
    assert "125 more (--json lists all)" in out
    status, out, _ = run("explain", file, path, "--json")
    assert len(json.loads(out)["unknown_pairs"]) == 1125


def test_measured_pairs_are_added_to_an_instance_of_ones_own(run, tmp_path):
    pairs, path, filled = (tmp_path / name for name in ("pairs.csv", "plan.json", "filled.yaml"))
    model, (a, b) = library.load("lab").cluster.nodes[0].gpu.model, ("mamba-new", "unet-ct-scans")
    pairs.write_text(
        "device,job_a,job_b,slowdown_a,slowdown_b\n"
        f"{model},{a},{b},1.01,1.02\n{model},{a},absent,1.5,1.5\n"
    )
    measured = ("--slowdowns", pairs)
    lines = [
        f"dovetail: {pairs}: workloads that the instance does not have: absent",
        f"dovetail: {pairs}: 1 of 2 rows are left out",
    ]
    status, _, err = run("plan", "library:lab", *measured, "-o", path)
    assert (status, err.splitlines()) == (0, lines)
    row = next(row for row in read_plan(path).assignments if row.job == "mamba-1")
    assert row.co_runners == (("unet-1",),)
    assert run("check", "library:lab", path)[0] == 1
    assert run("check", "library:lab", path, *measured)[0] == 0
    assert run("explain", "library:lab", path, "mamba-1", *measured)[0] == 0
    assert run("predict", "library:lab", *measured, "-o", filled)[0] == 0
    assert any(set(e.workloads) == {a, b} for e in read_instance(filled).slowdowns)
    status, out, err = run("plan", filled, *measured)
    assert status == 0
    pairs.write_text(pairs.read_text().replace("1.01", "1.4"))
    status, out, err = run("plan", filled, *measured, "-o", "-")
    assert (status, out, "must be as in the instance" in err.splitlines()[-1]) == (2, "", True)


def test_predict_fills_what_is_unknown_and_says_what_stays_so(run, tmp_path):
    path = tmp_path / "filled.json"
    status, out, err = run("predict", "library:lab", "-o", path)
    assert status == 0
    nothing_known, assumed = err.replace("\n  ", " ").splitlines()
    assert "unknown: pairs of mamba-new (no gpu_util)" in nothing_known
    assert "kernel_mean_s by 25 µs (12 workloads)" in assumed
    assert "slowdowns" in out
    assert len(read_instance(path).slowdowns) > len(library.load("lab").slowdowns)


def test_plan_with_a_predictor_needs_no_measured_slowdowns(run):
    _, out, _ = run("plan", "library:sm-allocation", "--json")
    alone = json.loads(out)["objective"]["value"]
    _, out, _ = run("plan", "library:sm-allocation", "--predictor", "analytic", "--json")
    assert json.loads(out)["objective"]["value"] > alone


def test_the_written_model_has_the_optimum_of_the_plan(run, tmp_path):
    # The file is minimised: minus the gain; of the energy ratio, N - t D, which is 0 at the best.
    sign = {"throughput": -1.0, "slowdown": 1.0, "energy": 0.0}
    models = [tmp_path / f"{objective}.mps" for objective in sign]
    expected = []
    for objective, model in zip(sign, models, strict=True):
        arguments = ("--objective", objective, "--write-model", model, "--json")
        arguments += ("--time-limit", "inf")  # kernels may be compiled within it
        _, out, _ = run("plan", "library:energy", *arguments)
        expected.append(sign[objective] * json.loads(out)["objective"]["value"])
    assert _optima_of_mps(*models) == pytest.approx(expected, abs=1e-6)


def _optima_of_mps(*paths):
    """Read the files with PuLP in a process of its own and solve them with CBC."""
    code = (
        "import pulp, sys\n"
        "for path in sys.argv[1:]:\n"
        "    _, problem = pulp.LpProblem.fromMPS(path)\n"
        "    problem.solve(pulp.PULP_CBC_CMD(msg=False))\n"
        "    print('optimum', pulp.value(problem.objective))\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    return [float(line.split()[1]) for line in lines if line.startswith("optimum")]


def test_library_lists_and_writes(run, tmp_path):
    status, out, _ = run("library")
    assert status == 0
    shipped = {*library.names(), *library.DATA_SETS.manifest}
    # A long title goes on below itself.
    assert {line.split()[0] for line in out.splitlines() if line[0] != " "} == shipped
    assert max(map(len, out.splitlines())) <= 80
    assert run("library", "lab", "-o", tmp_path / "lab.json")[0] == 0
    assert read_instance(tmp_path / "lab.json") == library.load("lab")
    assert set(json.loads(run("library", "--json")[1])) == shipped
    assert run("library", "-o", tmp_path / "list.json")[::2] == (
        2,
        "dovetail: --output needs the NAME of an instance or a data set\n",
    )


@pytest.mark.parametrize(
    ("arguments", "kind", "meant"),
    [
        (("library", "h200-2026-1"), "an instance or a data set", "h200-2026-11"),
        (("compare", "library:lab-wek"), "a trace", "lab-week"),
        (
            ("compare", "library:lab-day", "--world", "library:h200-wek"),
            "a trace, an instance or a data set",
            "h200-week",
        ),
    ],
)
def test_a_misspelled_name_of_what_is_shipped_gets_all_that_it_may_be(run, arguments, kind, meant):
    status, _, err = run(*arguments)
    assert status == 2
    assert err.startswith(f"dovetail: library: must be {kind}, one of ")
    assert err.endswith(f", did you mean {meant}?\n")


def test_library_describes_a_data_set(run, tmp_path):
    status, out, _ = run("library", "h200-2026-11")
    assert status == 0
    assert out.startswith("# h200-2026-11: ")
    assert run("library", "h200-2026-11", "-o", tmp_path / "README.md")[:2] == (0, "")
    assert (tmp_path / "README.md").read_text() == out
    entry = json.loads(run("library", "h200-2026-11", "--json")[1])
    assert entry["licence"] == "Apache-2.0"


def test_report_is_one_file(run, tmp_path):
    page = tmp_path / "page.html"
    assert run("plan", "library:lab", "--report", page)[0] == 0
    assert page.read_text().lstrip().lower().startswith("<!doctype html>")


def test_same_seed_same_plan(run):
    def assignments():
        return json.loads(run("plan", "library:lab", "--seed", 5, "--json")[1])["assignments"]

    assert assignments() == assignments()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bogus"], "dovetail: unrecognized arguments: --bogus (see dovetail --help)"),
        (
            ["submit", "--bogus", "--", "ls"],
            "dovetail submit: unrecognized arguments: --bogus (see dovetail submit --help)",
        ),
        (
            ["dataset", "show", "a", "b"],
            "dovetail dataset show: unrecognized arguments: b (see dovetail dataset show --help)",
        ),
        (["plan"], "dovetail: INSTANCE: is required, unless --from-live is given"),
        (["plan", "none.json"], "dovetail: none.json: cannot be read: no such file or directory"),
        (["plan", "library:none"], "got 'none'"),
        (["plan", "library:lab", "--objective", "x"], "invalid choice: 'x'"),
        (["plan", "library:lab", "--solver", "x"], "got 'x'"),
        (["plan", "library:lab", "--solver", "milp:NONE"], "PuLP knows no solver 'NONE'"),
        (["plan", "library:lab", "--predictor", "x"], "'x'"),
        (["plan", "library:lab", "--time-limit", "-1"], "must be a number of seconds >= 0"),
        (["plan", "library:lab", "--time-limit", "nan"], "must be a number of seconds >= 0"),
        (["plan", "library:lab", "--gap", "1"], "gap must be >= 0 and < 1, got 1.0"),
        (
            ["plan", "library:lab", "--seed", "1.5"],
            "must be a whole number >= 0 and < 4294967296, got '1.5'",
        ),
        (["plan", "library:first-pairs", "--objective", "energy"], "workloads.A.power_w"),
        (["plan", "library:first-pairs", "--objective", "jct"], "jobs[0].remaining_s"),
        (["plan", "library:gpu-models", "--solver", "matching"], "GPUs of several models"),
        (["plan", "library:first-pairs", "-o", "none/x.json"], "none/x.json: cannot be written"),
        (["plan", "library:first-pairs", "--report", "none/x.html"], "none/x.html"),
        (["plan", "library:first-pairs", "--write-model", "none/x.mps"], "none/x.mps"),
        (["plan", "x.json", "-o", "./x.json"], "./x.json: is another file of this command, too"),
        (["plan", "x.json", "-o", "-", "--report", "-"], "is another file of this command, too"),
        (["generate", "--jobs", "0"], "must be a whole number >= 1, got '0'"),
        (["generate", "--jobs", "many"], "must be a whole number >= 1, got 'many'"),
        (["import", "pairs", "none", "--gpus", "4"], "none: cannot be read"),
        (["import", "nothing"], "invalid choice: 'nothing'"),
    ],
)
def test_a_mistake_is_reported_in_one_line(run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(*arguments)
    assert status == 2
    assert out == ""
    assert err.count("\n") == 1
    assert message in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("row", INSTANCE, ids=[f"{k}-{row[0]}" for k, row in enumerate(INSTANCE)])
def test_every_broken_instance_leaves_one_line_and_no_output(run, tmp_path, row):
    path, value, message = row
    broken, output = tmp_path / "broken.json", tmp_path / "plan.json"
    broken.write_text(json.dumps(changed(example_data(), path, value)))
    status, out, err = run("plan", broken, "-o", output)
    assert (status, out) == (2, "")
    assert err == f"dovetail: {broken}: {message}\n"
    assert not output.exists()


@pytest.mark.parametrize("row", PLAN, ids=[f"{k}-{row[0]}" for k, row in enumerate(PLAN)])
def test_every_broken_plan_leaves_one_line(run, tmp_path, row):
    path, value, message = row
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(changed(plan_data(), path, value)))
    status, out, err = run("check", "library:lab", broken)
    assert (status, out) == (2, "")
    assert err == f"dovetail: {broken}: {message}\n"


def test_a_reader_that_leaves_early_gets_no_traceback():
    writer = subprocess.Popen(
        [sys.executable, "-m", "dovetail", "library", "lab"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert writer.stdout is not None
    assert writer.stderr is not None
    writer.stdout.read(10)
    writer.stdout.close()
    assert b"Traceback" not in writer.stderr.read()
    writer.stderr.close()
    writer.wait()


def test_a_file_that_the_system_refuses_is_named(run, monkeypatch, tmp_path):
    from dovetail.data import library

    monkeypatch.setattr(library, "library", lambda options: (tmp_path / "none").open())
    status, out, err = run("library")
    reason = "cannot be read or written: No such file or directory"
    assert (status, out, err) == (2, "", f"dovetail: {tmp_path}/none: {reason}\n")


def test_an_internal_error_is_one_line_that_says_how_to_see_more(run, monkeypatch):
    from dovetail.data import library

    def broken(options):
        raise ZeroDivisionError("of no consequence")

    monkeypatch.setattr(library, "library", broken)
    status, _, err = run("library")
    assert status == 1
    assert "internal error, please report it: ZeroDivisionError" in err
    assert err.count("\n") == 1
    monkeypatch.setenv("DOVETAIL_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["library"])


def test_without_a_command_the_help_is_printed(run):
    status, out, err = run()
    assert (status, err) == (0, "")
    assert out.startswith("usage: dovetail")
    assert "\n  plan        Write the best plan for an instance, with its proof\n" in out
    assert "dovetail init" in out
    assert run("help") == (status, out, err)
    assert run("help", "plan") == run("plan", "--help")
    assert run("version") == run("--version")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["pln", "x.yaml"],
            "dovetail: argument COMMAND: invalid choice: 'pln', did you mean plan?",
        ),
        (["dataset", "shw"], "argument COMMAND: invalid choice: 'shw', did you mean show?"),
        (
            ["plan", "x", "--solvr", "a"],
            "dovetail plan: unrecognized arguments: --solvr a, did you ",
        ),
        (["--verison"], "--verison, did you mean --version? (see dovetail --help)"),
        (["--json"], "dovetail: unrecognized arguments: --json (see dovetail --help)"),
        (["plan", "x", "--quiet"], "unrecognized arguments: --quiet (see dovetail plan --help)"),
        (["plan", "library:labb"], "got 'labb', did you mean lab?"),
        (["plan", "x", "--solvr", "a"], "did you mean --solver? (see dovetail plan --help)"),
        (["plan", "x", "--objective", "jtc"], "invalid choice: 'jtc', did you mean jct?"),
        (
            ["plan", "x", "--objective", "speed"],
            "invalid choice: 'speed' (choose from throughput, ",
        ),
        (["plan", "x", "-o", "p.csv"], "-o/--output: is written as JSON or YAML, got 'p.csv'"),
        (["generate", "--jobs", "9", "-o", "p.csv.gz"], "as JSON or YAML, got 'p.csv.gz'"),
    ],
)
def test_a_misspelt_option_is_reported_with_a_suggestion(run, arguments, message):
    status, out, err = run(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a module of a user's own, in which commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "from dovetail import JobValues\n"
        "class Fairness(JobValues):\n"
        "    def gain(self, job, slowdown, model):\n"
        "        return np.log1p(super().gain(job, slowdown, model))\n"
        "class Wrong(JobValues):\n"
        "    def gain(self, job, slowdown, model):\n"
        "        return 1 / 0\n"
    )


def test_an_objective_of_ones_own_is_named_by_its_module(run, own):
    status, out, err = run(
        "plan",
        "library:lab",
        "--objective",
        "python:mine.Fairness",
        "--verify",
        "-o",
        "p.json",
        "--compare",
        "--report",
        "page.html",
        "--write-model",
        "model.mps",
    )
    assert (status, err) == (0, "")
    assert "\npython:mine.Fairness  " in out
    assert "optimal" in out
    assert "python:mine.Fairness" in Path("page.html").read_text()
    status, out, _ = run("check", "library:lab", "p.json")
    assert status == 0
    assert "the plan's python:mine.Fairness was not checked, only throughput was" in out
    assert run("explain", "library:lab", "p.json")[0] == 0


def test_what_compiled_libraries_print_is_not_in_the_output(tmp_path):
    (tmp_path / "noisy.py").write_text(
        "import ctypes\n"
        "from dovetail import JobValues\n"
        "class Noisy(JobValues):\n"
        "    def gain(self, job, slowdown, model):\n"
        "        ctypes.CDLL(None).puts(b'debugging')\n"
        "        return super().gain(job, slowdown, model)\n"
    )
    words = ["plan", "library:first-pairs", "--objective", "python:noisy.Noisy", "--json"]
    command = [sys.executable, "-m", "dovetail", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)["assignments"]) == 3
    assert done.stderr == ""


def test_an_error_in_a_users_class_shows_their_traceback_and_asks_for_no_report(run, own):
    status, out, err = run("plan", "library:lab", "--objective", "python:mine.Wrong")
    assert (status, out) == (1, "")
    lines = err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].endswith('mine.py", line 8, in gain')
    assert lines[-1] == "dovetail: ZeroDivisionError in code of your own: division by zero"
    assert "dovetail/" not in err
    assert "report" not in err


HEAVY = ("asyncio", "dataclasses", "importlib.metadata", "numpy", "pydantic", "rich", "yaml")


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (("--help",), ()),
        (("--version",), ()),
        (("submit", "--help"), ()),
        (("queue",), ("dataclasses",)),
        (("cancel", "j1"), ("dataclasses",)),
    ],
    ids=lambda words: " ".join(words),
)
def test_a_command_loads_nothing_heavy_that_it_does_not_need(tmp_path, arguments, needed):
    code = (
        "import runpy, sys\n"
        "from contextlib import suppress\n"
        "with suppress(SystemExit):\n"
        "    runpy.run_module('dovetail', run_name='__main__')\n"
        f"print('loaded', *sorted(set({HEAVY}) & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"DOVETAIL_HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split() == ["loaded", *needed]


def searching(folder: Path, *options: str) -> tuple[subprocess.Popen[str], Path]:
    """Return a process in the middle of a search of minutes, and the file that it is to write."""
    long, output = folder / "long.json", folder / "plan.json"
    write_instance(generate(200, seed=1), long)
    command = [sys.executable, "-m", "dovetail", "plan", long, *options, "-o", output]
    search = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # Groups are listed within 2 s of a processor's time; then it searches, some in a child.
    process = psutil.Process(search.pid)
    wait_until(lambda: process.cpu_times().user > 3 or process.children())
    return search, output


@pytest.mark.parametrize(
    ("solver", "limit"),
    [
        ("cpsat", "600"),
        ("cpsat", "inf"),
        pytest.param("highs", "600", marks=pytest.mark.long),
        pytest.param("milp", "600", marks=pytest.mark.long),
    ],
)
def test_an_interrupt_ends_a_search_with_the_best_plan_so_far(run, tmp_path, solver, limit):
    options = ("--solver", solver, "--time-limit", limit, "--verify", "--compare")
    search, output = searching(tmp_path, *options)
    search.send_signal(signal.SIGINT)
    out, err = search.communicate(timeout=LIMIT_S)
    assert search.returncode == 130
    assert err == "dovetail: interrupted: the best plan so far follows\n"
    assert "stopped: interrupted" in out
    made = json.loads(output.read_text())
    assert made["status"] == "feasible"
    assert made["stopped"] == "interrupted"
    assert made["assignments"]
    assert (made["objective"]["gap"] or 1.0) > 0
    assert run("check", tmp_path / "long.json", output)[0] == 0


def test_the_time_limit_of_the_command_line_is_a_minute_unless_it_is_given():
    assert parsed(["plan", "library:lab"])[1].time_limit == 60.0
    assert parsed(["plan", "library:lab", "--time-limit", "inf"])[1].time_limit == math.inf
