"""The contract of pools on a pool of three nodes, with agents as real processes."""

from pathlib import Path

import pytest

from dovetail.cluster.pool import NodesPool
from dovetail.executor.jobs.events import RankEnded, RankReady
from dovetail.executor.pools.pool import NodePool
from tests.executor.pools.pool_contract import PoolContract
from tests.executor.pools.test_cpu_pool import TestContract as _OfCpuPool
from tests.executor.waiting import wait_until

from .agents import finder, start_agents


class TestThreeNodes(PoolContract):
    """The contract, with gangs over several nodes."""

    commands = _OfCpuPool.commands

    @pytest.fixture(autouse=True)
    def _with_agents(self, tmp_path_factory):
        # New agents for each test: old ones serve the last test until its lease lapses.
        self._agents = start_agents(tmp_path_factory.mktemp("agents"), 3, "cpu:devices=1")
        yield
        for agent in self._agents:
            agent.end()

    def make(self, directory: Path) -> NodePool:
        return NodesPool(directory, finder(self._agents))

    def test_two_runs_hold_one_device_at_the_same_time(self, open_pool):
        observed = open_pool()
        runs = [self.run_of(observed.pool, self.commands.endless, job) for job in ("j1", "j2")]
        assert runs[0].seats == runs[1].seats
        for run in runs:
            observed.pool.launch(run)
            observed.wait(run, RankReady)
        wait_until(lambda: [self.starts(observed, run) for run in runs] == [1, 1])
        assert not any(observed.of(run, RankEnded) for run in runs)
        for run in runs:
            observed.pool.stop(run.id, 20.0)
            observed.wait(run, RankEnded)


del _OfCpuPool
