"""The benchmark of node pools in short; ``benchmarks/cluster/nodes.py`` is the long form."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.executor.pools.test_cpu_pool import TWO_CORES

FOLDERS = [Path(__file__).parents[2] / "benchmarks" / name for name in ("live", "cluster")]


@pytest.fixture
def benchmark(monkeypatch):
    """Return the benchmark; the services' processes find it by these paths, too."""
    for folder in FOLDERS:
        monkeypatch.syspath_prepend(str(folder))
    import nodes

    return nodes


@TWO_CORES
def test_gangs_are_launched_on_a_machine_and_on_nodes(benchmark, capsys):
    benchmark.print_launches(1)
    found = re.findall(r"gang of (\d): ([\d.]+) s \(median of 1", capsys.readouterr().out)
    assert [int(workers) for workers, _ in found] == [2, 2, 3]
    assert all(float(seconds) > 0 for _, seconds in found)


def test_simulated_nodes_run_gangs_over_the_protocol_as_the_simulated_pool_does(benchmark, capsys):
    benchmark.print_controller(nodes=6, seconds=0.2)
    out = capsys.readouterr().out
    assert out.count("3 gangs of 8 run") == 2
    assert len(re.findall(r"24 devices in use: -?[\d.]+% of a core, \d+ MiB", out)) == 2
