"""The first campaign: its dry run on a processor core, its report, its plan."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import time
from collections import Counter
from contextlib import closing, suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from dovetail.executor.gpus.nvml import Nvml, NvmlError
from dovetail.instances.datasets import read_dataset
from dovetail.measuring.campaign import experiments, read_campaign
from dovetail.measuring.ledger import read_ledger, settled
from dovetail.predictors.fitted.model_file import load_model
from tests.measuring import synthetic_campaign

FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu"


def run_slice(out, minutes):
    environment = {**os.environ, "PYTHON": sys.executable}
    command = ["bash", FOLDER / "run.sh", out, "--dry-run", "--minutes", str(minutes)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def report(out, models):
    pytest.importorskip("sklearn", reason="needs scikit-learn (extra train)")
    command = [sys.executable, "-W", "error", FOLDER / "report.py", out, "--models", models]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return (out / "report" / "report.md").read_text()


@pytest.mark.slow
def test_dry_run_with_interruptions_measures_nothing_twice(tmp_path):
    out = tmp_path / "out"
    # 0.6 minutes, less what is kept for stopping, are 16 s: not enough for all.
    first = run_slice(out, 0.6)
    assert first.returncode == 3, first.stdout + first.stderr
    # Another machine has only the archive.
    shutil.rmtree(out)
    second = run_slice(out, 9)
    assert second.returncode == 0, second.stdout + second.stderr
    found = read_ledger(out)
    assert settled(found.results) >= {
        one.key for one in experiments(found.campaign) if one.seats[0].mode == "mps"
    }
    counts = Counter(one.key for one in found.results if one.sound)
    assert set(counts.values()) == {1}
    # 24 pairs without caps and 35 at halves are known.
    assert Counter(one.status for one in found.results)["known"] == 24 + 35
    assert {len(one.workloads) for one in read_dataset(out).measurements} == {2, 3}
    assert set(json.loads((out / "batch.json").read_text())) == {"exclusive", "shared"}
    # Few files, no folders: what a machine without a network can hand back.
    assert not [path for path in out.iterdir() if path.is_dir()]
    with tarfile.open(tmp_path / "out.tgz") as archive:
        assert {"batch.json", "log.txt", "repository.db"} <= set(archive.getnames())
    text = report(out, "constant")
    for heading in ("## Pairs", "## Halves against no caps", "## A batch of jobs", "MPS, 10/90"):
        assert heading in text
    assert re.search(r"\| constant \| a workload \(8\) \|", text)


def test_an_archive_taken_while_a_database_is_written_is_whole(slices, tmp_path):
    out, again = tmp_path / "out", tmp_path / "again"
    out.mkdir()
    (out / "log.txt").write_text("here\n")
    with closing(sqlite3.connect(out / "repository.db")) as writing:
        writing.execute("CREATE TABLE seen (n)")
        writing.execute("INSERT INTO seen VALUES (1)")
        writing.commit()
        writing.execute("INSERT INTO seen VALUES (2)")
        slices.pack(out, tmp_path / "out.tgz")
    slices.unpack(tmp_path / "out.tgz", again)
    with closing(sqlite3.connect(again / "repository.db")) as read:
        assert read.execute("SELECT n FROM seen").fetchall() == [(1,)]
    assert (again / "log.txt").read_text() == "here\n"


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
        slices.Step("next", shell("echo here"), 0, output="here.txt"),
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


def test_what_does_not_fit_is_skipped_for_what_does(slices, tmp_path):
    goes_on = slices.Step("long", shell("[ -f seen ] || exit 3"), 0, unfinished=(3,))
    late = slices.Step("late", shell("true"), 600)
    parts = slices.Step("parts", shell("true"), 600, least_s=0)
    status, output = carried_out(slices, tmp_path, [goes_on, late, parts], seconds=20)
    assert status == 3
    assert [line.partition(" after")[0] for line in output if "begins" not in line] == [
        "long: goes on in the next slice,",
        "late: is left to the next slice",
        "parts: done",
    ]
    slow = slices.Step("slow", shell("sleep 60"), 0)
    assert carried_out(slices, tmp_path, [slow], seconds=0.1)[0] == 3


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


def test_without_pytorch_one_line_says_so(slices, tmp_path, monkeypatch, capsys):
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(slices, "no_gpu", lambda: None)
    for python, why in ((bare, "has no PyTorch"), (tmp_path, "cannot be run: Permission denied")):
        monkeypatch.setenv("DOVETAIL_TORCH_PYTHON", str(python))
        assert slices.main([str(tmp_path / "out")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"run.sh: nothing can be measured: {python} {why}: name ")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_report_of_no_campaign_is_refused_in_one_line(tmp_path):
    pytest.importorskip("sklearn", reason="needs scikit-learn (extra train)")
    command = [sys.executable, FOLDER / "report.py", tmp_path / "none"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (line,) = done.stderr.splitlines()
    rule = "none: must be a folder with tables, or a repository (.db, .sqlite); does not exist"
    assert line.endswith(rule)
    assert done.returncode == 1
    assert not (tmp_path / "none").exists()


def test_the_parts_are_those_of_the_campaign_and_a_call_has_the_most_valuable(slices, tmp_path):
    stages = read_campaign(FOLDER / "first.yaml").stages
    last = {name: stages[count - 1] for name, count, _ in slices.PARTS}
    assert last["kernels and solos"].measure == "solos"
    assert last["pairs at 10/90"].shares == (10, 90)
    assert last["time-sliced"].mode == "time-sliced"
    assert last["three jobs"].measure == "triples"
    assert [count for _, count, _ in slices.PARTS][-1] == len(stages)
    caps = {cap for stage in stages for cap in stage.caps if cap is not None}
    assert caps == set(map(int, slices.SHARES.split(",")))
    steps = list(slices.gpu_steps(tmp_path, ()))
    assert len({step.name for step in steps}) == len(steps)
    assert [step.name for step in steps][-2:] == ["harmless checks", "faults"]


@pytest.mark.slow
def test_the_parts_of_the_acceptance_suite_can_be_run(slices, tmp_path):
    collected = {}
    for step in slices.gpu_steps(tmp_path, ()):
        if step.command[:3] == slices.PYTEST[:3]:
            command = [one.replace("{minutes}", "9") for one in step.command]
            done = subprocess.run([*command, "--collect-only"], capture_output=True, text=True)
            assert done.returncode == 0, done.stdout
            collected[step.name] = done.stdout.splitlines()[:-2]
    assert len(collected["faults"]) > len(collected["harmless checks"]) > 8
    assert set(collected["harmless checks"]) < set(collected["faults"])


@pytest.mark.long
def test_report_of_a_synthetic_campaign(tmp_path):
    synthetic_campaign.write(tmp_path)
    text = report(tmp_path, "constant,sm_allocation")
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
    text = report(tmp_path, "constant")
    assert "No pairs yet." in text
    assert "No power was measured" in text


def test_a_service_beside_trainings_is_measured_in_each_way(tmp_path):
    of = read_campaign(FOLDER / "isolated.yaml")
    planned = experiments(of)
    pairs = {(one.seats[0].mode, one.seats[0].share) for one in planned if len(one.seats) == 2}
    assert pairs == {("mps", None), ("mps", 50), ("time-sliced", None), ("isolated", None)}
    seconds = sum(of.windows.usual_s(of.stages[one.stage]) for one in planned)
    # Workers start five times besides.
    assert seconds < 4 * 60
