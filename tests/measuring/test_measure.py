"""``dovetail measure`` on a CPU core as a stand-in; no figure is of a GPU."""

import json
import os
import shutil
import signal
import subprocess
import sys
from textwrap import dedent

import pytest

from dovetail.cli.main import main
from dovetail.executor.pools.runs.processes import runs
from dovetail.executor.pools.shim.kernel import every_process
from dovetail.instances.datasets import (
    DataSet,
    Measurement,
    Repository,
    read_dataset,
    write_dataset,
)
from dovetail.measuring.ledger import read_ledger
from tests.executor.waiting import LIMIT_S, wait_until

SPIN = """
KIND, FAMILY, BATCH = "training", "spin", {"full": 1, "tiny": 1}

def prepare(device, size, seed):
    return lambda: sum(range(20_000))
"""

CAMPAIGN = """
format: dovetail-campaign/1
name: two loops
size: tiny
workloads:
  - {name: here, program: here.py}
  - {name: there, program: there.py}
stages:
  - {measure: solos}
  - {measure: pairs, repeats: 2}
windows: {settle_s: 0.1, least_s: 0.4, most_s: 3.6, relative_error: 0.5}
"""


@pytest.fixture
def campaign(tmp_path):
    for name in ("here", "there"):
        (tmp_path / f"{name}.py").write_text(SPIN)
    path = tmp_path / "loops.yaml"
    path.write_text(CAMPAIGN)
    return path


def command(campaign, *options):
    out = campaign.parent / "out"
    return ["measure", str(campaign), "--device", "cpu", "--output", str(out), *options]


def begun(campaign, *options):
    """Start it as a process of its own."""
    program = "from dovetail.cli.main import program; program()"
    return subprocess.Popen(
        [sys.executable, "-c", program, *command(campaign, *options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def workers(campaign):
    """Return the workers of a campaign that run, by its programs in their arguments."""
    found = []
    for stat in every_process():
        try:
            with open(f"/proc/{stat.pid}/cmdline", "rb") as file:
                words = file.read()
        except OSError:
            continue
        if b"worker.py" in words and os.fsencode(campaign.parent) in words and runs(stat):
            found.append(stat.pid)
    return found


def lines(campaign):
    """Return the entries of its ledger."""
    path = campaign.parent / "out" / "repository.db"
    return Repository(path).evidence("machine", "campaign", "result") if path.exists() else ()


def test_a_campaign_becomes_a_data_set(campaign, capsys):
    assert main(command(campaign, "--verbose")) == 0
    output = capsys.readouterr()
    assert "NO GPU" in output.out
    # No MPS is there, so the word needs a word.
    assert "MPS and time-sliced are only names" in output.out
    assert len(output.err.splitlines()) == 8
    out = campaign.parent / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        "pairs.csv",
        "profiles.csv",
        "repository.db",
    ]
    data = read_dataset(out)
    assert len(data.profiles) == 2
    assert len(data.measurements) == 6
    assert workers(campaign) == []
    # Gone on with, there is nothing left.
    before = lines(campaign)
    assert main(command(campaign, "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["stages"][1]["done"] == 6
    assert lines(campaign) == before


def test_a_dry_run_prints_the_result_and_leaves_nothing(campaign, capsys):
    text = campaign.read_text().replace("{measure: solos}", "{measure: solos, shares: [50]}")
    campaign.write_text(text)
    assert main(command(campaign, "--dry-run")) == 0
    output = capsys.readouterr().out
    assert "no figure here is one of a GPU" in output
    assert "0  solos, MPS, 50 %" in output
    # 2.1 s each, as below, in whole seconds; those with caps are refused on some machines.
    ends = (
        "8 experiments left, about 17 s and starts\n",
        "6 experiments left, about 13 s and starts\n",
    )
    assert output.endswith(ends)
    assert main(command(campaign, "--dry-run", "--json")) == 0
    stages = json.loads(capsys.readouterr().out)["stages"]
    assert stages[1]["planned"] == stages[1]["left"] == 6
    # Settling, and half-way between the shortest window and the longest.
    assert stages[1]["seconds"] == pytest.approx(6 * (0.1 + 2.0))
    refused = stages[0]["refused"]
    assert refused == [] or refused[0].startswith("a cap needs control groups")
    assert not (campaign.parent / "out").exists()


def test_when_time_is_up_it_says_how_to_go_on(campaign, capsys):
    assert main(command(campaign, "--minutes", "0.05")) == 3
    output = capsys.readouterr()
    assert "time is up: 8 experiments left; continue with dovetail measure" in output.err
    assert "--minutes 0.05" in output.err
    assert workers(campaign) == []


def test_full_sizes_on_a_core_are_warned_of(campaign, capsys):
    campaign.write_text(campaign.read_text().replace("size: tiny", "size: full"))
    assert main(command(campaign, "--minutes", "0.01")) == 3
    assert "size: tiny suits a core" in capsys.readouterr().err


@pytest.mark.long
def test_nothing_is_lost_and_nothing_measured_twice_after_a_sigkill(campaign):
    process = begun(campaign)
    wait_until(lambda: len(lines(campaign)) >= 5)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    kept = lines(campaign)
    # The workers notice that their parent is gone.
    wait_until(lambda: not workers(campaign))
    assert main(command(campaign)) == 0
    assert lines(campaign)[: len(kept)] == kept
    # A busy machine may make a window fail, which is then tried again.
    keys = [one.key for one in read_ledger(campaign.parent / "out").results if one.sound]
    assert len(keys) == len(set(keys)) == 8


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_ctrl_c_leaves_nothing_behind_but_what_was_measured(campaign, number):
    process = begun(campaign)
    wait_until(lambda: len(lines(campaign)) >= 4)
    process.send_signal(number)
    out, err = process.communicate(timeout=LIMIT_S)
    assert err == "dovetail: interrupted: the same command continues from here\n"
    assert process.returncode == 130
    assert out == ""
    assert workers(campaign) == []
    assert len(read_ledger(campaign.parent / "out").results) >= 2
    assert (campaign.parent / "out" / "profiles.csv").exists()


@pytest.mark.long
def test_two_at_once_cannot_write_one_folder(campaign, capsys):
    process = begun(campaign)
    try:
        wait_until(lambda: len(lines(campaign)) >= 3)
        assert main(command(campaign)) == 2
        assert "another campaign is writing it" in capsys.readouterr().err
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)


def test_on_a_simulated_gpu(campaign, capsys):
    campaign.write_text(
        "format: dovetail-campaign/1\nname: known\nworkloads: [A, B]\n"
        "stages: [{measure: solos}, {measure: solos, shares: [40]}]\n"
        "windows: {settle_s: 0, least_s: 0.3, most_s: 0.5}\n"
    )
    arguments = ["measure", str(campaign), "--output", str(campaign.parent / "out")]
    assert main([*arguments, "--device", "simulated:library:shares", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [stage["done"] for stage in found["stages"]] == [2, 0]
    assert found["stages"][1]["refused"] == 2
    assert "a simulation of the instance shares" in found["machine"]["stand_in"]
    assert main([*arguments, "--device", "simulated:library:lab"]) == 2
    output = capsys.readouterr().err
    assert "workloads[0]: must be one of the instance's (" in output


def test_what_a_data_set_has_is_not_measured_again(tmp_path, capsys):
    path = tmp_path / "three.yaml"
    path.write_text(
        "format: dovetail-campaign/1\nname: three\nworkloads: [A, B, C]\n"
        "stages: [{measure: solos}, {measure: pairs, repeats: 2}, {measure: triples, most: 7}]\n"
        "windows: {settle_s: 0, least_s: 0.1, most_s: 0.1}\n"
    )
    known = Measurement(workloads=("B", "A"), gpu_model="V100", slowdown=(1.2, 1.2))
    slow = Measurement(workloads=("B", "C"), gpu_model="V100", slowdown=None)
    other = Measurement(workloads=("B", "B"), gpu_model="A100", slowdown=(1.2, 1.2))
    write_dataset(DataSet(name="known", measurements=(known, slow, other)), tmp_path / "known")
    arguments = ["measure", str(path), "--output", str(tmp_path / "out"), "--json"]
    arguments += ["--device", "simulated:library:triples", "--known", str(tmp_path / "known")]
    assert main([*arguments, "--dry-run"]) == 0
    assert [one["left"] for one in json.loads(capsys.readouterr().out)["stages"]] == [3, 11, 7]
    for _ in range(2):
        assert main(arguments) == 0
        stages = json.loads(capsys.readouterr().out)["stages"]
        assert [(one["known"], one["left"]) for one in stages] == [(0, 0), (1, 0), (0, 0)]
    keys = [one.key for one in read_ledger(tmp_path / "out").results if one.status == "known"]
    assert keys == ["1:mps:A+B#0"]
    assert {len(one.workloads) for one in read_dataset(tmp_path / "out").measurements} == {2, 3}


class TestBadInput:
    def refused(self, arguments, capsys):
        assert main(arguments) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.count("\n") == 1
        return output.err

    def test_an_unknown_workload(self, campaign, capsys):
        campaign.write_text(
            campaign.read_text().replace("- {name: here, program: here.py}", "- lenet")
        )
        output = self.refused(command(campaign), capsys)
        assert "loops.yaml: workloads[0]: must be one of bulk, burst, convnet" in output
        assert output.endswith("got 'lenet'\n")

    def test_a_program_that_is_not_there(self, campaign, capsys):
        (campaign.parent / "here.py").unlink()
        output = self.refused(command(campaign), capsys)
        assert "loops.yaml: workloads[0].program: must name a file, which" in output
        assert output.endswith("/here.py is not\n")
        assert "here.py" in self.refused(command(campaign, "--dry-run"), capsys)

    def test_a_python_that_is_not_there_or_is_none(self, campaign, capsys):
        output = self.refused(command(campaign, "--python", "/nowhere/python"), capsys)
        assert "--python: /nowhere/python cannot be run" in output
        assert "--python" in self.refused(command(campaign, "--python", "/bin/true"), capsys)
        assert not (campaign.parent / "out").exists()

    def test_no_torch(self, campaign, capsys):
        bare = shutil.which("python3", path="/usr/bin") or sys.executable
        asked = [bare, "-I", "-c", "import torch"]
        if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
            pytest.skip(f"{bare} has PyTorch")
        campaign.write_text(
            campaign.read_text().replace("- {name: here, program: here.py}", "- gemm")
        )
        output = self.refused(command(campaign, "--python", bare), capsys)
        assert "has no PyTorch: pip install './dovetail[measure]', or name a Python" in output

    def test_an_output_that_cannot_be(self, campaign, capsys):
        (campaign.parent / "out").write_text("in the way")
        assert "out" in self.refused(command(campaign), capsys)
        assert (campaign.parent / "out").read_text() == "in the way"

    def test_another_campaigns_ledger(self, campaign, capsys):
        assert main(command(campaign, "--minutes", "0.05")) == 3
        capsys.readouterr()
        campaign.write_text(campaign.read_text().replace("settle_s: 0.1", "settle_s: 0.2"))
        output = self.refused(command(campaign), capsys)
        assert "is of another campaign: windows.settle_s was 0.1, is 0.2" in output

    @pytest.mark.parametrize(
        ("option", "value", "rule"),
        [
            ("--device", "tpu", "must be gpu, gpu:UUID, cpu or simulated:INSTANCE, got 'tpu'"),
            ("--device", "gpu:", "must be gpu, gpu:UUID, cpu or simulated:INSTANCE"),
            ("--minutes", "0", "must be > 0, got '0'"),
        ],
    )
    def test_options(self, campaign, capsys, option, value, rule):
        with pytest.raises(SystemExit) as ended:
            main(["measure", str(campaign), option, value])
        assert ended.value.code == 2
        assert rule in capsys.readouterr().err


def torch_python():
    """Return a Python with PyTorch: DOVETAIL_TORCH_PYTHON, or else this one."""
    python = os.environ.get("DOVETAIL_TORCH_PYTHON", sys.executable)
    look = "import sys; from importlib.util import find_spec; sys.exit(find_spec('torch') is None)"
    asked = subprocess.run([python, "-I", "-c", look], capture_output=True, check=False)
    return python if asked.returncode == 0 else None


@pytest.mark.long
def test_built_in_workloads_with_pytorch_on_a_core(tmp_path, capsys):
    python = torch_python()
    if python is None:
        pytest.skip("no Python with PyTorch (DOVETAIL_TORCH_PYTHON names one)")
    path = tmp_path / "built-in.yaml"
    path.write_text(
        dedent("""
            format: dovetail-campaign/1
            name: built-in
            size: tiny
            workloads: [gemm, burst]
            stages:
              - {measure: solos}
              - {measure: pairs}
            windows: {settle_s: 0.2, least_s: 0.5, most_s: 2, relative_error: 0.2}
        """)
    )
    assert main(command(path, "--python", python)) == 0
    found = read_ledger(tmp_path / "out")
    assert [one.status for one in found.results] == ["ok"] * 5
    assert found.machine.torch is not None
    (burst,) = [one for one in found.results if one.workloads == ("burst",)]
    assert burst.paces[0].latency is not None
    assert capsys.readouterr().err == ""
