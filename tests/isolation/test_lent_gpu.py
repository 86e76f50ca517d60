"""The script for a lent GPU: all its steps run on a stand-in, and keep what they found."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dovetail.isolation.assemble import find_ptxas
from tests.executor.waiting import LIMIT_S

pytestmark = [
    pytest.mark.skipif(find_ptxas() is None, reason="needs ptxas (extra isolation)"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]
FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu"
STEPS = ("right", "costs", "turnaround", "throughput", "p99")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run all steps once, and return the folder and what was printed."""
    pytest.importorskip("nvidia.cuda_nvrtc", reason="needs NVRTC (extra isolation-tests)")
    out = tmp_path_factory.mktemp("lent") / "out"
    command = ["bash", str(FOLDER / "run.sh"), "isolation", "--stand-in", "--out", str(out)]
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out, done.stdout


def results(ran, step):
    found = json.loads((ran[0] / f"{step}.json").read_text())
    assert found["stand_in"]
    return found["results"]


def test_all_steps_are_done_marked_and_kept(ran):
    out, printed = ran
    assert max(map(len, printed.splitlines())) <= 80
    assert "| campaign: done" in printed
    for step in STEPS:
        assert f"| {step}: done" in printed
        assert f"{step}: STAND-IN, NO GPU" in printed
    assert out.with_name("out.tgz").exists()


def test_what_hangs_crashes_or_fails_in_a_process_of_its_own_is_told(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    from blocks.setting import ApartError, apart

    assert [*apart(iter, (1, 2), within_s=LIMIT_S)] == [1, 2]
    with pytest.raises(ApartError, match=r"hung: nothing within 0\.2 s"):
        next(apart(time.sleep, LIMIT_S, within_s=0.2))
    with pytest.raises(ApartError, match=r"crashed \(exit -6\)"):
        next(apart(os.abort, within_s=LIMIT_S))
    with pytest.raises(ApartError, match="ValueError: invalid literal"):
        next(apart(int, "x", within_s=LIMIT_S))


def test_claims_are_judged(ran):
    judged = (ran[0] / "claims.txt").read_text().splitlines()
    assert judged[0].startswith("STAND-IN, NO GPU")
    assert sum(line.endswith(("holds", "NOT", "?")) for line in judged) == len(judged) - 2
    assert (
        "right: runs that leave other bits                          <=0      0.00 holds" in judged
    )
    # Workers of a kernel that is too large for the stand-in.
    unknown = [line for line in judged if line.startswith("costs") and line.endswith("?")]
    assert len(unknown) == 2


def test_forms_are_compared(ran):
    records = results(ran, "right")
    runs = [run for one in records for kind in ("slices", "workers") for run in one[kind].values()]
    assert len(runs) > 10
    assert all(run["right"] for run in runs)
    assert not any("failed" in one for one in records)


def test_each_cost_is_found(ran):
    found = results(ran, "costs")
    failed = [one for part in found.values() for one in part if "failed" in one]
    assert {one["failed"].partition(" no ")[0] for one in failed} <= {"the driver has"}
    assert {
        "calls",
        "gpu",
        "first blocks",
        "reads",
        "stops",
        "waits",
        "room",
        "processes",
    } <= found.keys()
    waits = {one["what"]: one.get("waits") for one in found["waits"]}
    assert waits["cuStreamSynchronize, gated stream"]
    assert waits["launch, other stream"] is False
    assert all(one["all"] > 0 for one in found["stops"][1:])
    assert all(one["stand"] == 0 for one in found["streams"])


@pytest.mark.parametrize("step", ["turnaround", "throughput", "p99"])
def test_pairs_of_processes_run(ran, step):
    records = results(ran, step)
    assert not any("failed" in one for one in records)
    served = [one for one in records if "requests" in one]
    assert all(one["requests"] > 0 and 0 < one["p50"] <= one["max"] for one in served)
    assert any(one["way"] == "isolated" for one in served)
    (status, *_) = (one["scheduler"] for one in records if "scheduler" in one)
    assert status["launches"]["announced"] > 0
    assert status["launches"]["whole"] + status["launches"]["isolated"] > 0
    if step == "throughput":
        assert status["launches"]["graph"] > 0
