"""Ctrl-C that ends searches, and then the process."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys
from dovetail.formulations.budget import Budget, InterruptibleClock
from dovetail.toolkit.progress import interrupting

signal.signal(signal.SIGINT, signal.default_int_handler)
clock = InterruptibleClock()
budgets = [Budget.of(3600.0, clock), Budget.of(None, clock), Budget.of(3600.0, clock).part(0.5)]
try:
    with interrupting(clock):
        for number in range(int(sys.argv[1])):
            os.kill(os.getpid(), signal.SIGINT)
        took = clock.now() - clock.now()
        late = [Budget.of(9.0, clock), budgets[0].part(0.5), budgets[0].earlier(took)]
        print([budget.passed for budget in (*budgets, *late)], flush=True)
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("as before")
"""


def interrupted(times: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(times)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_without_an_interrupt_all_is_as_before():
    done = interrupted(0)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{[False] * 6}\nas before\n"


def test_the_first_interrupt_ends_all_searches_and_the_next_one_the_process():
    done = interrupted(1)
    assert done.stdout == f"{[True] * 6}\n"
    assert done.stderr == "dovetail: interrupted: the best plan so far follows\n"
    assert done.returncode == -signal.SIGINT


@pytest.mark.parametrize("times", [2, 3])
def test_a_second_interrupt_within_ends_the_process(times):
    done = interrupted(times)
    assert (done.stdout, done.returncode) == ("", -signal.SIGINT)
