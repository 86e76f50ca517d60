"""Static partitions of SMs, with a stand-in that keeps to NVIDIA's pages: no GPU has run them."""

from __future__ import annotations

import os
import subprocess
from itertools import product

import pytest

from dovetail.executor.mps.control import Control, MpsError
from dovetail.executor.mps.manager import MpsManager
from dovetail.executor.mps.partitions import (
    PARTITION,
    Partition,
    PartitionTable,
    parsed,
    shares_of,
    wanted,
)

from ..waiting import wait_until
from . import standin
from .test_manager import ME, SHORT, say

UUID = "GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65"
DOCUMENTED = """GPU Partition free used free used clients
chunk chunk SM SM
GPU-74d43ed3 - 0 10 0 80 -
GPU-74d43ed3 Dx4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA - 5 - 40 Yes
GPU-74d43ed3 Cx4AA/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAA - 3 - 24 -
GPU-74d43ed3 Bx4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA - 2 - 28 Yes"""
"""The table of NVIDIA's "Multiple Partitions Example", one partition made idle, with a slash."""


def test_the_documented_table():
    table = parsed(DOCUMENTED.splitlines(), UUID)
    assert (table.free, table.chunks) == (0, 10)
    figures = [(one.chunks, one.sms, one.in_use) for one in table.partitions]
    assert figures == [(5, 40, True), (3, 24, False), (2, 28, True)]
    assert table.partitions[1].id == "Cx4AA/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"


def test_the_table_as_others_print_it():
    """Columns are left empty, and there are rows of another GPU."""
    lines = [
        "GPU Partition free used free used clients",
        "GPU-74d4 3 7 24 56",
        "GPU-74d4 Dx4 7 56 No",
    ]
    table = parsed([*lines, "GPU-11111111 1 1 8 8"], UUID)
    assert table == PartitionTable(3, 10, (Partition("Dx4", 7, 56, False),))


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["no GPU"],
        ["GPU-74d4 1 2"],
        ["GPU-74d4 Dx4 7 x"],
        ["GPU-74d4 1 2 3 4"] * 2,
        ["GPU-74d4"],
    ],
)
def test_anything_else_is_not_understood(lines):
    with pytest.raises(ValueError, match=r"unpack|invalid"):
        parsed(lines, UUID)


@pytest.mark.parametrize("chunks", range(1, 51))
def test_shares_fit_on_a_gpu_exactly_if_their_chunks_do(chunks):
    grid = shares_of(chunks)
    assert list(grid.values()) == list(range(1, chunks + 1))
    assert sorted(grid) == list(grid)
    for (one, a), (other, b) in product(grid.items(), repeat=2):
        assert (one + other == 100) == (a + b == chunks)
        assert (one + other > 100) == (a + b > chunks)


@pytest.mark.parametrize("chunks", range(2, 51))
def test_wanted_shares_are_of_whole_chunks_and_fill_the_gpu(chunks):
    found = wanted(chunks, (50, 25, 75, 10, 90))
    assert set(found) <= set(shares_of(chunks))
    assert all(100 - share in found for share in found if share != found[0])


@pytest.fixture
def manager(place):
    program = standin.install(place, "590")
    return MpsManager(place / "mps", program=program, patience=SHORT, static=True)


def control_of(manager, gpu):
    return manager._control(gpu, ME)


def begin(manager, gpu):
    """Start the daemon, and return the environment of a client without a partition."""
    return manager.environment(gpu, ME, None, None)


def sizes(manager, gpu):
    return [one.chunks for one in control_of(manager, gpu).partitions().partitions]


class TestManager:
    def test_a_client_runs_in_its_partition_only(self, manager, gpu, start_client):
        assert manager.chunks(gpu, ME) == 16
        plain = begin(manager, gpu)
        assert start_client(plain).learns() == "915"
        half = manager.partition(gpu, ME, 50, "a")
        assert half[PARTITION].startswith(f"{gpu}/")
        assert start_client({**plain, **half}).learns().startswith("attached")
        assert control_of(manager, gpu).partitions().partitions[0][1:] == (8, 64, True)

    def test_the_whole_gpu_is_one_partition(self, manager, gpu):
        begin(manager, gpu)
        manager.partition(gpu, ME, None, "a")
        (whole,) = control_of(manager, gpu).partitions().partitions
        assert whole[1:] == (16, 132, False)
        with pytest.raises(MpsError, match=r"6 chunks .* Failed to fulfill"):
            manager.partition(gpu, ME, 37, "b")

    def test_a_share_between_chunks_is_refused(self, manager, gpu):
        begin(manager, gpu)
        with pytest.raises(MpsError, match="40 % is no whole number of its 16 chunks"):
            manager.partition(gpu, ME, 40, "a")

    def test_what_is_held_stays_and_what_was_given_back_goes(self, manager, gpu):
        begin(manager, gpu)
        for holder, share in (("a", 50), ("b", 25)):
            manager.partition(gpu, ME, share, holder)
        manager.sweep(gpu)
        assert sizes(manager, gpu) == [8, 4]
        manager.give_back(gpu, "a")
        manager.sweep(gpu)
        assert sizes(manager, gpu) == [4]
        # The next one begins with a sweep of its own.
        manager.give_back(gpu, "b")
        manager.partition(gpu, ME, None, "c")
        assert sizes(manager, gpu) == [16]

    def test_a_restarted_service_finds_partitions_by_their_processes(
        self, manager, gpu, start_client
    ):
        plain = begin(manager, gpu)
        running = start_client({**plain, **manager.partition(gpu, ME, 50, "a")})
        assert running.learns().startswith("attached")
        manager.partition(gpu, ME, 25, "b")
        again = MpsManager(manager.directory, program=manager.program, patience=SHORT, static=True)
        assert begin(again, gpu) == plain
        again.sweep(gpu)
        assert sizes(again, gpu) == [8]
        running.process.kill()
        running.process.wait()
        wait_until(lambda: not control_of(again, gpu).partitions().partitions[0].in_use)
        again.sweep(gpu)
        assert sizes(again, gpu) == []

    def test_a_process_that_has_not_attached_yet_keeps_its_partition(
        self, manager, gpu, start_client
    ):
        plain = begin(manager, gpu)
        given = manager.partition(gpu, ME, 50, "a")
        with subprocess.Popen(["sleep", "600"], env={**os.environ, **plain, **given}) as slow:
            try:
                wait_until(control_of(manager, gpu).held_partitions)
                manager.give_back(gpu, "a")
                manager.sweep(gpu)
                assert sizes(manager, gpu) == [8]
            finally:
                slow.kill()
        manager.sweep(gpu)
        assert sizes(manager, gpu) == []

    def test_no_partition_while_there_are_clients_is_an_error_not_a_share(
        self, manager, gpu, start_client
    ):
        plain = begin(manager, gpu)
        assert (
            start_client({**plain, **manager.partition(gpu, ME, 50, "a")})
            .learns()
            .startswith("attached")
        )
        say(manager, gpu, "standin crowded")
        with pytest.raises(MpsError, match="8 chunks of SMs were not reserved: Device has active"):
            manager.partition(gpu, ME, 50, "b")
        assert sizes(manager, gpu) == [8]

    def test_a_table_of_nonsense_is_an_error(self, manager, gpu, monkeypatch):
        begin(manager, gpu)
        monkeypatch.setattr(Control, "ask", lambda *_, **__: ("lorem", "ipsum"))
        with pytest.raises(MpsError, match="'lspart' was answered by 'lorem / ipsum'"):
            control_of(manager, gpu).partitions()


class TestModes:
    def other(self, manager):
        return MpsManager(
            manager.directory, program=manager.program, patience=SHORT, static=not manager.static
        )

    def test_an_idle_daemon_of_the_other_mode_is_replaced(self, manager, gpu):
        begin(manager, gpu)
        assert control_of(manager, gpu).daemon().is_static
        limits = self.other(manager)
        limits.environment(gpu, ME, 50, None)
        assert not control_of(limits, gpu).daemon().is_static
        begin(manager, gpu)
        assert control_of(manager, gpu).daemon().is_static

    def test_one_with_clients_is_left_alone(self, manager, gpu, start_client):
        limits = self.other(manager)
        assert start_client(limits.environment(gpu, ME, 50, None)).learns().startswith("attached")
        with pytest.raises(MpsError, match="may have, clients with limits of SMs"):
            begin(manager, gpu)
        assert not control_of(manager, gpu).daemon().is_static

    def test_an_older_program_has_none(self, place, gpu):
        program = standin.install(place, "580")
        manager = MpsManager(place / "mps", program=program, patience=SHORT, static=True)
        with pytest.raises(MpsError, match="has no static partitions"):
            manager.chunks(gpu, ME)
