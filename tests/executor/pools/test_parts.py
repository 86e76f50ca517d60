"""Gangs over several nodes: parts are prepared, then committed or aborted, with real processes.

A node is a pool with a directory of its own; they are on one machine here.
"""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from dovetail.executor.pools.local import LocalPool
from dovetail.executor.pools.runs.files import Part, Rendezvous, RunFiles, whole
from dovetail.executor.pools.runs.lease import NodeLease
from dovetail.executor.pools.runs.processes import holders
from dovetail.executor.pools.runs.start_barrier import StartBarrier
from dovetail.executor.pools.shim.lease import LAPSED
from dovetail.executor.system.clock import boot_s
from tests.executor.local_runs import (
    Watched,
    a_run,
    cleared,
    fork_server,
    left_over,
    python,
    write_shim_spec,
)
from tests.executor.waiting import LIMIT_S, wait_until

GPUS = ("n1/cpu-0", "n2/cpu-0", "n1/cpu-1")
# Rank 0 waits for the others at the given address, and all print their variables.
MEET = """
import os, socket
given = [os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE')]
place = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])
if given[0] == '0':
    with socket.create_server(place) as server:
        others = [server.accept()[0] for _ in range(int(given[1]) - 1)]
        ranks = sorted(int(other.recv(10)) for other in others)
        print(*given, *ranks)
else:
    while True:
        try:
            socket.create_connection(place).send(given[0].encode())
            break
        except ConnectionRefusedError:
            pass
    print(*given)
"""


@pytest.fixture
def node(tmp_path):
    """Return a function that makes the pool of a node, or the next one of it."""
    with ExitStack() as ends:
        pools = {}

        def make(name="n1", runs=(), for_s=60.0):
            state = tmp_path / name
            if name in pools:
                pools[name].pool.close()
            else:
                ends.enter_context(cleared(state))
            pools[name] = Watched(LocalPool(state))
            lease = NodeLease(tmp_path / f"{name}.lease", kill_s=0.5)
            lease.renew_until(boot_s() + for_s)
            pools[name].lease = lease
            pools[name].pool.join("127.0.0.1", lease)
            pools[name].pool.resume(runs)
            return pools[name]

        yield make
        for made in pools.values():
            made.pool.close()


def prepared(pool, run, ranks, rendezvous=None):
    """Prepare a part and return the answer."""
    pool.pool.prepare(run, ranks, rendezvous)
    return prepared_of(pool)


def prepared_of(pool):
    found = []
    wait_until(lambda: found.extend(pool.pool.prepared()) or found, what="prepared")
    (one,) = found
    return one


def log(pool, rank, run="j1.1"):
    with open(pool.pool.log_path(run, rank), encoding="utf-8") as file:
        return file.read()


def noted(tmp_path):
    """Return a run whose ranks note their start, and how often each has done so."""
    run = a_run(f"echo started >> {tmp_path}/starts-$RANK; exec sleep 600", gpus=GPUS)
    return run, lambda: {
        path.name.removeprefix("starts-"): path.read_text().count("started")
        for path in tmp_path.glob("starts-*")
    }


class TestGang:
    def test_its_ranks_meet_at_the_given_address(self, node):
        run = a_run(python(MEET), gpus=GPUS)
        first, second = node("n1"), node("n2")
        part = prepared(first, run, {2, 0})
        assert (part.run, part.ranks, part.rendezvous.address) == ("j1.1", (0, 2), "127.0.0.1")
        other = prepared(second, run, {1}, part.rendezvous)
        assert (other.ranks, other.rendezvous) == ((1,), part.rendezvous)
        for pool in (first, second):
            pool.pool.commit("j1.1")
        for pool, rank in ((first, 0), (second, 1), (first, 2)):
            assert pool.wait_for("rank_ended", rank).status == 0
        # RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE; and the ranks that came to rank 0.
        assert [log(first, 0), log(second, 1), log(first, 2)] == [
            "0 3 0 2 1 2\n",
            "1 3 0 1\n",
            "2 3 0 2\n",
        ]
        assert {rank for _, rank in first.kinds()} == {0, 2}
        assert {rank for _, rank in second.kinds()} == {1}

    def test_nothing_has_run_before_it_is_committed(self, node, tmp_path):
        run, starts = noted(tmp_path)
        pool = node()
        prepared(pool, run, (0, 2))
        time.sleep(0.3)
        assert (starts(), pool.kinds()) == ({}, [])
        assert len(left_over(tmp_path / "n1")) == 4
        pool.pool.commit("j1.1")
        for rank in (0, 2):
            pool.wait_for("rank_ready", rank)
        wait_until(lambda: starts() == {"0": 1, "2": 1})

    def test_asking_again_is_harmless(self, node, tmp_path):
        run, starts = noted(tmp_path)
        pool = node()
        first = prepared(pool, run, (0, 2))
        assert prepared(pool, run, (0, 2)) == first
        pool.pool.commit("j1.1")
        for rank in (0, 2):
            pool.wait_for("rank_ready", rank)
        pool.pool.commit("j1.1")
        pool.pool.prepare(run, (0, 2))
        pool.pool.abort("j1.1", "too late")
        time.sleep(0.2)
        assert {kind for kind, _ in pool.kinds()} == {"rank_started", "rank_ready"}
        assert list(pool.pool.prepared()) == []
        assert starts() == {"0": 1, "2": 1}

    def test_ranks_other_than_0_need_the_meeting_address(self, node, tmp_path):
        with pytest.raises(ValueError, match="is decided where its rank 0 is"):
            node().pool.prepare(noted(tmp_path)[0], (1,))

    def test_gangs_of_two_directories_rarely_try_the_same_port(self, node, tmp_path):
        run, _ = noted(tmp_path)
        ports = {prepared(node(name), run, (0, 2)).rendezvous.port for name in ("n1", "n2")}
        assert len(ports) == 2


class TestNothingOfItRuns:
    def refused(self, pool, reason, ranks=(0, 2)):
        for rank in ranks:
            event = pool.wait_for("rank_refused", rank)
            assert (event.reason, event.later) == (reason, True)

    def test_when_it_is_aborted(self, node, tmp_path):
        run, starts = noted(tmp_path)
        pool = node()
        prepared(pool, run, (0, 2))
        pool.pool.abort("j1.1", "n2 cannot")
        self.refused(pool, "n2 cannot")
        wait_until(lambda: left_over(tmp_path / "n1") == [])
        # Nor later.
        again = node(runs=[run])
        self.refused(again, "n2 cannot")
        again.pool.prepare(run, (0, 2))
        again.pool.commit("j1.1")
        time.sleep(0.3)
        wait_until(lambda: (starts(), left_over(tmp_path / "n1")) == ({}, []))

    def test_when_that_cannot_be_kept_yet(self, node, tmp_path):
        run, starts = noted(tmp_path)
        pool = node()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        # As on a full disk, nothing can be written.
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            pool.pool.keep(Part(run, (0,), Rendezvous("127.0.0.1", 20_000)))
            pool.pool.abort(run.id, "n2 cannot")
            wait_until(lambda: "File too large" in pool.pool.trouble)
            assert pool.kinds() == []
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        refused = pool.wait_for("rank_refused", 0)
        assert (refused.reason, refused.later) == ("n2 cannot", True)
        assert starts() == {}

    def test_when_one_of_its_ranks_cannot(self, node, tmp_path):
        run, starts = noted(tmp_path)
        broken = run.model_copy(update={"spec": run.spec.replace(command=("no-such-program",))})
        first, second = node("n1"), node("n2")
        rendezvous = prepared(first, run, (0, 2)).rendezvous
        second.pool.prepare(broken, (1,), rendezvous)
        event = second.wait_for("rank_refused", 1)
        assert (event.reason, event.later) == (
            "rank 1: the program is not found: no-such-program",
            False,
        )
        first.pool.abort("j1.1", event.reason)
        self.refused(first, event.reason)
        assert list(second.pool.prepared()) == []
        assert starts() == {}
        wait_until(lambda: left_over(tmp_path / "n1") == left_over(tmp_path / "n2") == [])

    def test_when_one_of_its_launchers_dies_at_the_barrier(self, node, tmp_path):
        run, starts = noted(tmp_path)
        pool = node()
        prepared(pool, run, (0, 2))
        for process in holders(RunFiles(tmp_path / "n1", "j1.1").rank(2).token, os.geteuid()):
            process.send(signal.SIGKILL)
        self.refused(pool, "rank 2: its launcher died before the start")
        pool.pool.commit("j1.1")
        time.sleep(0.2)
        wait_until(lambda: (starts(), left_over(tmp_path / "n1")) == ({}, []))

    def test_when_it_is_not_committed(self, node, tmp_path, monkeypatch):
        monkeypatch.setattr("dovetail.executor.pools.runs.supervisor.COMMIT_S", 0.3)
        run, starts = noted(tmp_path)
        pool = node()
        prepared(pool, run, (0, 2))
        self.refused(pool, "it was prepared, and not committed within 0.3 s")
        wait_until(lambda: (starts(), left_over(tmp_path / "n1")) == ({}, []))

    def test_when_the_lease_lapses(self, node, tmp_path):
        run, starts = noted(tmp_path)
        pool, found = node(for_s=3.0), []
        pool.pool.prepare(run, (0, 2))

        def is_prepared():
            pool.lease.renew_until(boot_s() + 3.0)
            found.extend(pool.pool.prepared())
            return found

        wait_until(is_prepared)
        self.refused(pool, LAPSED)
        wait_until(lambda: (starts(), left_over(tmp_path / "n1")) == ({}, []))

    def test_when_it_is_stopped(self, node, tmp_path):
        run, starts = noted(tmp_path)
        pool = node()
        prepared(pool, run, (0, 2))
        pool.pool.stop("j1.1", 0.0)
        for rank in (0, 2):
            event = pool.wait_for("rank_refused", rank)
            assert event.reason == "it was stopped before it was started"
        wait_until(lambda: (starts(), left_over(tmp_path / "n1")) == ({}, []))

    def test_when_it_was_not_prepared(self, node, tmp_path):
        run, starts = noted(tmp_path)
        prepared(node(), run, (0, 2))
        pool = node(runs=[run])
        wait_until(lambda: left_over(tmp_path / "n1") == [])
        assert pool.kinds() == []
        pool.pool.commit("j1.1")
        self.refused(pool, "it was not prepared when it was to start")
        assert starts() == {}


class TestFoundAgain:
    def test_only_the_ranks_of_the_part_are_reported(self, node, tmp_path):
        run, _ = noted(tmp_path)
        first = node()
        rendezvous = Rendezvous("127.0.0.1", 29_999)
        prepared(first, run, (2, 1), rendezvous)
        first.pool.commit("j1.1")
        for rank in (1, 2):
            first.wait_for("rank_ready", rank)
        known = node()
        known.pool.poll()
        assert known.pool.unreleased() == [run]
        for runs in ([run], []):
            second = node(runs=runs)
            for rank in (1, 2):
                second.wait_for("rank_ready", rank)
            assert {rank for _, rank in second.kinds()} == {1, 2}
        assert second.pool.progress("j1.1") == [None, None, None]
        second.pool.stop("j1.1", 5.0)
        for rank in (1, 2):
            second.wait_for("rank_ended", rank)
        second.pool.release("j1.1")
        assert node().pool.unreleased() == []

    def test_what_is_kept_of_a_whole_run_is_the_run(self, node, tmp_path):
        run, _ = noted(tmp_path)
        pool = node()
        pool.pool.launch(run)
        pool.wait_for("rank_ready", 1)
        found = json.loads((tmp_path / "n1/runs/j1.1/run.json").read_text())
        assert found == json.loads(run.model_dump_json())


class TestAtTheGate:
    """A shim by itself; the process that holds it does not know of the lapse."""

    @pytest.fixture
    def rank(self, tmp_path):
        with cleared(tmp_path / "state"):
            files = RunFiles(tmp_path / "state", "j1.1")
            files.make(whole(a_run("true")))
            self.lease = NodeLease(tmp_path / "lease")
            lease = {"path": str(self.lease.path), "kill_s": 1.0}
            write_shim_spec(files.rank(0), "echo started", lease=lease)
            with fork_server(tmp_path / "state") as self.server:
                yield files.rank(0)

    def prepared(self, rank):
        """Return the barrier of a shim that has prepared its rank; the lease ends soon."""
        self.lease.renew_until(boot_s() + 3.0)
        barrier = StartBarrier(self.server, rank)
        with ThreadPoolExecutor(1) as asking:
            answer = asking.submit(barrier.answer, boot_s() + LIMIT_S)
            while not answer.done():
                self.lease.renew_until(boot_s() + 1.0)
                time.sleep(0.02)
        assert answer.result() == "prepared"
        return barrier

    def test_it_prepares_nothing_without_a_lease(self, rank):
        barrier = StartBarrier(self.server, rank)
        assert barrier.answer(boot_s() + LIMIT_S) == f"later {LAPSED}"
        barrier.dismiss()
        assert rank.started() is None

    @pytest.mark.parametrize("another", [False, True])
    def test_it_starts_nothing_after_a_lapse(self, rank, another, tmp_path):
        barrier = self.prepared(rank)
        wait_until(lambda: self.lease.lapsed)
        if another:
            self.lease.renew_until(boot_s() + 60.0)
        barrier.open()
        assert barrier.answer(boot_s() + LIMIT_S) == f"refused {LAPSED}"
        barrier.dismiss()
        assert rank.ending()[:3] == (None, LAPSED, True)
        assert rank.log.read_text() == ""
        pool = Watched(LocalPool(tmp_path / "state"))
        pool.pool.resume([a_run("true")])
        refused = pool.wait_for("rank_refused")
        assert (refused.reason, refused.later) == (f"rank 0: {LAPSED}", True)
        pool.pool.close()

    def test_it_starts_under_a_lease_that_was_renewed(self, rank):
        barrier = self.prepared(rank)
        first_s = self.lease.deadline_s
        self.lease.renew_until(boot_s() + 60.0)
        wait_until(lambda: boot_s() > first_s)
        barrier.open()
        assert barrier.answer(boot_s() + LIMIT_S) == "started"
        barrier.leave()
        wait_until(lambda: rank.ending() is not None)
        assert rank.ending()[:3] == (0, "", False)


AGENT = """
import sys
from pathlib import Path
from dovetail.executor.system.clock import boot_s
from dovetail.executor.jobs.specs import Run
from dovetail.executor.pools.runs.lease import NodeLease
from dovetail.executor.pools.local import LocalPool
run = Run.model_validate_json(sys.argv[3])
lease = NodeLease(Path(sys.argv[2]))
lease.renew_until(boot_s() + 600)
pool = LocalPool(Path(sys.argv[1]))
pool.join("127.0.0.1", lease)
pool.resume(pool.unreleased())
pool.prepare(run, (0, 2))
while not pool.prepared():
    pass
print("prepared", flush=True)
if sys.stdin.readline():
    pool.commit(run.id)
    print("committed", flush=True)
    sys.stdin.readline()
"""


class TestKilledAgents:
    """The process that holds a part is killed on either side of its commit."""

    def agent(self, tmp_path, run):
        words = [str(tmp_path / "n1"), str(tmp_path / "n1.lease"), run.model_dump_json()]
        agent = subprocess.Popen(
            [sys.executable, "-c", AGENT, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert agent.stdout.readline() == "prepared\n"
        return agent

    def test_before_it_nothing_runs_and_the_next_one_starts_it_once(self, node, tmp_path):
        run, starts = noted(tmp_path)
        with cleared(tmp_path / "n1"):
            with self.agent(tmp_path, run) as agent:
                agent.kill()
            wait_until(lambda: left_over(tmp_path / "n1") == [])
            assert starts() == {}
            assert not list((tmp_path / "n1").glob("runs/j1.1/rank*/started.json"))
            pool = node()
            prepared(pool, run, (0, 2))
            pool.pool.commit("j1.1")
            for rank in (0, 2):
                pool.wait_for("rank_ready", rank)
            wait_until(lambda: starts() == {"0": 1, "2": 1})

    @pytest.mark.parametrize("seed", range(6))
    def test_after_it_each_rank_runs_once_or_never(self, node, tmp_path, seed):
        run, starts = noted(tmp_path)
        with cleared(tmp_path / "n1"):
            with self.agent(tmp_path, run) as agent:
                agent.stdin.write("commit\n")
                agent.stdin.flush()
                time.sleep(random.Random(seed).uniform(0.0, 0.02))
                agent.kill()
            pool = node(runs=[run])
            # The order is repeated, as it is unknown whether it was carried out.
            pool.pool.commit("j1.1")
            ready, refused = ("rank_ready", 0), ("rank_refused", 0)
            wait_until(
                lambda: len({(k, r) for k, r in pool.kinds() if k in (ready[0], refused[0])}) == 2
            )
            running = {str(r) for k, r in pool.kinds() if k == "rank_ready"}
            wait_until(lambda: starts() == dict.fromkeys(running, 1))
            wait_until(lambda: len(left_over(tmp_path / "n1")) == 2 * len(running))
            time.sleep(0.2)
            assert starts() == dict.fromkeys(running, 1)
