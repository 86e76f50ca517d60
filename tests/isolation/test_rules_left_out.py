"""Each rule of the interpreter, and each reason for a refusal, is needed: tests fail without it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.isolation.rules_left_out import RULES


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(
            number,
            marks=pytest.mark.long if number % 10 else pytest.mark.slow,
            id=rule.text[:60],
        )
        for number, rule in enumerate(RULES)
    ],
)
def test_each_rule_left_out_is_found(number):
    ran = subprocess.run(
        [sys.executable, "-m", "tests.isolation.rules_left_out", str(number)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED, ran.stdout[-2000:] + ran.stderr[-2000:]
    assert " failed" in ran.stdout.splitlines()[-1]
