"""``dovetail simulate`` and ``dovetail compare``: output, kept runs, resumption and refusals."""

import csv
import json
import math
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.cli.main import parser
from dovetail.executor.simulation.metrics import METRICS
from dovetail.executor.simulation.results import RunResult
from dovetail.instances.traces import library_trace
from dovetail.simulating.groups import RunsByPolicy, gain
from dovetail.solver.policies import POLICIES, Decision, Start, registry
from tests.executor.waiting import LIMIT_S, wait_until

DAY = "library:lab-day"
ONE = ("--jobs", 1)
"""Without processes, which take a second or two to start."""
WORLD = """
format: dovetail-instance/1
name: small
cluster:
  nodes: [{id: n0, gpu_count: 2, gpu: {model: V100, memory_mib: 16000}}]
workloads: {a: {memory_mib: 1000}, b: {memory_mib: 1000}}
jobs: []
slowdowns: [{pair: [a, b], slowdown: [1.5, 1.2]}]
"""
TRACE = """id,arrival_s,workers,duration_s,workload,gsla
j0,0,1,100,a,1.2
j1,0,2,50,b,
j2,10,1,30,a,
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A trace small enough to compute by hand, and its world."""
    monkeypatch.chdir(tmp_path)
    Path("trace.csv").write_text(TRACE)
    Path("world.yaml").write_text(WORLD)
    return "trace.csv", "--world", "world.yaml"


def test_a_run_is_summarised_by_its_metrics(run, small):
    # FIFO on two GPUs: j0 from 0 to 100, j1 (both GPUs) from 100 to 150, j2 from 150 to 180.
    status, out, err = run("simulate", *small, "--policy", "fifo")
    assert (status, err) == (0, "")
    assert "simulated: none of this was measured on a GPU" in out
    assert all(len(line) <= 100 for line in out.splitlines())
    shown = {line[:26].strip(): line for line in out.splitlines()}
    # (100 + 150 + 170) / 3 = 140 s.
    assert "2.33 min" in shown["JCT, mean"]
    assert "3.00 min" in shown["makespan"]
    assert "gSLA violation rate" in shown
    assert "sharing benefit, mean" not in shown


def test_the_machines_form_says_the_same(run, small):
    status, out, _ = run("simulate", *small, "--policy", "fifo", "--json")
    data = json.loads(out)
    assert status == 0
    assert data["simulated"] is True
    assert data["metrics"]["jct_mean_s"] == pytest.approx(140)
    assert data["metrics"]["sharing_benefit_mean"] is None
    assert list(data["metrics"]) == list(METRICS)
    assert '"preemptions": 0,' in out
    assert "world.yaml" in data["facts"]["world"]


def test_a_run_is_kept(run, small):
    assert run("simulate", *small, "--policy", "ssf", "-o", "kept")[0] == 0
    kept = RunResult.read("kept")
    assert (kept.policy, kept.seed) == ("ssf", 0)
    assert kept.jobs["job"].tolist() == ["j0", "j1", "j2"]
    assert run("simulate", *small, "--policy", "fifo", "-o", "kept")[0] == 0
    assert RunResult.read("kept").policy == "fifo"


def test_json_of_a_run_is_all_that_is_printed(run, small):
    status, out, _ = run("simulate", *small, "--policy", "fifo", "-o", "stored", "--json")
    assert (status, json.loads(out)["policy"]) == (0, "fifo")


def test_a_run_has_a_page_and_figures(run, small):
    pytest.importorskip("matplotlib")
    places = ("--report", "page.html", "--figures", "figures")
    status, out, err = run("simulate", *small, "--policy", "fifo", *places)
    assert (status, err) == (0, "")
    assert out.splitlines()[-2:] == ["-> page.html", "-> figures"]
    assert "mean JCT: fifo, 2.33\N{NO-BREAK SPACE}min" in Path("page.html").read_text()
    with open("figures/gpus-fifo.csv") as file:
        held = {(row["name"], row["gpu"]): float(row["end_s"]) for row in csv.DictReader(file)}
    # j1 has both GPUs until 150.
    assert held["j1", "0"] == held["j1", "1"] == 150
    assert Path("figures/load-fifo.pdf").read_bytes().startswith(b"%PDF")


def test_figures_of_others_are_not_overwritten(run, small):
    pytest.importorskip("matplotlib")
    Path("mine").mkdir()
    Path("mine/plot.pdf").write_text("")
    for command in (("simulate",), ("compare", *ONE)):
        status, _, err = run(command[0], *small, *command[1:], "--figures", "mine", "-o", "out")
        assert (status, err.count("\n")) == (2, 1)
        assert "mine: --figures: holds something other than figures" in err
        assert not Path("out").exists()


def test_policies_are_compared_side_by_side(run, small):
    status, out, err = run(
        "compare",
        *small,
        "--policies",
        "fifo,ssf,castor",
        "-o",
        "out",
        "--report",
        "page.html",
        *ONE,
    )
    assert (status, err) == (0, "")
    assert all(len(line) <= 100 for line in out.splitlines())
    assert "how many times better than fifo" in out
    assert "*" in out
    with open("out/results.csv") as file:
        rows = list(csv.DictReader(file))
    # Nothing is drawn: one seed says it all.
    assert [(row["policy"], row["seed"]) for row in rows] == [
        (p, "0") for p in ("fifo", "ssf", "castor")
    ]
    assert float(rows[0]["jct_mean_s"]) == pytest.approx(140)
    assert rows[0]["sharing_benefit_mean"] == ""
    page = Path("page.html").read_text()
    assert "castor" in page
    data = json.loads(Path("out/comparison.json").read_text())
    assert data["baseline"] == "fifo"
    assert [each["policy"] for each in data["policies"]] == ["fifo", "ssf", "castor"]
    assert data["policies"][0]["mean"]["jct_mean_s"] == pytest.approx(140)
    assert data["failed"] == []


def test_seeds_draw_what_the_trace_does_not_say(run, tmp_path):
    trace = tmp_path / "t.csv"
    rows = [f"j{k},{20 * k},1,{100 + 7 * k}" for k in range(30)]
    trace.write_text("\n".join(["id,arrival_s,workers,duration_s", *rows]) + "\n")
    size = ("--nodes", 1, "--gpus-per-node", 4)
    status, out, _ = run("compare", trace, "--policies", "castor", *size, "--json", *ONE)
    data = json.loads(out)
    assert status == 0
    assert [each["seed"] for each in data["runs"]] == [0, 1, 2]
    means = [each["metrics"]["jct_mean_s"] for each in data["runs"]]
    assert len(set(means)) == 3
    assert data["policies"][0]["mean"]["jct_mean_s"] == pytest.approx(sum(means) / 3)
    assert "workloads of 30 jobs, gSLAs of 30 jobs (uniform:1:2)" in data["facts"]["drawn"]
    assert data["facts"]["world"] == "synthetic"
    assert data["facts"]["slowdowns"].endswith("none measured")


def test_the_same_in_processes_and_without(run, tmp_path):
    common = ("compare", DAY, "--policies", "castor", "--seeds", 2, "--beliefs", "noise:0.2")
    found = []
    for jobs in (1, 2):
        assert run(*common, "--jobs", jobs, "-o", tmp_path / str(jobs), "--json")[0] == 0
        kept = sorted((tmp_path / str(jobs) / "runs").iterdir())
        found.append([(path.name, RunResult.read(path)) for path in kept])
    for (name, one), (other_name, other) in zip(*found, strict=True):
        assert name == other_name
        assert (one.jobs["finish_s"] == other.jobs["finish_s"]).all()


def test_what_is_there_is_not_run_again(run, small, monkeypatch):
    assert run("compare", *small, "--policies", "fifo,ssf", "-o", "out", *ONE)[0] == 0
    before = {path.name: path.stat().st_mtime_ns for path in Path("out/runs").iterdir()}
    assert run("compare", *small, "--policies", "ssf,sjf,fifo", "-o", "out", *ONE)[0] == 0
    after = {path.name: path.stat().st_mtime_ns for path in Path("out/runs").iterdir()}
    assert before.items() <= after.items()
    assert len(after) == 3
    with open("out/results.csv") as file:
        rows = [(row["policy"], row["jobs"]) for row in csv.DictReader(file)]
    assert rows == [("ssf", "3"), ("sjf", "3"), ("fifo", "3")]


@pytest.mark.parametrize(
    "change",
    [
        ("--restart", "10"),
        ("--load", "2"),
        ("--faster", "2"),
    ],
)
def test_a_comparison_of_something_else_is_not_overwritten(run, small, change):
    assert run("compare", *small, "--policies", "ssf", "-o", "out", *ONE)[0] == 0
    before = {path: path.read_bytes() for path in Path("out").rglob("*.*") if path.is_file()}
    other = ("--policies", "fifo", "-o", "out", "--seeds", 1, *change, *ONE)
    status, out, err = run("compare", *small, *other)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "out: --output: contains a comparison with another trace, world, beliefs or" in err
    after = {path: path.read_bytes() for path in Path("out").rglob("*.*") if path.is_file()}
    assert after == before


class Never:
    """Starts no job."""

    def decide(self, state):
        return Decision()


class Lame:
    """FIFO that fails on all but the first two runs that are made of it."""

    made = 0

    def __init__(self):
        Lame.made += 1
        self._lame = Lame.made > 2
        self._fifo = registry.policy_class("fifo")()

    def decide(self, state):
        return Decision() if self._lame else self._fifo.decide(state)


class Broken:
    """Puts every job on GPU 0, as if it had one worker."""

    def decide(self, state):
        return Decision(starts=tuple(Start(job, (0,)) for job in state.pending.values()))


@pytest.fixture
def bad_policies(monkeypatch):
    named = {"never": Never, "broken": Broken, "lame": Lame}
    monkeypatch.setattr(Lame, "made", 0)
    old = registry.policy_class
    monkeypatch.setattr(registry, "POLICIES", {**POLICIES, **dict.fromkeys(named, "")})
    monkeypatch.setattr(registry, "policy_class", lambda name: named.get(name) or old(name))


def test_a_policy_that_fails_is_reported_and_the_others_go_on(run, small, bad_policies):
    policies = "never,fifo,broken"
    many = ("--policies", policies, "--seeds", 2, "-o", "out", "--report", "page.html")
    status, out, err = run("compare", *small, *many, *ONE)
    assert status == 1
    assert err.splitlines() == [
        "dovetail: failed: never, seeds 0, 1: the policy leaves 3 jobs waiting for ever (at 10 s)",
        "dovetail: failed: broken, seeds 0, 1: the policy gives 'j1' 1 GPUs for 2 workers (at 0 s)",
    ]
    assert "fifo" in out
    data = json.loads(Path("out/comparison.json").read_text())
    assert [each["policy"] for each in data["failed"]] == ["never", "broken"] * 2
    assert "never, seeds 0, 1: the policy leaves 3 jobs" in Path("page.html").read_text()


def test_means_leave_out_seeds_in_which_a_policy_failed(run, small, bad_policies):
    # The first is made to check its name; so it fails in the second seed.
    many = ("--policies", "lame,ssf", "--seeds", 2, "--gsla", "uniform:1:2", "-o", "out")
    status, out, err = run("compare", *small, *many, "--estimate-error", 1, *ONE)
    assert (status, "failed: lame, seed 1: the policy leaves" in err) == (1, True)
    assert "0 (left out, since a policy failed: 1)" in out
    data = json.loads(Path("out/comparison.json").read_text())
    assert data["facts"]["seeds"] == "0 (left out, since a policy failed: 1)"
    assert [each["seeds"] for each in data["policies"]] == [1, 1]
    assert [(each["policy"], each["seed"]) for each in data["runs"]] == [
        ("lame", 0),
        ("ssf", 0),
        ("ssf", 1),
    ]
    ssf = data["runs"][1]["metrics"]["jct_mean_s"]
    assert data["policies"][1]["mean"]["jct_mean_s"] == ssf


OWN = """
class SmallFirst:
    def decide(self, state):
        raise ValueError("oops")
"""


def test_a_policy_of_ones_own_has_the_name_that_one_gives_it(run, small, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    Path("mine.py").write_text(OWN.replace('raise ValueError("oops")', "return fifo.decide(state)"))
    with Path("mine.py").open("a") as file:
        file.write(
            "from dovetail.solver.policies import policy_named\nfifo = policy_named('fifo')\n"
        )
    policies = ("--policies", "fifo,small=python:mine.SmallFirst", "--baseline", "small")
    status, out, _ = run("compare", *small, *policies, "-o", "out", "--report", "p.html", *ONE)
    assert status == 0
    assert "how many times better than small" in out
    assert "python:" not in out + Path("p.html").read_text()
    assert run("compare", *small, *policies, "-o", "out", *ONE)[0] == 0
    assert len(list(Path("out/runs").iterdir())) == 2


def test_an_error_in_a_policy_of_ones_own_is_shown_where_it_is(run, small, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    Path("mine.py").write_text(OWN)
    status, _, err = run("simulate", *small, "--policy", "python:mine.SmallFirst")
    assert status == 1
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.endswith("dovetail: ValueError in code of your own: oops\n")
    status, _, err = run("compare", *small, "--policies", "mine=python:mine.SmallFirst", *ONE)
    assert status == 1
    assert err.startswith("dovetail: failed: mine, seed 0: ValueError: oops (")
    assert err.endswith("mine.py, line 4, in decide)\n")


@pytest.mark.parametrize(
    ("decide", "rule", "exit_status"),
    [
        ("def decide(self, state): return None", "return a Decision, got NoneType", 1),
        ("def decide(self): pass", "take the argument state: too many positional arguments", 2),
    ],
)
def test_a_policy_of_ones_own_that_breaks_the_protocol_is_one_line(
    run, small, monkeypatch, decide, rule, exit_status
):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    Path("mine.py").write_text(f"class Odd:\n    {decide}\n")
    message = f"python:mine.Odd.decide must {rule}\n"
    assert run("simulate", *small, "--policy", "python:mine.Odd") == (2, "", f"dovetail: {message}")
    status, _, err = run("compare", *small, "--policies", "odd=python:mine.Odd", *ONE)
    assert (status, err.count("\n")) == (exit_status, 1)
    assert err.endswith(message)


@pytest.mark.parametrize("policies", ["a=python:m.C,a=python:m.D", "fifo=python:m.C"])
def test_names_of_policies_are_taken_once(run, small, policies):
    status, out, err = run("compare", *small, "--policies", policies, *ONE)
    assert (status, out, err.count("\n")) == (2, "", 1)


def test_a_policy_that_fails_alone_is_one_line(run, small, bad_policies):
    status, _, err = run("simulate", *small, "--policy", "never")
    assert status == 2
    assert err == "dovetail: the policy leaves 3 jobs waiting for ever (at 10 s)\n"
    assert run("compare", *small, "--policies", "never", "--report", "page.html")[0] == 1
    assert not Path("page.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policy", "best"), "policy must be one of"),
        (("--policy", "castr"), "got 'castr', did you mean castor?"),
        (("--policy", "fifo:"), "policy 'fifo:': an option is written NAME=VALUE, got ''"),
        (("--policy", "ssf:backfill=true,"), "an option is written NAME=VALUE, got ''"),
        (("--policy", "python:absent.Mine"), "cannot be imported as python:MODULE.CLASS"),
        (("--policy", "python:math.pi"), "'python:math.pi' must be a class with a method decide"),
        (("--policy", "python:Mine"), "cannot be imported as python:MODULE.CLASS"),
        (("--policy", "castor:x=1"), "policy 'castor' has no option 'x': its options are"),
        (("--policy", "ssf:backfill"), "an option is written NAME=VALUE, got 'backfill'"),
        (("--gsla", "uniform:0:2"), "--gsla: must be like one of none, fixed:1.5"),
        (("--beliefs", "hope"), "--beliefs: beliefs must be one of exact, noise:SIGMA"),
        (("--beliefs", "noise:-1"), "--beliefs: "),
        (("--beliefs", "model:absent.json"), "absent.json: cannot be read"),
        (("--round", "-1"), "--round: must be a finite number >= 0, got -1.0"),
        (("--restart", "nan"), "--restart: must be a finite number >= 0, got nan"),
        (("--mtbf", "0"), "--mtbf: must be > 0 (hours), got 0"),
        (("--mtbf", "9", "--repair", "-1"), "--repair: must be > 0 (hours), got -1"),
        (("--repair", "2"), "--repair: needs --mtbf: without it no node fails"),
        (("--estimate-error", "-1"), "--estimate-error: must be a finite number >= 0"),
        (("--window", "2"), "argument --window: must be FROM:TO in hours, got '2'"),
        (("--window", "5:2"), "0 <= FROM < TO, got 5:2"),
        (("--window", "50:60"), "must leave at least one job"),
        (("--busiest", "9"), "--busiest: must be between 1 and the 3 jobs of the trace, got 9"),
        (("--sample", "9"), "--sample: must be <= 3 (the number of jobs), got 9"),
        (("--load", "0"), "--load: must be a finite number > 0, got 0"),
        (("--load", "nan"), "--load: must be a finite number > 0, got nan"),
        (("--faster", "0"), "--faster: must be a finite number > 0, got 0"),
        (("--load", "1", "--faster", "2"), "--load, --faster: sets how fast jobs arrive already"),
        (("--nodes", "0"), "argument --nodes: must be a whole number >= 1, got '0'"),
        (
            ("--gpu-model", ""),
            "argument --gpu-model: must name GPU models, comma separated, got ''",
        ),
        (("--gpu-model", "V100,"), "must name GPU models, comma separated, got 'V100,'"),
        (("-o", "-"), "--output: must be a name, got '-': --json prints all metrics"),
        (
            ("--gpu-model", "A100", "--nodes", 1),
            "world.yaml: --gpu-model: must be one of V100, got 'A100'",
        ),
        (("--format", "excel"), "--format: must be one of csv, parquet"),
        (("--gpus-per-node", "1", "--nodes", "1"), "jobs[1].workers: must be <= 1"),
        (("-o", "trace.csv"), "trace.csv: is another file of this command, too"),
        (("-o", "notes.txt"), "notes.txt: holds something other than a run"),
        (("-o", "trace.csv/out"), "cannot be written"),
    ],
)
def test_a_mistake_is_one_line(run, small, arguments, message):
    Path("notes.txt").write_text("")
    status, out, err = run("simulate", *small, *("--policy", "fifo"), *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "trace: cannot be read: no such file or directory"),
        ("", "must have the columns id, arrival_s"),
        ("id,arrival_s,workers,duration_s\n", "must have at least one job, got none"),
        ("id,arrival_s,workers,duration_s\na,0,none,3\n", "line 2"),
        (
            "id,arrival_s,workers,duration_s,gpus\n",
            "line 1: unknown column 'gpus', known: id, arrival_s, workers, duration_s, workload, "
            "gsla, weight, priority, tenant, workers_per_node, workers_together\n",
        ),
        ("id,arrival_s,workers,duration_s\na,0,1,-3\n", "duration_s"),
        ("\x00\x01", "trace"),
    ],
)
def test_a_broken_trace_is_one_line(run, tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("trace").write_text(text)
    status, out, err = run("simulate", "trace", "--policy", "fifo", "--nodes", 1)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["simulate", "compare"])
@pytest.mark.parametrize("size", [(), ("--gpus-per-node", 4)])
def test_the_size_of_the_cluster_is_never_guessed(run, small, command, size):
    status, out, err = run(command, "trace.csv", *size)
    assert (status, out) == (2, "")
    assert err.startswith("dovetail: --nodes: is required: how many nodes does the cluster have (")
    assert err.count("\n") == 1


def test_a_trace_that_does_not_exist_is_said_before_anything_is_asked(run):
    message = "dovetail: nope.csv: cannot be read: no such file or directory\n"
    assert run("simulate", "nope.csv") == (2, "", message)


def test_a_cluster_on_which_nothing_ever_waits_is_warned_of(run, small):
    warning = "nothing waits, so policies hardly differ: give fewer --nodes, or a higher"
    idle = ("--nodes", 1, "--gpus-per-node", 64)
    for arguments, warned in (((*small, *idle), True), (small, False)):
        for command, policies in (("simulate", "--policy"), ("compare", "--policies")):
            _, out, _ = run(command, *arguments, policies, "fifo", "--json")
            assert (warning in json.loads(out)["facts"].get("warning", "")) == warned


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policies", "fifo,best"), "policy must be one of"),
        (("-o", "-"), "--output: must be a name, got '-'"),
        (("--report", "-"), "--report: must be a name, got '-'"),
        (("--policies", ","), "argument --policies: must name at least one policy, got ','"),
        (("--baseline", "ssf"), "--baseline: must be one of --policies (fifo), got 'ssf'"),
        (("-o", "world.yaml"), "world.yaml: is another file of this command, too"),
        (("-o", "full"), "full: --output: holds something other than a comparison"),
        (("-o", "full/thesis.tex"), "full/thesis.tex: --output: must be a folder, got a file"),
        (("--report", "absent/page.html"), "absent/page.html: --report: must be in a folder that"),
        (("--report", "trace.csv"), "trace.csv: is another file of this command, too"),
        (("--gpus-per-node", "1", "--nodes", "1"), "jobs[1].workers: must be <= 1"),
        (("--jobs", "0"), "argument --jobs: must be a whole number >= 1, got '0'"),
    ],
)
def test_a_mistake_is_reported_before_anything_is_run(run, small, arguments, message):
    Path("full").mkdir()
    Path("full/thesis.tex").write_text("mine")
    status, out, err = run("compare", *small, *("--policies", "fifo"), *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert [path.name for path in Path("full").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_a_folder_that_cannot_be_written_is_reported(run, small, command):
    policy = "--policy" if command == "simulate" else "--policies"
    status, out, err = run(command, *small, policy, "fifo", "-o", "/proc/out")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "/proc/out" in err
    assert "cannot be written" in err


@pytest.mark.parametrize(
    ("text", "policies"),
    [
        ("fifo,ssf", ("fifo", "ssf")),
        ("sjf:a=1,b=2,fifo", ("sjf:a=1,b=2", "fifo")),
        ("a:x=1,b:y=2,z=3", ("a:x=1", "b:y=2,z=3")),
        ("fifo, ssf,fifo", ("fifo", "ssf")),
        ("python:m.C:x=1,y=2,fifo", ("python:m.C:x=1,y=2", "fifo")),
        ("fifo,own=python:m.C:x=1,y=2", ("fifo", "own=python:m.C:x=1,y=2")),
    ],
)
def test_policies_are_split_at_the_right_commas(text, policies):
    options = parser().parse_args(["compare", "t.csv", "--policies", text])
    assert options.policies == policies


def test_part_of_a_trace_is_taken_before_the_load(run, small):
    # Window: j2 and no other job. Its time to arrive counts from the first that is left.
    status, out, _ = run("simulate", *small, "--policy", "fifo", "--window", "0.002:1", "--json")
    data = json.loads(out)
    assert status == 0
    assert data["metrics"]["jobs"] == 1
    assert data["metrics"]["makespan_s"] == pytest.approx(30)
    assert data["facts"]["jobs"].startswith("1 of 3, ")
    assert data["facts"]["load"] == "all jobs arrive at once"


def test_gslas_of_a_trace_that_has_some_are_left_alone(run, small):
    _, out, _ = run("simulate", *small, "--policy", "fifo", "--json")
    assert "drawn" not in json.loads(out)["facts"]
    _, out, _ = run("simulate", *small, "--policy", "fifo", "--json", "--gsla", "fixed:2")
    assert json.loads(out)["facts"]["drawn"] == "gSLAs of 2 jobs (fixed:2)"


def test_workloads_that_the_world_lacks_are_distinguished_from_missing_ones(run, small):
    Path("other.csv").write_text(TRACE.replace("30,a", "30,c").replace("50,b", "50,"))
    _, out, _ = run("simulate", "other.csv", *small[1:], "--policy", "fifo", "--json")
    drawn = json.loads(out)["facts"]["drawn"]
    assert drawn == "workloads of 2 jobs (1 unknown to the world)"


def test_the_load_is_that_of_what_is_simulated(run, small):
    # 100 + 2 x 50 + 30 GPU seconds, of 2 x 10 that there are while jobs arrive.
    _, out, _ = run("simulate", *small, "--policy", "fifo", "--json")
    load = "11.50 x what the GPUs can do"
    assert json.loads(out)["facts"]["load"] == load
    _, out, _ = run("simulate", *small, "--policy", "fifo", "--json", "--sample", 1)
    assert json.loads(out)["facts"]["load"] == f"about {load.replace('11.50', '3.83')}"
    Path("once.csv").write_text(TRACE.replace("j2,10", "j2,0"))
    _, out, _ = run("simulate", "once.csv", *small[1:], "--policy", "fifo", "--json")
    assert json.loads(out)["facts"]["load"] == "all jobs arrive at once"


def test_a_report_that_cannot_be_written_is_refused_before_anything_is_run(run, small):
    Path("pages").mkdir()
    for place, rule in (("pages", "must be a file, got a folder"), ("no/a.html", "that exists")):
        status, _, err = run("compare", *small, "-o", "kept", "--report", place)
        assert (status, rule in err) == (2, True)
    assert not Path("kept").exists()


def test_a_kept_run_that_is_damaged_says_which_folder_to_delete(run, small):
    common = ("compare", *small, "--policies", "fifo", "-o", "out", "--report", "page.html", *ONE)
    assert run(*common)[0] == 0
    (kept,) = Path("out/runs").iterdir()
    (damaged,) = kept.glob("jobs.*")
    damaged.write_bytes(b"PAR1 what is this")
    status, _, err = run(*common)
    assert (status, err.count("\n")) == (2, 1)
    assert str(damaged) in err
    assert f"delete the folder {kept} to repeat the run" in err
    shutil.rmtree(kept)
    assert run(*common)[0] == 0


def test_huge_figures_stay_in_their_columns(run, small):
    rows = TRACE.replace(",100,", ",1e11,").replace(",50,", ",1e10,")
    Path("huge.csv").write_text(rows)
    status, out, _ = run("compare", "huge.csv", *small[1:], "--policies", "fifo,ssf", *ONE)
    assert status == 0
    assert all(len(line) <= 100 for line in out.splitlines())
    assert "501,543 d" in out
    status, out, _ = run("simulate", "huge.csv", *small[1:], "--policy", "fifo")
    assert all(len(line) <= 100 for line in out.splitlines())


MINE = """
from dataclasses import dataclass
from dovetail.solver.policies.exclusive import Fifo


@dataclass(frozen=True)
class Late(Fifo):
    after_s: float = 0.0

    def decide(self, state):
        return type(super().decide(state))() if state.now < self.after_s else super().decide(state)
"""


def test_a_policy_of_ones_own_is_compared(run, small, monkeypatch):
    # As FIFO, but no job starts before j2 has come, at 10 s: 10 to 110, to 160, to 190.
    Path("own.py").write_text(MINE)
    policies = ("--policies", "fifo,python:own.Late:after_s=5", "-o", "out")
    process = start("compare", *small, *policies, "--jobs", 2)
    _, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, err) == (0, "")
    with open("out/results.csv") as file:
        rows = list(csv.DictReader(file))
    assert [(row["policy"], float(row["makespan_s"])) for row in rows] == [
        ("fifo", 180),
        ("python:own.Late:after_s=5", 190),
    ]
    kept = set(Path("out/runs").iterdir())
    Path("own.py").write_text(MINE + "\n# changed")
    monkeypatch.syspath_prepend(Path.cwd())
    sys.modules.pop("own", None)
    assert run("compare", *small, *policies, *ONE)[0] == 0
    (new,) = set(Path("out/runs").iterdir()) - kept
    assert "python_own.Late" in new.name


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("python:own.Late:before_s=5", "has no option 'before_s': its options are after_s"),
        ("python:own.Late:after_s=x", "after_s must be of type float, got 'x'"),
        (
            "python:faulty.Late",
            "cannot be imported as python:MODULE.CLASS: name 'absent' is not defined",
        ),
        (
            "python:own.Early",
            "cannot be imported as python:MODULE.CLASS: module 'own' has no attribute 'Early'",
        ),
    ],
)
def test_mistakes_in_naming_a_policy_of_ones_own(run, small, policy, message, monkeypatch):
    Path("own.py").write_text(MINE)
    Path("faulty.py").write_text("absent.name")
    monkeypatch.syspath_prepend(Path.cwd())
    sys.modules.pop("own", None)
    status, out, err = run("simulate", *small, "--policy", policy)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_a_shipped_trace_brings_its_world(run):
    status, out, _ = run("simulate", DAY, "--policy", "castor", "--json")
    data = json.loads(out)
    assert status == 0
    assert data["metrics"]["jobs"] == len(library_trace("lab-day").jobs)
    assert data["facts"]["world"] == DAY
    assert data["facts"]["slowdowns"].endswith("none measured")


def test_shipped_measurements_are_a_world(run):
    world = ("--world", "library:h200-2026-11", "--nodes", 1)
    status, out, err = run("simulate", DAY, *world, "--policy", "fifo", "--json")
    assert (status, err) == (0, "")
    facts = json.loads(out)["facts"]
    assert (facts["world"], facts["slowdowns"]) == ("library:h200-2026-11", "59 pairs")
    status, out, err = run("simulate", "library:h200-week", "--policy", "fifo", "--json")
    assert (status, err) == (0, "")
    facts = json.loads(out)["facts"]
    assert (facts["world"], facts["slowdowns"]) == ("library:h200-week", "59 pairs")


def result(policy, seed=0, **metrics):
    summary = dict.fromkeys(METRICS, math.nan) | metrics
    return RunResult(policy, seed, summary, {}, {}, {})


def test_how_many_times_better():
    runs = [
        result("one", jct_mean_s=100.0, throughput_jobs_h=2.0, violation_rate=0.5),
        result("two", jct_mean_s=50.0, throughput_jobs_h=3.0, violation_rate=0.0),
    ]
    one, two = RunsByPolicy.of(runs).every
    assert gain(two, one, "jct_mean_s") == 2
    assert gain(two, one, "throughput_jobs_h") == 1.5
    # A rate of 0 is neither 0 times nor infinitely better than another.
    for ours, theirs in ((two, one), (one, two), (two, two)):
        assert math.isnan(gain(ours, theirs, "violation_rate"))
    assert math.isnan(gain(one, two, "energy_kwh"))


def start(*arguments):
    """Start the installed program; SIGINT reaches it even if it is ignored here."""
    return subprocess.Popen(
        [sys.executable, "-m", "dovetail", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def wait_for_a_run(process, folder):
    runs = folder / "runs"

    def one_is_there():
        assert process.poll() is None, process.communicate()
        return runs.is_dir() and any(not p.name.startswith(".") for p in runs.iterdir())

    wait_until(one_is_there)


def children(pid):
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


def alive(pid):
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_comparison_goes_on_where_it_stopped(run, tmp_path, number):
    # lab-week takes a moment; 60 runs of it outlast the first by far.
    folder, seeds = tmp_path / "out", 60
    week = ("compare", "library:lab-week", "--policies", "castor", "--estimate-error", "0.5")
    process = start(*week, "--seeds", seeds, "--jobs", 2, "-o", folder)
    wait_for_a_run(process, folder)
    helpers = children(process.pid)
    process.send_signal(number)
    _, err = process.communicate(timeout=LIMIT_S)
    wait_until(lambda: not any(map(alive, helpers)))
    done = {p for p in (folder / "runs").iterdir() if not p.name.startswith(".")}
    assert 0 < len(done) < seeds
    for path in done:
        RunResult.read(path)
    if number == signal.SIGINT:
        assert process.returncode == 130
        message = f"interrupted: the same command continues after {len(done)} of {seeds} runs"
        assert err == f"dovetail: {message}\n"
        assert set((folder / "runs").iterdir()) == done
    stamps = {path: path.stat().st_mtime_ns for path in done}
    few = len(done) + 1
    status, out, err = run(*week, "--seeds", few, *ONE, "-o", folder)
    assert (status, err) == (0, "")
    assert "castor" in out
    assert {path: path.stat().st_mtime_ns for path in done} == stamps
    with open(folder / "results.csv") as file:
        assert len(list(csv.DictReader(file))) == few


@pytest.mark.slow
def test_no_gsla_is_broken_in_the_shipped_week(run, tmp_path):
    """Beliefs are true there; jobs stay at their caps when their co-runners have ended."""
    status, _, _ = run("simulate", "library:lab-week", "-o", tmp_path / "out")
    assert status == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["metrics"]["violation_rate"] == 0
    assert summary["metrics"]["violation_rate_shared"] == 0


def test_help_does_not_load_the_simulator():
    code = (
        "import sys; from dovetail.cli.main import parser; parser();"
        "print([m for m in sys.modules if 'numpy' in m or 'simulation' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def load_of(out):
    return json.loads(out)["facts"]["load"].split(" x ")[0]


def test_the_offered_load_is_set_by_load_and_arrivals_by_faster(run, small):
    plain = ("simulate", *small, "--policy", "fifo", "--json")
    before = float(load_of(run(*plain)[1]))
    assert load_of(run(*plain, "--load", "0.75")[1]) == "0.75"
    assert float(load_of(run(*plain, "--faster", "2")[1])) == pytest.approx(2 * before, abs=0.01)
    sampled = run(*plain, "--load", "0.75", "--sample", "2")[1]
    assert load_of(sampled) == "about 0.75"
    facts = json.loads(run(*plain, "--load", "40")[1])["facts"]
    assert facts["warning"].startswith("overload: waits depend on where the trace ends")
