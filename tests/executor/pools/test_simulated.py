"""The simulated pool: the contract of all pools, and times computed by hand."""

from __future__ import annotations

import json

import pytest

from dovetail.executor.jobs.events import RankEnded, RankReady, RankRefused, RankStarted
from dovetail.executor.jobs.specs import JobSpec, Run, Seat
from dovetail.executor.pools import simulated
from dovetail.executor.pools.pool import Progress
from dovetail.executor.pools.simulated import SimulatedNode
from dovetail.executor.system.clock import boot_s
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance
from tests.executor.pools.pool_contract import ME, Commands, PoolContract


def truth(**changes):
    """Return two GPUs; A slows B by 2 and B slows A by 1.25; C fits with no job."""
    gpu = {"model": "V100", "memory_mib": 16000}
    data = {
        "format": "dovetail-instance/1",
        "name": "truth",
        "cluster": {"nodes": [{"id": "n0", "gpu_count": 2, "gpu": gpu}]},
        "workloads": {
            "A": {"memory_mib": 4000, "duration_s": 100.0, "throughput": {"100": 5.0}},
            "B": {"memory_mib": 4000, "power_w": 100.0, "metrics": {"sm_active": 0.5}},
            "C": {"memory_mib": 14000},
        },
        "jobs": [],
        "slowdowns": [{"pair": ["A", "B"], "slowdown": [1.25, 2.0]}],
        **changes,
    }
    return Instance.from_data(data)


def run_of(job, workload, *words, gpus=("n0-0",), **fields):
    spec = JobSpec(
        command=("simulate", *words),
        workload=workload,
        owner=ME,
        cwd="/",
        workers=len(gpus),
        **fields,
    )
    return Run(id=f"{job}.1", job=job, spec=spec, seats=[Seat(gpu=gpu) for gpu in gpus])


class Clock:
    """Seconds since the machine booted, as the test sets them."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


def at(pool, clock, now_s):
    """Return a pool's events at a moment."""
    clock.now_s = now_s
    return pool.poll()


class TestContract(PoolContract):
    commands = Commands(
        brief=("simulate", "work_s=0.4"),
        failing=("simulate", "work_s=0.4", "status=3"),
        awaiting=("simulate", "work_s=3600"),
        endless=("simulate", "work_s=1e6"),
        deaf=("simulate", "work_s=1e6", "deaf=1"),
    )

    skipped_s = 0.0

    def make(self, directory):
        return SimulatedNode(directory, truth(), start_s=0.05, boot_s=self.now_s)

    def now_s(self):
        return boot_s() + self.skipped_s

    def let_end(self):
        self.skipped_s += 3600.0

    def stands_still(self, started):
        return True


class TestTime:
    @pytest.fixture
    def clock(self):
        return Clock()

    @pytest.fixture
    def pool(self, tmp_path, clock):
        return SimulatedNode(tmp_path, truth(), boot_s=clock)

    def test_a_run_alone_takes_its_work(self, tmp_path, clock):
        pool = SimulatedNode(tmp_path, truth(), start_s=5.0, boot_s=clock)
        pool.launch(run_of("j1", "A", "work_s=10"))
        assert [event.kind for event in pool.poll()] == ["rank_started"]
        assert pool.next_s() == 5.0
        assert [event.kind for event in at(pool, clock, 6.0)] == ["rank_ready"]
        assert pool.next_s() == 15.0
        assert at(pool, clock, 14.9) == []
        assert at(pool, clock, 15.0) == [RankEnded(at_s=0.0, run="j1.1", rank=0, status=0)]

    def test_two_slow_each_other_while_they_are_together(self, pool, clock):
        # A: 10 s of work at 1/1.25 = 0.8 a second: over at 12.5. B has done 12.5/2 = 6.25 of its
        # 10 by then, and does the rest alone: over at 16.25.
        for job, workload in (("j1", "A"), ("j2", "B")):
            pool.launch(run_of(job, workload, "work_s=10"))
        pool.poll()
        assert pool.next_s() == pytest.approx(12.5)
        assert [event.run for event in at(pool, clock, 12.6)] == ["j1.1"]
        assert pool.next_s() == pytest.approx(16.25)

    @pytest.mark.parametrize("steps", [1, 7, 100])
    def test_it_does_not_matter_how_often_one_looks(self, tmp_path, clock, steps):
        pool = SimulatedNode(tmp_path, truth(), speed=2.0, boot_s=clock)
        for job, workload in (("j1", "A"), ("j2", "B")):
            pool.launch(run_of(job, workload, "work_s=10"))
        for step in range(steps):
            at(pool, clock, 5.0 * (step + 1) / steps)
        # Twice as fast: A ends at 6.25; in 5 s it has done 8 s of work, 5 iterations each, B 5 s.
        done = [pool.progress(run)[0].iterations for run in ("j1.1", "j2.1")]
        assert [pool.next_s(), *done] == pytest.approx([6.25, 8.0 * 5, 5.0])

    def test_a_gang_goes_at_the_pace_of_its_slowest_rank(self, pool, clock):
        # B on two GPUs, A with it on one: B at 1/2 until A is over.
        pool.launch(run_of("j1", "B", "work_s=10", gpus=("n0-0", "n0-1")))
        pool.launch(run_of("j2", "A", "work_s=4", gpus=("n0-1",)))
        assert at(pool, clock, 5.0)[-1].run == "j2.1"
        assert pool.progress("j1.1")[0].iterations == pytest.approx(2.5)

    def test_one_rank_that_fails_leaves_the_others_waiting(self, pool, clock):
        pool.launch(run_of("j1", "A", "work_s=3", "status=1", "rank=1", gpus=("n0-0", "n0-1")))
        ended = [event for event in at(pool, clock, 1000.0) if event.kind == "rank_ended"]
        assert [(event.rank, event.status) for event in ended] == [(1, 1)]
        pool.stop("j1.1", 5.0)
        assert [(event.rank, event.status) for event in pool.poll()] == [(0, -15)]

    def test_a_run_that_does_not_fit_ends_and_the_other_goes_on(self, pool, clock):
        pool.launch(run_of("j1", "A", "work_s=10"))
        at(pool, clock, 1.0)
        pool.launch(run_of("j2", "C", "work_s=10"))
        assert pool.poll()[-1] == RankEnded(at_s=0.0, run="j2.1", rank=0, status=1)
        assert pool.next_s() == pytest.approx(10.0)

    def test_a_paused_run_makes_no_progress_and_slows_the_other_as_before(self, pool, clock):
        # Until 5 A has done 4 of its 10 s, B 2.5; while A is paused B does another 2.5 until 10.
        for job, workload in (("j1", "A"), ("j2", "B")):
            pool.launch(run_of(job, workload, "work_s=10"))
        at(pool, clock, 5.0)
        pool.pause("j1.1", True)
        at(pool, clock, 10.0)
        assert pool.progress("j1.1")[0].iterations == pytest.approx(4 * 5)
        assert pool.progress("j2.1")[0].iterations == pytest.approx(5.0)
        pool.pause("j1.1", False)
        assert pool.next_s() == pytest.approx(10 + 6 * 1.25)

    def test_energy_is_power_over_time(self, pool, clock):
        # B alone at 100 W for its 10 s, then no job.
        pool.launch(run_of("j1", "B", "work_s=10"))
        at(pool, clock, 30.0)
        assert [used.energy_j for used in pool.usage().values()] == pytest.approx([1000.0, 0.0])


class TestPool:
    def test_a_service_that_comes_back_finds_work_done(self, tmp_path):
        now = [1000.0]
        first = SimulatedNode(tmp_path, truth(), boot_s=lambda: now[0])
        runs = [run_of("j1", "A", "work_s=10"), run_of("j2", "B", "work_s=10")]
        first.resume(())
        for run in runs:
            first.launch(run)
        first.close()
        now[0] += 14.5
        # As above: A is over at 12.5, B has done 6.25 + 2.
        again = SimulatedNode(tmp_path, truth(), boot_s=lambda: now[0])
        assert list(again.resume(runs)) == []
        ended = [event.run for event in again.poll() if event.kind == "rank_ended"]
        assert ended == ["j1.1"]
        assert again.progress("j2.1")[0].iterations == pytest.approx(8.25)
        again.close()

    def test_progress_is_in_iterations(self, tmp_path):
        now = [0.0]
        pool = SimulatedNode(tmp_path, truth(), speed=10.0, boot_s=lambda: now[0])
        pool.launch(run_of("j1", "A"))
        pool.poll()
        now[0] = 4.0
        # 40 of 100 s of work at 5 iterations each.
        assert pool.progress("j1.1") == [Progress(200.0, 4.0, 500.0)]
        pool.close()

    def test_usage_is_the_only_residents(self, tmp_path):
        pool = SimulatedNode(tmp_path, truth())
        pool.launch(run_of("j1", "B", "work_s=1e6"))
        pool.poll()
        used = pool.usage()
        assert used["n0-0"].metrics == {"sm_active": 0.5}
        assert used["n0-0"].memory_by_run == {"j1.1": 4000.0}
        assert used["n0-0"].source == "simulated"
        assert used["n0-1"].metrics == {}
        pool.close()

    def test_after_a_reboot_nothing_runs(self, tmp_path, monkeypatch):
        pool = SimulatedNode(tmp_path, truth())
        run = run_of("j1", "A")
        pool.launch(run)
        pool.close()
        monkeypatch.setattr(simulated, "boot_id", lambda: "another")
        again = SimulatedNode(tmp_path, truth())
        assert list(again.resume([run])) == []
        assert [event.kind for event in again.poll()] == ["rank_gone"]
        again.close()

    @pytest.mark.parametrize(
        ("workload", "words", "reason"),
        [
            ("Z", (), "the instance has no workload 'Z', only A, B, C"),
            ("B", (), "B: work_s: must be > 0, or the job needs an estimate"),
            ("B", ("work_s=0",), "B: work_s: must be > 0, or the job needs an estimate"),
            ("B", ("work_s=long",), "work_s: must be a number, got 'long'"),
            ("A", ("rank=1",), "A: rank: must be in 0..0, got 1"),
        ],
    )
    def test_what_cannot_be_simulated_is_refused(self, tmp_path, workload, words, reason):
        pool = SimulatedNode(tmp_path, truth())
        pool.launch(run_of("j1", workload, *words))
        events = pool.poll()
        assert [(type(event), event.reason) for event in events] == [(RankRefused, reason)]
        pool.close()

    def test_a_start_that_cannot_be_written_down_is_none(self, tmp_path, monkeypatch):
        def full(*_):
            raise InputError("cannot be written (no space left on device)")

        pool = SimulatedNode(tmp_path, truth())
        run = run_of("j1", "A")
        with monkeypatch.context() as disk:
            disk.setattr(simulated, "write_text", full)
            pool.launch(run)
        assert [event.kind for event in pool.poll()] == ["rank_refused"]
        pool.close()
        again = SimulatedNode(tmp_path, truth())
        again.resume([run])
        assert list(again.poll()) == []
        again.close()

    def test_a_log_that_was_opened_and_not_written_gets_its_line(self, tmp_path):
        pool = SimulatedNode(tmp_path, truth())
        run = run_of("j1", "A")
        pool.launch(run)
        pool.close()
        log = tmp_path / "runs" / "j1.1" / "rank0" / "log"
        log.write_text("")
        again = SimulatedNode(tmp_path, truth())
        again.resume([run])
        again.close()
        assert log.read_text() == "simulated: started, not run: simulate\n"

    def test_a_file_that_is_none_of_its_own_is_named(self, tmp_path):
        (tmp_path / "simulated.json").write_text(json.dumps({"boot": 1}))
        with pytest.raises(InputError, match="must be the file of a simulated pool"):
            SimulatedNode(tmp_path, truth()).resume(())

    def test_the_log_says_that_it_is_simulated(self, tmp_path):
        pool = SimulatedNode(tmp_path, truth())
        run = run_of("j1", "A", "work_s=0.01")
        assert pool.log_path("j1.1", 0) is None
        pool.launch(run)
        text = (tmp_path / "runs" / "j1.1" / "rank0" / "log").read_text()
        assert text == "simulated: started, not run: simulate work_s=0.01\n"
        assert pool.log_path("j1.1", 0) is not None
        kinds = [type(event) for event in pool.poll()]
        assert kinds[:2] == [RankStarted, RankReady]
        pool.close()
