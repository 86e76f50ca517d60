"""The counter of SMs, against a made-up libcuda: its numbers and calls, not what a GPU says."""

import json
import subprocess
import sys

import pytest

from dovetail.executor.live.split_measuring import COUNTER, GateError, Measuring, count_sms
from tests.executor.live.made_up_libcuda import made_up_libcuda


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Return a folder with the made-up libcuda."""
    return made_up_libcuda(tmp_path_factory.mktemp("cuda"))


def measuring(library, **more):
    def environment(share):
        cap = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(share)}
        return {"LD_LIBRARY_PATH": str(library), **cap, **more}

    return Measuring("Made-up GPU", "580.1", 132, sys.executable, environment)


def test_every_share_is_counted_in_order(library):
    counts = list(count_sms(measuring(library), [50, 1, 100]))
    # 132 * 50 / 100 = 66, 132 / 100 = 1.32 -> 1, 132
    assert [(one.share, one.sms) for one in counts[::2]] == [(50, 66), (100, 132)]
    assert counts[1].sms == 1
    assert counts[0].gpu_model == "Made-up GPU"


def test_a_count_without_mps_is_none(library):
    with pytest.raises(GateError, match="did not reach MPS"):
        list(count_sms(measuring(library, NO_MPS="1"), [50]))


def test_an_error_of_cuda_is_told(library):
    with pytest.raises(GateError, match="cuInit failed with CUDA error 100"):
        list(count_sms(measuring(library, FAIL="1"), [50]))


def test_without_cuda_one_line_says_so():
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(COUNTER)], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        assert json.loads(done.stdout)["sms"] > 0
    else:
        assert done.stderr.count("\n") == 1
