"""The first campaign: its dry run on a processor core, its report, its plan."""

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from dovetail.executor.gpus.nvml import Nvml, NvmlError
from dovetail.instances.datasets import read_dataset
from dovetail.measuring.campaign import experiments, read_campaign
from dovetail.measuring.ledger import read_ledger, settled
from dovetail.predictors.model_file import load_model
from tests.measuring import synthetic_campaign

FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu"
TORCH_PYTHON = os.environ.get("DOVETAIL_TORCH_PYTHON") or (
    sys.executable if find_spec("torch") else None
)
QUICK = "constant,sm_allocation"
needs_torch = pytest.mark.skipif(
    TORCH_PYTHON is None,
    reason="needs PyTorch; DOVETAIL_TORCH_PYTHON may name a Python that has it",
)


def run_slice(out, minutes):
    environment = {**os.environ, "PYTHON": sys.executable, "DOVETAIL_TORCH_PYTHON": TORCH_PYTHON}
    command = ["bash", FOLDER / "run.sh", out, "--cpu", "--minutes", str(minutes)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def report(out):
    pytest.importorskip("sklearn", reason="needs scikit-learn (extra train)")
    command = [sys.executable, "-W", "error", FOLDER / "report.py", out, "--models", QUICK]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return (out / "report" / "report.md").read_text()


@pytest.mark.slow
@needs_torch
def test_dry_run_end_to_end(tmp_path):
    out = tmp_path / "out"
    # 0.55 minutes, less what is kept for stopping, are 13 s: not enough for all.
    first = run_slice(out, 0.55)
    assert first.returncode == 3, first.stdout + first.stderr
    second = run_slice(out, 5)
    assert second.returncode == 0, second.stdout + second.stderr
    found = read_ledger(out)
    planned = {one.key for one in experiments(found.campaign)}
    assert settled(found.results) == planned
    assert found.machine.stand_in
    pairs = {one.workloads for one in read_dataset(out).measurements}
    assert {frozenset(pair) for pair in pairs} == {
        frozenset({"gemm"}),
        frozenset({"burst"}),
        frozenset({"gemm", "burst"}),
    }
    # Few files, no folders: what a machine without a network can hand back.
    assert {path.name for path in out.iterdir()} == {
        *(
            "doctor.json",
            "log.txt",
            "pairs.csv",
            "profiles.csv",
            "repository.db",
            "summary.txt",
        ),
    }
    text = report(out)
    assert "NO GPU" in text
    assert re.search(r"^latency +setting", text, re.M)
    assert "No power was measured" in text


@pytest.fixture
def slices(monkeypatch):
    """The script of a slice."""
    spec = spec_from_file_location("campaign_slice", FOLDER / "slice.py")
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    monkeypatch.setattr(found, "RESERVE_S", 0.0)
    return found


def shell(command):
    return "bash", "-c", command


def carried_out(slices, out, steps, seconds=60.0):
    status = slices.Slice(out, time.monotonic() + seconds).carry_out(steps)
    lines = (out / "log.txt").read_text(errors="replace").splitlines()
    return status, [line.partition(" | ")[2] for line in lines]


def test_a_step_that_hangs_is_given_up_and_the_next_begins(slices, tmp_path):
    steps = [
        slices.Step("hangs", shell("trap 'exit 130' INT; sleep 60 & wait"), 0, most_s=0.5),
        slices.Step("next", shell("echo here"), 0, "here.txt"),
    ]
    status, output = carried_out(slices, tmp_path, steps)
    assert status == 0
    assert any(line.startswith("hangs: given up after") for line in output)
    assert (tmp_path / "here.txt").read_text() == "here\n"


def test_a_step_that_fails_says_why_and_is_tried_once_more(slices, tmp_path):
    fails = slices.Step("fails", shell("echo 'dovetail: no luck' >&2; exit 2"), 0)
    for expected in (3, 0):
        status, output = carried_out(slices, tmp_path, [fails])
        assert status == expected
    assert sum(line.endswith("status 2 after 0 s: dovetail: no luck") for line in output) == 2


def test_a_worker_without_a_log_and_a_log_of_odd_bytes_end_nothing(slices, tmp_path):
    # As where time is up while workers start: one has no log yet, one has said half a character.
    logs = "mkdir -p pool/runs/a/rank0 pool/runs/b; printf 'hi \\303' | tee pool/runs/a/rank0/log"
    first = slices.Step("first", shell(f"cd {tmp_path}; {logs} >&2"), 0)
    next_one = slices.Step("next", shell("true"), 0)
    status, output = carried_out(slices, tmp_path, [first, next_one])
    assert status == 0
    assert output[-1] == slices.DONE
    log = (tmp_path / "log.txt").read_text(errors="replace")
    assert "== a\nhi \ufffd\n" in log
    assert "== b\n\n" in log


def test_a_step_that_needs_another_slice_is_gone_on_with(slices, tmp_path):
    goes_on = slices.Step("long", shell("[ -f seen ] || exit 3"), 0, unfinished=(3,))
    slow = slices.Step("slow", shell("sleep 60"), 0)
    late = slices.Step("late", shell("true"), 30)
    assert carried_out(slices, tmp_path, [goes_on])[0] == 3
    assert carried_out(slices, tmp_path, [slow], seconds=0.1)[0] == 3
    status, output = carried_out(slices, tmp_path, [late], seconds=20)
    assert (status, output[-1]) == (3, "late: is left to the next slice")


def test_without_a_gpu_one_line_says_so(tmp_path):
    with suppress(NvmlError), Nvml():
        pytest.skip("there is a driver here")
    command = ["bash", FOLDER / "run.sh", tmp_path / "out"]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("run.sh: nothing can be measured: ")
    assert not (tmp_path / "out").exists()


def test_without_pytorch_one_line_says_so_and_nothing_counts_as_tried(tmp_path):
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    command = ["bash", FOLDER / "run.sh", tmp_path / "out", "--cpu"]
    for python, why in ((bare, "has no PyTorch"), (tmp_path, "cannot be run: Permission denied")):
        environment = {**os.environ, "PYTHON": sys.executable, "DOVETAIL_TORCH_PYTHON": str(python)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"run.sh: nothing can be measured: {python} {why}: name ")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_report_of_no_campaign_is_refused_in_one_line(tmp_path):
    pytest.importorskip("sklearn", reason="needs scikit-learn (extra train)")
    command = [sys.executable, FOLDER / "report.py", tmp_path / "none"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (line,) = done.stderr.splitlines()
    assert line.endswith("none/repository.db: cannot be read: no such file or directory")
    assert done.returncode == 1
    assert not (tmp_path / "none").exists()


def test_the_parts_of_the_campaign_are_those_of_the_plan(slices, tmp_path):
    stages = read_campaign(FOLDER / "first.yaml").stages
    core, more = stages[: slices.CORE], stages[slices.CORE : slices.ALL_BUT_EXTRAS]
    assert (core[-1].mode, more[0].shares) == ("time-sliced", (10, 90))
    # All extras are without MPS, and so repeat something where MPS does not run.
    assert {stage.mode for stage in stages[slices.ALL_BUT_EXTRAS :]} == {"time-sliced"}
    names = [step.name for step in slices.gpu_steps(tmp_path)]
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_the_parts_of_the_acceptance_suite_can_be_run(slices, tmp_path):
    collected = {}
    for step in slices.gpu_steps(tmp_path):
        if step.command[:3] == slices.PYTEST[:3]:
            command = [one.replace("{minutes}", "9") for one in step.command]
            done = subprocess.run([*command, "--collect-only"], capture_output=True, text=True)
            assert done.returncode == 0, done.stdout
            collected[step.name] = done.stdout.splitlines()[:-2]
    assert len(collected["first checks"]) == 8
    assert set(collected["first checks"]) < set(collected["harmless checks"])
    assert set(collected["harmless checks"]) < set(collected["faults"])


@pytest.mark.long
def test_report_of_a_synthetic_campaign(tmp_path):
    synthetic_campaign.write(tmp_path)
    text = report(tmp_path)
    # Every number was drawn with this noise.
    pooled = re.search(r"([\d.]+) ?% between repeats of one setting", text)
    assert pytest.approx(float(pooled[1]), rel=0.2) == 100 * synthetic_campaign.NOISE
    # Two that take turns together do as much as one alone.
    turns = re.search(r"^time-sliced, no cap +21 +- +([\d.]+)", text, re.M)
    assert float(turns[1]) == pytest.approx(1.0, abs=0.02)
    assert "| sm_allocation | iterations | splits | 21 |" in text
    assert load_model(tmp_path / "report" / "model.dovetail").gpu_models == ("synthetic",)


@pytest.mark.slow
def test_report_of_a_campaign_that_has_just_begun(tmp_path):
    synthetic_campaign.write(tmp_path, most=2)
    (tmp_path / "pairs.csv").unlink()
    text = report(tmp_path)
    assert "No pairs yet." in text
    assert "No power was measured" in text


@pytest.mark.parametrize("name", ["first", "tiny"])
def test_campaigns_can_be_read(name):
    campaign = read_campaign(FOLDER / f"{name}.yaml")
    assert len({one.key for one in experiments(campaign)}) == len(experiments(campaign))
