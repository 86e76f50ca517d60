"""The CUDA client, with a libcuda that checks arguments and computes nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dovetail.executor.live.first_contact.bench import CLIENT
from tests.executor.live.waiting import LIMIT_S

pytestmark = pytest.mark.usefixtures("with_cuda")


def events(*arguments, words=""):
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(CLIENT), *arguments],
        input=words,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, {
        (event := json.loads(line))["event"]: event for line in done.stdout.splitlines()
    }


def test_it_reports_what_it_sees():
    status, told = events("report")
    assert status == 0
    ready = told["ready"]
    assert (ready["sms"], ready["mps"], ready["total_mib"]) == (132, False, 81920)


def test_a_busy_one_has_the_work_it_is_told():
    status, told = events("busy", "work=100")
    assert status == 0
    assert told["begun"]["work"] == 100
    assert told["stopped"]["n"] == 0  # the end of input came before the first kernel


def test_what_does_not_fit_is_told_with_how_far_it_came():
    # 81920 MiB, 500 of them the context's: nine pieces of 8192 fit, ten do not.
    status, told = events("allocate", "mib=100000", "step=8192")
    assert status == 1
    assert told["taken"]["mib"] == 9 * 8192
    assert told["error"]["name"] == "CUDA_ERROR_OUT_OF_MEMORY"


@pytest.mark.parametrize(("mode", "number"), [("illegal", 700), ("trap", 719)])
def test_faults_come_when_told_to(mode, number):
    status, told = events(mode, words="go\n")
    assert status == 1
    assert told["error"]["number"] == number


@pytest.mark.parametrize("mode", ["illegal", "trap"])
def test_the_end_of_input_is_no_order_to_fault(mode):
    status, told = events(mode)
    assert status == 0
    assert "launching" not in told


def test_without_a_driver_it_says_so(monkeypatch):
    monkeypatch.delenv("LD_LIBRARY_PATH")
    try:
        import ctypes

        ctypes.CDLL("libcuda.so.1")
    except OSError:
        status, told = events("report")
        assert status == 1
        assert told["error"]["call"] == "dlopen"
    else:
        pytest.skip("there is a driver here")
