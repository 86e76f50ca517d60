"""The counter of SMs with a stand-in for libcuda: its calls, not a GPU's answers."""

import json
import subprocess
import sys

import pytest

from dovetail.measuring.split_measuring import PROGRAM, GateError, count_sms
from tests.executor.gpus.libcuda import standin_libcuda
from tests.measuring.probes import probed


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Return a folder with the stand-in for libcuda."""
    return standin_libcuda(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def probe(library, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    with probed(sys.executable) as probe:
        yield probe


def test_every_share_is_counted_in_order(probe):
    counts = list(count_sms(probe, [50, 1, 100, 3, 4, 5]))
    assert [one.share for one in counts] == [50, 1, 100, 3, 4, 5]
    # 132 * 50 / 100 = 66; no less than 8; 132
    assert [one.sms for one in counts[:3]] == [66, 8, 132]
    assert counts[0].gpu_model == "Made-up GPU"


def test_a_count_without_mps_is_none(probe, monkeypatch):
    monkeypatch.setenv("STANDIN_NO_MPS", "1")
    with pytest.raises(GateError, match="did not reach MPS"):
        list(count_sms(probe, [50]))


def test_an_error_of_cuda_is_reported(probe, monkeypatch):
    monkeypatch.setenv("STANDIN_FAIL", "1")
    with pytest.raises(GateError, match="cuInit failed with CUDA error 100"):
        list(count_sms(probe, [50]))


def test_without_cuda_one_line_says_so():
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(PROGRAM), "count"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        assert json.loads(done.stdout)["sms"] > 0
    else:
        assert done.stderr.count("\n") == 1
