"""The acceptance suite of GPUs (``tests/gpu``) without a GPU: on stand-ins for all of it.

What passes here shows that it runs, tells what it saw and clears up; nothing about GPUs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("pynvml", reason="needs the extra live")

from dovetail.executor.gpus.nvml import Nvml, NvmlError
from dovetail.executor.mps import processes
from dovetail.executor.mps.processes import PROGRAM, SERVER
from dovetail.executor.pools.opening import find_isolation
from tests.executor.gpus.libcuda import standin_libcuda
from tests.gpu import proof as proofs

from .mps import from_proof, record, standin
from .mps.test_control import RECORDED, SPOKEN_BY_STANDIN
from .waiting import LIMIT_S

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "tests" / "gpu"
STANDIN = Path(__file__).parent / "gpus" / "standin_gpu"
TORCH = os.environ.get("DOVETAIL_TORCH_PYTHON") or sys.executable

AS_TAKEN, OTHERWISE, NOT_TRIED = proofs.AS_TAKEN, proofs.OTHERWISE, proofs.NOT_TRIED

HARMLESS = {
    **dict.fromkeys(("programs", "commands", "clients", "attribute"), AS_TAKEN),
    **dict.fromkeys(("memory-limit", "context-cost", "cap", "gpm"), AS_TAKEN),
    # The daemon of the stand-in knows no settings of servers, made-up NVML lists no client.
    **dict.fromkeys(("settings", "nvml-lists"), OTHERWISE),
    "energy": NOT_TRIED,
    # The stand-in lacks the functions of CUDA 12: its launches are left alone.
    "isolation": OTHERWISE,
}
FAULTS = {
    **dict.fromkeys(("terminate", "fault-partner", "ladder-stay", "ladder-gone"), AS_TAKEN),
    # Its servers do nothing, so that killing one harms no process.
    "kill-server": OTHERWISE,
}
OTHERS = (
    *("shares", "fault-alone", "fault-trap", "kill-client", "kill-daemon"),
    *("ladder-leave", "ladder-stopped", "ladder-deaf"),
)


@pytest.fixture(scope="session")
def cuda(tmp_path_factory):
    """The folder of the stand-in for libcuda, compiled."""
    return standin_libcuda(tmp_path_factory.mktemp("cuda"))


LIMITS = {
    **dict.fromkeys(("partition-sizes", "partition-client", "partition-beside-clients"), AS_TAKEN),
    **dict.fromkeys(("group-limit", "group-of-two-turns", "group-of-two-mps"), NOT_TRIED),
}
"""With a control program of release 590 and a driver before 615."""


class Suite:
    """Runs the suite on a made-up GPU and checks that no process is left on it."""

    def __init__(self, folder, cuda, release="580"):
        self.proof = folder / "proof.json"
        self.program = Path(standin.install(folder, release))
        self.path = f"{self.program.parent}:{os.environ['PATH']}"
        self._cuda = cuda

    def __call__(self, *arguments, suite=(SUITE,), pids="", status):
        """Run it, and return its output."""
        gpu = f"GPU-{uuid.uuid4()}"
        environment = {"LD_LIBRARY_PATH": str(self._cuda), "PATH": self.path}
        done = run_pytest(
            *("-p", "tests.executor.gpus.standin_gpu", "--proof", self.proof, *arguments, *suite),
            **{**environment, "STANDIN_UUID": gpu, "STANDIN_PIDS": pids},
        )
        assert done.returncode == status, done.stdout + done.stderr
        seen_by = (one.environment.get("CUDA_VISIBLE_DEVICES") for one in processes.every())
        assert gpu not in list(seen_by)
        return done.stdout + done.stderr

    def checks(self):
        return {check["id"]: check for check in self.kept()["checks"]}

    def verdicts(self):
        return {name: check["verdict"] for name, check in self.checks().items()}

    def kept(self):
        return json.loads(self.proof.read_text())


@pytest.fixture
def suite(tmp_path, cuda):
    return Suite(tmp_path, cuda)


def run_pytest(*arguments, **environment):
    """Run it without the plugins that happen to be installed."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@cache
def by_id():
    """Return the tests of checks by id: ``test_faults.py::test_fault[alone]`` is fault-alone."""
    output = run_pytest("--collect-only", "-q", "-m", "", SUITE).stdout
    return {
        re.sub(r"[_\[]", "-", name.rstrip("]")): SUITE / test
        for test, name in re.findall(r"^(\S+::test_(\S+))$", output, re.M)
    }


def chosen(*names):
    return [by_id()[name] for name in names]


def test_what_breaks_nothing(suite, tmp_path):
    report = tmp_path / "junit.xml"
    output = suite("--junitxml", report, suite=chosen(*HARMLESS), status=1)
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        isolates = not isinstance(find_isolation(Path(short, "isolation")), str)
    assert suite.verdicts() == HARMLESS | ({} if isolates else {"isolation": NOT_TRIED})
    assert "STAND-IN, no GPU" in output
    assert "is a script" in suite.kept()["machine"]["stand_in"]
    checks = suite.checks()
    assert "at 30 percent own 50 and 4 GiB: sms 66" in checks["settings"]["seen"]
    assert checks["energy"]["seen"] == "the energy counter moved 0 times in 0.3 s"
    cases = ElementTree.parse(report).getroot().iter("testcase")
    verdicts = {case.get("name"): case.find("properties/property").get("value") for case in cases}
    assert verdicts["test_gpm"] == AS_TAKEN
    answers = {
        (one["command"], one["pattern"]) for one in from_proof.transcript(suite.kept())["answers"]
    }
    assert ("get_client_list {server}", "{client}\\n{client 2}\\n") in answers


def test_limits_of_newer_drivers(tmp_path, cuda):
    suite = Suite(tmp_path, cuda, release="590")
    suite(suite=chosen(*LIMITS), status=0)
    assert suite.verdicts() == LIMITS
    checks = suite.checks()
    sms = "chunks: 16; SMs: 1 8, 2 16, 4 32, 8 64, 15 120, 16 132; of: 132; left: 0"
    assert checks["partition-sizes"]["seen"] == sms
    assert "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION" in checks["partition-client"]["seen"]
    assert "limits no memory of control groups" in checks["group-limit"]["seen"]


@pytest.mark.alone
def test_what_breaks_things(suite):
    suite("-m", "faults", suite=chosen(*FAULTS), status=1)
    assert suite.verdicts() == FAULTS
    assert "kernels go on: True; server lives: False" in suite.checks()["kill-server"]["seen"]


@pytest.mark.long
def test_all_others(suite):
    names = by_id().keys() - HARMLESS.keys() - FAULTS.keys()
    suite("-m", "", suite=chosen(*names), status=1)
    verdicts = suite.verdicts()
    assert verdicts.keys() == names
    assert {verdicts[name] for name in OTHERS} == {AS_TAKEN}


def test_whatever_happens_its_clients_and_daemons_are_gone(suite):
    plugin = ("-p", "tests.gpu.conftest", "-c", SUITE / "pytest.ini")
    output = suite(*plugin, suite=[STANDIN / "troubles.py"], status=2)
    assert "KeyboardInterrupt" in output
    seen = {name: (check["verdict"], check["seen"]) for name, check in suite.checks().items()}
    assert seen == {
        "too-long": (NOT_TRIED, "it took longer than 2 s"),
        "limit-while-starting": (NOT_TRIED, "it took longer than 60 s"),
        "stubborn": (NOT_TRIED, "never mind"),
        "refused": (
            NOT_TRIED,
            "client 2: CUDA_ERROR_MPS_SERVER_NOT_READY (807) of cuInit",
        ),
        "odd": (NOT_TRIED, "'sms'"),
        "otherwise": (OTHERWISE, "share: 0.25"),
    }
    assert any("KeyError" in line["text"] for line in suite.checks()["odd"]["lines"])


def test_a_run_is_kept_and_gone_on_with(suite):
    both = chosen("programs", "shares")
    # 0.7 minutes are 42 s: programs (1 s and 10 around it) may begin, shares (40 s) may not.
    suite("--minutes", "0.7", suite=both, status=6)
    assert list(suite.verdicts()) == ["programs"]
    before = suite.checks()["programs"]
    assert "1 passed, 1 deselected" in suite(suite=chosen("programs", "attribute"), status=0)
    assert list(suite.verdicts()) == ["programs", "attribute"]
    assert suite.checks()["programs"] == before
    suite("--again", suite=both[:1], status=0)
    assert suite.checks()["programs"] != before


def test_what_cannot_be_gone_on_with_is_refused(suite, tmp_path):
    stand_in = {"stand_in": "a script", "gpu_model": "H200", "driver": "580"}
    for written, rule in (
        (
            json.dumps({"format": proofs.FORMAT, "machine": {**stand_in, "driver": "590"}}),
            "machine.driver: is of '590', here is '580'",
        ),
        (json.dumps({"format": proofs.FORMAT, "machine": {}}), "machine.stand_in: is of None, "),
        (json.dumps({"machine": {}}), "format: must be 'dovetail-proof/1'"),
    ):
        (tmp_path / "other.json").write_text(written)
        with pytest.raises(pytest.UsageError) as error:
            proofs.begun(tmp_path / "other.json", stand_in)
        assert str(error.value).startswith(f"{tmp_path}/other.json: {rule}")
    suite.proof.write_text("{")
    (line,) = suite(status=4).strip().splitlines()
    assert line.startswith(f"ERROR: {suite.proof}: is not valid JSON at line 1")
    assert suite.proof.read_text() == "{"


def test_a_gpu_in_use_is_refused(suite):
    assert "is in use (pid 4711)" in suite(pids="4711", status=5)
    assert not suite.proof.exists()


def test_without_mps_the_data_of_nvml_is_still_seen(suite, tmp_path):
    suite.path = str(tmp_path / "nowhere")
    suite(suite=chosen("programs", "gpm"), status=0)
    assert suite.verdicts() == {"programs": NOT_TRIED, "gpm": AS_TAKEN}
    assert "is not installed" in suite.checks()["programs"]["seen"]
    machine = suite.kept()["machine"]
    assert (machine["control"], "stand_in" in machine) == ("none", False)


def test_without_a_gpu_every_test_skips_and_says_why():
    with suppress(NvmlError), Nvml():
        pytest.skip("there is a driver here")
    done = run_pytest("-m", "", SUITE)
    assert done.returncode == 5
    assert "NVML" in done.stdout
    assert " skipped in " in done.stdout
    assert not {" passed", " failed", " error"} & set(re.findall(r" [a-z]+", done.stdout))


class TestTranscripts:
    """Recorded answers of the real daemon can be compared with the stand-in's."""

    @pytest.fixture
    def heard(self, suite):
        suite.path = os.environ["PATH"]
        if None in (shutil.which(PROGRAM), shutil.which(SERVER, path=f"{suite.path}:/usr/sbin")):
            pytest.skip(f"{PROGRAM} is not installed (Debian: nvidia-cuda-mps, non-free)")
        suite(suite=chosen("commands"), status=0)
        return suite

    def test_the_real_daemon_is_heard_word_by_word(self, heard, tmp_path):
        made = json.loads(from_proof.convert(heard.proof, tmp_path, "580").read_text())
        assert set(made) - {"answers"} == set(RECORDED)
        assert made["gpu"] == "Injected H200"
        known = [(*one["options"], one["command"]) for one in RECORDED["steps"]]
        again = [one for one in made["steps"] if (*one["options"], one["command"]) in known]
        assert len(again) > 25
        assert all(one in RECORDED["steps"] for one in again)
        program = standin.install(tmp_path, "535")
        for step in again:
            if (step["command"] or " ".join(step["options"])).startswith(SPOKEN_BY_STANDIN):
                answer = record.say(program, tmp_path / "pipes", step["options"], step["command"])
                assert answer == step

    def test_a_stand_in_is_not_held_to_itself(self, suite, tmp_path):
        suite(suite=chosen("programs"), status=0)
        with pytest.raises(SystemExit, match="is of a stand-in: "):
            from_proof.convert(suite.proof, tmp_path, "580")
        assert proofs.markdown(suite.kept()).startswith("STAND-IN, no GPU: ")


def test_pids_become_names_in_answers():
    pids = {"server": 17, "client": 18}
    assert from_proof.named("get_client_list 17", pids) == "get_client_list {server}"
    pattern = from_proof.named("18\n19 {x}\n", pids, from_proof.escaped).format(**pids)
    assert re.fullmatch(pattern, "18\n19 {x}\n")
    assert not re.fullmatch(pattern, "19\n18 {x}\n")


@pytest.mark.parametrize("mode", ["illegal", "trap"])
def test_the_end_of_input_is_no_order_to_fault(cuda, mode):
    done = subprocess.run(
        [sys.executable, "-I", "-S", SUITE / "client.py", mode],
        env={"LD_LIBRARY_PATH": str(cuda)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    events = [json.loads(line)["event"] for line in done.stdout.splitlines()]
    assert (events, done.stderr) == (["started", "ready"], "")


def test_pytorch_says_how_often_a_block_was_handed_out_again():
    if sys.executable == TORCH and importlib.util.find_spec("torch") is None:
        pytest.skip("no PyTorch here, and DOVETAIL_TORCH_PYTHON names no Python that has it")
    words = [TORCH, "-I", SUITE / "torch_client.py", "reuse", "cpu"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    event = json.loads(done.stdout)
    assert event["event"] == "reuse"
    assert 0 <= event["same"] <= event["of"] == 2
