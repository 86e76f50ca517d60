"""The pool of many machines keeps what every pool promises, with agents as real processes."""

from pathlib import Path

import pytest

from dovetail.executor.nodes.pool import NodesPool
from dovetail.executor.pools.pool import NodePool
from tests.executor.pools.pool_contract import PoolContract
from tests.executor.pools.test_cpu_pool import TWO_CORES
from tests.executor.pools.test_cpu_pool import TestContract as _OfCpuPool

from .agents import finder as found
from .agents import start_agents


class _Nodes(PoolContract):
    commands = _OfCpuPool.commands
    count = 1
    pool = "cpu"

    @pytest.fixture(autouse=True)
    def _with_agents(self, tmp_path_factory):
        # Those of a test before would belong to its service until the lease has lapsed.
        self._agents = start_agents(tmp_path_factory.mktemp("agents"), self.count, self.pool)
        yield
        for agent in self._agents:
            agent.end()

    def make(self, directory: Path) -> NodePool:
        return NodesPool(directory, found(self._agents))


@pytest.mark.long
@TWO_CORES
class TestOneNode(_Nodes):
    pass


class TestThreeNodes(_Nodes):
    """Gangs of this contract are over several nodes."""

    count = 3
    pool = "cpu:devices=1"


del _OfCpuPool
