"""What the README shows of caps is what our measurements say."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from dovetail.instances.datasets import DataSet, Measurement, read_dataset

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def caps():
    spec = importlib.util.spec_from_file_location("caps", ROOT / "benchmarks" / "caps.py")
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    yield found
    del sys.modules[spec.name]


def measured(*workloads, **fields):
    return Measurement(workloads=workloads, gpu_model="G", **fields)


def test_pairs_are_those_known_both_ways_in_either_order(caps):
    data = DataSet(
        name="made-up",
        measurements=(
            measured("a", "b", slowdown=(1.25, 5.0)),
            measured("b", "a", slowdown=(2.0, 1.6), share=(50, 50)),
            measured("c", "c", slowdown=None, at_least=(8.0, None)),
            measured("c", "c", slowdown=(2.0, 2.5), share=(50, 50)),
            measured("a", "c", slowdown=(1.0, 1.0)),
            measured("b", "c", slowdown=None),
            measured("b", "c", slowdown=(1.0, 1.0), share=(50, 50)),
        ),
    )
    pairs = caps.pairs_of(data)
    assert [pair.text for pair in pairs] == ["c with c", "b with a"]
    *slower, combined = caps.means(pairs).values()
    assert slower == [(5, 2, 2), (5, 2, 2)]
    assert combined == pytest.approx((1, 1.125, 1.125))
    shown = [re.split(r"  +", line) for line in caps.table(pairs)]
    assert shown[-2:] == [
        ["c with c", ">= 8.00", "2.00 / 2.50"],
        ["b with a", "5.00 / 1.25", "2.00 / 1.60"],
    ]


def test_the_picture_and_the_readme_are_of_our_measurements(caps):
    data = read_dataset(caps.DATA)
    pairs = caps.pairs_of(data)
    shown = (ROOT / "docs" / "images" / "caps.svg").read_text()
    assert shown == caps.picture(pairs, *data.gpu_models), "python benchmarks/caps.py --svg"
    lines = (ROOT / "README.md").read_text().splitlines()
    rows = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in lines]
    by_name = {row[0]: row[1:] for row in rows if row}
    figures = {name: [f"{value:.2f}" for value in of] for name, of in caps.means(pairs).items()}
    assert {name: by_name.get(name) for name in figures} == figures
