"""The papers' experiments in tiny forms, and their figures."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.executor.waiting import LIMIT_S

PAPERS = Path(__file__).parents[2] / "benchmarks" / "papers"
DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(PAPERS))


def need(*parts):
    if not DATA.joinpath(*parts).exists():
        pytest.skip(f"no data at {DATA.joinpath(*parts)}: python benchmarks/fetch_data.py")


def run(script, *arguments):
    command = [sys.executable, "-W", "error", PAPERS / script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_contributions_and_speed_ups_by_hand():
    import runs

    from dovetail.executor.simulation.setup import Setup
    from dovetail.solver.policies.exclusive import Fifo
    from tests.executor.simulation.worlds import trace, world

    # Two GPUs, no pair may share: j0 holds both for 100 s; j1 waits for these and takes 50 s.
    scenario = Setup(trace((0, 2, 100, "a"), (0, 1, 50, "b")), world()).scenario(0)
    found = runs.measured(scenario.simulate(Fifo()), scenario)
    assert found["jct_small_s"] == pytest.approx((100 + 150) / 2)
    assert found["queueing_small_s"] == pytest.approx(100 / 2)
    assert found["jct_large_s"] == 0
    assert found["speedup_mean"] == 1
    assert found["wait_p99_s"] == pytest.approx(99)
    assert np.isnan(found["kernel_utilisation"])


def test_means_leave_out_runs_without_the_metric_and_ratios_are_of_the_same_scenario():
    import runs

    rows = [{"seed": str(k), "x": x, "error": ""} for k, x in enumerate(["2", "nan", "6"])]
    base = [{"seed": str(k), "x": x, "error": ""} for k, x in enumerate(["1", "1", "2"])]
    assert runs.number(rows, "x") == 4
    # 2 / 1 and 6 / 2.
    assert runs.ratio([rows[0], rows[2]], base, "x", ["seed"]) == 2.5
    assert np.isnan(runs.number([rows[1]], "x"))


def test_gang_sizes_are_those_of_the_paper():
    import castor

    sizes = np.array(list(castor._sizes(np.random.default_rng(0), 20_000)))
    # The standard error of a part of 20,000 is 0.0034.
    assert (sizes <= 8).mean() == pytest.approx(0.66, abs=0.015)
    assert (sizes == 32).mean() == pytest.approx(0.17, abs=0.012)
    assert set(sizes.tolist()) == {1, 2, 4, 8, 16, 32}


def test_a_workload_of_coscheml_has_every_application_twice():
    need("lucid")
    import coscheml

    world = coscheml._world("rtx3090", DATA, 3)
    jobs = coscheml.workload_of(world, 30.0, 4).jobs
    assert [job.arrival_s for job in jobs] == [30.0 * k for k in range(24)]
    names = [job.workload for job in jobs]
    assert len(set(names)) == 12
    assert all(names.count(name) == 2 for name in names)
    assert all(world.workloads[name].memory_mib <= coscheml.GPU_MIB for name in names)
    by_name = {}
    for job in jobs:
        assert by_name.setdefault(job.workload, job.duration_s) == job.duration_s
        assert 60 <= job.duration_s <= 600
    denser = coscheml.workload_of(world, 15.0, 4).jobs
    assert [job.workload for job in denser] == names


def test_gavel_takes_utilisations_of_the_nearest_batch_of_the_same_model():
    need("gavel")
    need("lucid")
    import worlds

    world = worlds.gavel(DATA, "v100", 2)
    used = {name: w.metrics.gpu_util for name, w in world.workloads.items()}
    # Lucid has b32, b64 and b128 of ResNet18 on CIFAR-10, without amp 0.58667 to 0.9625.
    assert used["ResNet-18 (batch size 16)"] == pytest.approx(0.58667)
    assert used["ResNet-18 (batch size 256)"] == pytest.approx(0.9625)
    assert used["A3C"] == pytest.approx(0.12425)
    assert len(world.places) == 16


@pytest.mark.slow
def test_tensorshare_in_a_tiny_form_and_again_from_its_file(tmp_path):
    need("muri")
    need("gavel")
    need("lucid")
    out = tmp_path / "out.csv"
    arguments = [
        *("--traces", "992", "--seeds", "1", "--nodes", "2", "--jobs", "30", "--workers", "1"),
        *("--policies", "dedicated", "fifo", "--check", "--out", str(out)),
    ]
    done = run("tensorshare.py", *arguments)
    assert done.returncode == 0, done.stderr
    rows = rows_of(out)
    assert len(rows) == 4
    assert {row["error"] for row in rows} == {""}
    assert all(float(row["slowdown_mean"]) == pytest.approx(1.0) for row in rows)
    assert "| dedicated | 0.0 (-) | nan (-) | nan (-) | 1.00 (1.00) | 1.00 (1.00)" in done.stdout
    # Cut off in the last row: only this run is done again.
    text = out.read_text()
    out.write_text(text[: text.rstrip().rfind(",")])
    again = run("tensorshare.py", *arguments)
    assert again.stdout == done.stdout
    assert again.stderr.count("\n") == 1
    assert len(rows_of(out)) == 4


@pytest.mark.slow
def test_castor_and_coscheml_in_tiny_forms(tmp_path):
    need("philly")
    need("lucid")
    small = ["--worlds", "rtx3090", "--seeds", "1", "--workers", "1", "--check"]
    out = tmp_path / "castor.csv"
    few = ["--jobs", "20", "--loads", "1", "--policies", "fifo", "sjf", "--out", str(out)]
    done = run("castor.py", *few, *small)
    assert done.returncode == 0, done.stderr
    assert [float(row["jobs"]) for row in rows_of(out)] == [20, 20]
    out = tmp_path / "coscheml.csv"
    one = ["--nodes", "3", "--intervals", "30", "--policies", "fifo", "--out", str(out)]
    done = run("coscheml.py", *one, *small)
    assert done.returncode == 0, done.stderr
    assert [float(row["jobs"]) for row in rows_of(out)] == [24]


def test_missing_data_are_reported_in_one_line(tmp_path):
    out = tmp_path / "out.csv"
    done = run("tensorshare.py", "--data", str(tmp_path), "--out", str(out))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "cannot be read" in done.stderr
    assert not out.exists()


def test_an_unknown_policy_is_refused_before_anything_runs(tmp_path):
    out = tmp_path / "out.csv"
    done = run("castor.py", "--policies", "fifo", "magic", "--out", str(out))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "policy must be one of" in done.stderr
    assert not out.exists()


def test_a_file_of_another_script_is_not_written_over(tmp_path):
    import runs

    from dovetail.instances.errors import DovetailError

    out = tmp_path / "out.csv"
    out.write_text("a,b\n1,2\n")
    with pytest.raises(DovetailError, match="has other columns"):
        runs._kept(out, ["a", "c"])
    assert out.read_text() == "a,b\n1,2\n"


def test_simple_models_and_transfer_on_synthetic_pairs(capsys):
    pytest.importorskip("sklearn", reason="needs the extra train")
    import learners

    from dovetail.predictors.estimators.registry import spec
    from tests.predictors.measured import measured

    data = measured(("V100", "A100"))
    learners.compare(data.replace(measurements=data.measurements[:36]))
    lines = capsys.readouterr().out.strip().splitlines()[1:]
    errors = {line[:22].strip(): float(line[22:30]) for line in lines}
    assert set(errors) == {*learners.SIMPLE, "sm_allocation"}
    assert all(error < 0.1 for error in errors.values())

    old, new = learners.by_gpu_model(data, spec("hierarchical"), "V100", "A100")
    test = learners.hidden(new, 0.25, seed=0)
    assert (len(old.slowdown), len(new.slowdown), test.sum()) == (72, 72, 54)
    stand_in = learners.fitted(spec("hierarchical"), old)
    # A job is slowed half as much on the A100.
    assert learners.error(stand_in, old) < 0.01 < learners.error(stand_in, new)
