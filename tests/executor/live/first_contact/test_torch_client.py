"""The questions to PyTorch's allocator, on the CPU where there is a PyTorch."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from dovetail.executor.live.first_contact.memory import TORCH
from tests.executor.live.waiting import LIMIT_S


@pytest.fixture
def python():
    named = os.environ.get("DOVETAIL_TORCH_PYTHON")
    if named is None and importlib.util.find_spec("torch") is None:
        pytest.skip("no PyTorch here, and DOVETAIL_TORCH_PYTHON names no Python that has it")
    return named or sys.executable


def told(python, *arguments):
    done = subprocess.run(
        [python, "-I", str(TORCH), *arguments], capture_output=True, text=True, timeout=LIMIT_S
    )
    (line,) = done.stdout.splitlines()
    return json.loads(line)


def test_it_says_how_often_a_block_was_handed_out_again(python):
    event = told(python, "reuse", "cpu")
    assert event["event"] == "reuse"
    assert 0 <= event["same"] <= event["of"] == 2


def test_without_a_gpu_it_says_so(python):
    event = told(python, "expandable", "mib=64")
    assert event["event"] in ("error", "taken")


def test_without_pytorch_it_says_so():
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("this Python has PyTorch")
    assert told(sys.executable, "reuse")["name"] == "No module named 'torch'"
