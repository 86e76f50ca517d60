"""What the page about the law of MPS shows is what the benchmark prints."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from dovetail.instances.datasets import read_dataset

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def law():
    spec = importlib.util.spec_from_file_location("law", ROOT / "benchmarks" / "law.py")
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    yield found
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def pairs(law):
    return law.Settings.of(read_dataset(law.DATA))


def test_the_page_shows_the_table(law, pairs):
    page = (ROOT / "docs" / "explanation" / "law-of-mps.md").read_text(encoding="utf-8")
    shown = re.search(r"```text\n(.*?)```", page, re.DOTALL).group(1).splitlines()
    printed = list(law.table(pairs))
    assert len(shown) == len(printed)
    assert max(map(len, printed)) <= 80
    for there, here in zip(shown, printed, strict=True):
        assert there[:48] == here[:48]
        if there[48:].split()[0] == "tests":
            continue
        numbers = [list(map(float, line[48:].split())) for line in (there, here)]
        assert numbers[1] == pytest.approx(numbers[0], abs=0.02)


def test_workloads_left_out_are_foreseen(law, pairs):
    """Figures that the predictor is kept to."""
    uncapped = law.left_out(pairs.uncapped)
    assert len(uncapped.measured) == 82
    assert uncapped.r2 > 0.95
    capped = law.hidden_with_levels(pairs.capped)
    assert abs(capped.predicted - capped.measured).mean() < 0.12


def test_the_picture_shows_every_test(law, pairs):
    picture = law.picture(pairs, "GPU")
    points = len(re.findall(r"<circle", picture))
    assert points == len(law.left_out(pairs.uncapped).measured) + 1
    assert (ROOT / "docs" / "images" / "law.svg").read_text().count("<circle") == points


def test_bounds_hold_as_often_as_they_say(law):
    for confidence in (0.8, 0.9, 0.95):
        for held in law.coverage(read_dataset(law.DATA), confidence):
            assert held >= confidence - 0.02
