"""Pools that installed packages add: a package of one module, with the file of its entry point."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.api.live.services import served

LAB = """
from dovetail.executor.pools.simulated import SimulatedNode
from dovetail.toolkit.files import instance_named

def pool(rest, directory, sample_s):
    assert sample_s == 0.5
    return SimulatedNode(directory, instance_named(rest))

def fails(rest, directory, sample_s):
    raise OSError("no such rack")

def nonsense(rest, directory, sample_s):
    return 5
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a package whose pool ``shop`` is simulated; those of its other pools are missing."""
    (tmp_path / "lab_pools.py").write_text(LAB)
    metadata = tmp_path / "lab_pools-1.dist-info"
    metadata.mkdir()
    (metadata / "entry_points.txt").write_text(
        "[dovetail.plugins]\n"
        "pool.cpu = lab_pools:no_such_function\n"
        "pool.fails = lab_pools:fails\n"
        "pool.gone = lab_pools:no_such_function\n"
        "pool.nonsense = lab_pools:nonsense\n"
        "pool.shop = lab_pools:pool\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def dovetail(*words):
    command = (sys.executable, "-m", "dovetail", *words)
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("package")
def test_it_serves(short_path):
    options = ("--pool", "shop:library:lab", "--watch", "sample_s=0.5")
    with served(short_path / "home", *options) as (_, greeting):
        assert greeting.startswith("serving the simulated pool, ")


@pytest.mark.usefixtures("package")
def test_help_and_errors_name_it(short_path):
    assert "; shop:..." in " ".join(dovetail("serve", "--help").stdout.split())
    done = dovetail("serve", "--directory", str(short_path / "home"), "--pool", "tpu")
    assert done.returncode == 2
    assert done.stderr.startswith("dovetail: --pool: must be one of gpu, cpu, simulated, ")
    assert ", shop" in done.stderr
    assert done.stderr.endswith(", got 'tpu'\n")


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "target", "why"),
    [
        ("gone", "no_such_function", "cannot be imported: AttributeError: "),
        ("fails", "fails", "failed: OSError: no such rack"),
        ("nonsense", "nonsense", "must return a NodePool, got int"),
    ],
)
def test_one_that_does_not_work_is_an_error_in_one_line(short_path, name, target, why):
    done = dovetail("serve", "--directory", str(short_path / "home"), "--pool", name)
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"dovetail: plugin pool.{name} of the package lab-pools (lab_pools:{target}) {why}"
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("package")
def test_a_pool_of_the_core_is_not_replaced(short_path):
    done = dovetail("serve", "--directory", str(short_path / "home"), "--pool", "cpu:devices=0")
    assert done.stderr.startswith("dovetail: --pool: devices must be a whole number >= 1")
