"""The levels of the library's gate by the gaps between latency-critical launches."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dovetail.isolation.interception import library

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

LEVELS = Path(sys.modules[library.__module__].__file__).with_name("levels.h")
TOP = 24
_SOURCE = f"""
#include <stddef.h>
#include "{LEVELS}"
static struct gaps gaps;
void forget(void) {{ forget_gaps(&gaps); }}
void add(double us) {{ add_gap(&gaps, us); renew_levels(&gaps); }}
unsigned level(double us) {{ double changes; return level_after(&gaps, us, &changes); }}
double changes(double us) {{ double at; level_after(&gaps, us, &at); return at; }}
unsigned class(double seconds) {{ return class_of(seconds); }}
"""


@pytest.fixture(scope="module")
def levels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("levels")
    (folder / "levels.c").write_text(_SOURCE)
    made = folder / "levels.so"
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", made, folder / "levels.c"]
    subprocess.run(command, check=True)
    found = ctypes.CDLL(made)
    for name in ("add", "level", "changes", "class"):
        getattr(found, name).argtypes = [ctypes.c_double]
    found.changes.restype = ctypes.c_double
    return found


@pytest.fixture
def after(levels):
    def given(gaps_s):
        levels.forget()
        for gap in gaps_s:
            levels.add(gap * 1e6)
        return lambda seconds: levels.level(seconds * 1e6)

    return given


def test_classes(levels):
    times = (0.5e-6, 4e-6, 4.1e-6, 31.6e-6, 33e-6, 1e3)
    assert [getattr(levels, "class")(one) for one in times] == [2, 2, 3, 5, 6, TOP]


def test_all_begin_while_nothing_is_known(after):
    level = after([])
    assert {level(at) for at in (0, 1e-6, 1e-3, 1.0, 100.0)} == {TOP}


def test_nothing_long_begins_shortly_before_a_regular_request(after):
    level = after([6e-3] * 100)
    # From 3 ms on, one of 2 ms ends in time, one of 4 ms does not; after 5.4 ms only short ones.
    assert level(3e-3) == 11
    assert level(5.4e-3) <= 10
    # What is longer than all gaps begins with them; later than ever, nothing is known.
    assert level(0) == level(20e-3) == TOP


def test_memoryless_requests_keep_nothing_out(after):
    drawn = np.random.default_rng(1).exponential(4e-3, 4000)
    level = after(drawn)
    assert level(0) == TOP
    assert level(2e-3) == TOP


def test_short_pauses_within_bursts_are_let_pass(after):
    rng = np.random.default_rng(2)
    level = after(np.where(rng.random(2000) < 0.8, 15e-6, rng.exponential(50e-3, 2000)))
    assert level(0) <= 4
    assert level(50e-6) >= 10


def test_old_gaps_are_forgotten(after):
    assert after([20e-6] * 9000 + [50e-3] * 30000)(0) >= 14


def test_a_level_says_when_it_changes(levels, after):
    rng = np.random.default_rng(3)
    level = after(np.where(rng.random(2000) < 0.8, 15e-6, 6e-3))
    at, seen = 0.0, []
    while True:
        seen.append(level(at * 1e-6))
        changes = levels.changes(at)
        if not changes:
            break
        assert level(changes * 0.999e-6) == seen[-1] != level(changes * 1.001e-6)
        at = changes * 1.0001
    assert len(seen) > 2
    assert seen[-1] == TOP
