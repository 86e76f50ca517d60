from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.executor.simulation import simulate
from dovetail.instances.instance import Instance
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.solver.policies import Decision, Policy, Start, State, policy_named
from dovetail.solver.rounds import solve
from tests.executor.simulation.worlds import finishes, run, trace, world


def with_batch(where: Instance, memory_mib: dict[str, float], fixed_s: float = 1.0) -> Instance:
    """Return a world whose workloads fill memory with 8 samples at ``fixed_s`` and 1 s each."""
    data = where.to_data()
    for name, memory in memory_mib.items():
        data["workloads"][name] = {
            "memory_mib": memory,
            "batch": {
                "size": 8,
                "min": 1,
                "fixed_mib": 0.0,
                "mib_per_sample": memory / 8,
                "step_s": {"fixed": fixed_s, "per_sample": 1.0},
            },
        }
    return Instance.from_data(data)


def test_a_short_job_joins_a_long_one():
    # At 1, a has 99 s left and b needs 10. One by one: (99 + 109) / 2 = 104. At once: b ends
    # after 12 s, a has 89 left then: (12 + 101) / 2 = 56.5. So b joins: it ends at 13, a at 102.
    where = world(gpus=1, slowdowns=[("a", "b", 1.2, 1.2)])
    history = run(trace((0, 1, 100, "a"), (1, 1, 10, "b")), where, policy_named("castor"))
    assert finishes(history) == [102, 13]


def test_a_long_job_waits_where_sharing_slows_the_short_one_too_much():
    # At 90, a has 10 s left and b needs 100. One by one: (10 + 110) / 2 = 60. At once a takes
    # 20 s, in which b does 10 of its 100: (20 + 110) / 2 = 65. So b waits for a.
    where = world(gpus=1, slowdowns=[("a", "b", 2.0, 2.0)])
    jobs = trace((0, 1, 100, "a"), (90, 1, 100, "b"))
    assert finishes(run(jobs, where, policy_named("castor"))) == [100, 200]
    # The baseline does not ask: a ends at 110, b has 90 left then.
    assert finishes(run(jobs, where, policy_named("sjf-ffs"))) == [110, 200]


def test_the_host_with_the_earliest_mean_completion_is_chosen():
    # c takes 15 s with a and 11 s with b, both of which have the same time left.
    where = world(
        gpus=2,
        slowdowns=[("a", "c", 1.5, 1.5), ("b", "c", 1.1, 1.1)],
        workloads=("a", "b", "c"),
    )
    jobs = trace((0, 1, 100, "a"), (0, 1, 100, "b"), (0, 1, 10, "c"))
    # Shortest first: c gets a GPU to itself at once, and so does a; b joins none (no entry
    # with a) but c: at once (11 + 11 + 90) / 2 < (10 + 10 + 100) / 2. It ends at 11 + 90.
    assert finishes(run(jobs, where, policy_named("castor"))) == [100, 101, 11]
    later = trace((0, 1, 100, "a"), (0, 1, 100, "b"), (1, 1, 10, "c"))
    # c joins b at 1 and ends at 12; b has done 1 + 10 then and ends at 101.
    assert finishes(run(later, where, policy_named("castor"))) == [100, 101, 12]


def test_a_gang_shares_some_gpus_and_takes_idle_ones_last():
    # Two of four GPUs are held by a's, one by b (no entry with c), one is idle. The gang of
    # three c's takes the two a's and the idle GPU. It runs at 1.25 on all: 12.5 s from 1.
    where = world(
        gpus=4, slowdowns=[("a", "c", 1.25, 1.25)], workloads=("a", "b", "c"), memory_mib=2000.0
    )
    jobs = trace((0, 1, 100, "a"), (0, 1, 100, "b"), (0, 1, 100, "a"), (1, 3, 10, "c"))
    history = run(jobs, where, policy_named("castor"))
    assert history.stays[0].gpus == (0, 2, 3)
    # Each a is slowed by c for 12.5 s, in which it does 10: 102.5.
    assert finishes(history) == [102.5, 100, 102.5, 13.5]


def test_gangs_that_may_only_share_as_a_whole_do():
    where = world(gpus=2, slowdowns=[("a", "b", 1.25, 1.25)], gang_sharing="whole")
    jobs = trace((0, 2, 100, "a"), (1, 1, 10, "b"), (1, 2, 40, "b"))
    # The single b may not join half a gang, and waits for idle GPUs. The gang of b's takes 50 s
    # from 1; a does 40 of its work in them and ends at 110, when the single b starts.
    assert finishes(run(jobs, where, policy_named("castor"))) == [110, 120, 51]


def test_a_job_accumulates_gradients_to_fit_with_another():
    # b needs 8,000 MiB and finds 4,000 with a: half the batch. An iteration of 8 samples
    # takes 9 s, two of 4 take 10: its 9 s of work take 10 s times 1.2 = 12 s. a does 10 in them.
    where = world(gpus=1, slowdowns=[("a", "b", 1.2, 1.2)])
    where = with_batch(where, {"a": 12000.0, "b": 8000.0})
    jobs = trace((0, 1, 100, "a"), (1, 1, 9, "b"))
    for name in ("castor", "sjf-ffs"):
        history = run(jobs, where, policy_named(name))
        assert history.stays[0].mode == 1
        assert finishes(history) == [102, 13]
    alone = run(jobs, where, policy_named("castor:sub_batch=false"))
    assert finishes(alone) == [100, 109]


def test_a_job_accumulates_gradients_beside_one_that_cannot():
    # a needs 1,000 of 8,500 MiB and has one batch only: b takes half of its 8,000.
    where = world(gpus=1, memory_mib=8500.0, slowdowns=[("a", "b", 1.2, 1.2)])
    where = with_batch(where, {"b": 8000.0})
    history = run(trace((0, 1, 100, "a"), (1, 1, 9, "b")), where, policy_named("castor"))
    assert (history.stays[0].mode, finishes(history)) == (1, [102, 13])


def with_half_batches(slowdowns: tuple[float, float], slowdown_factor: float) -> Instance:
    """Return a GPU on which b fits with a at half its batch, which stretches both by so much."""
    where = world(gpus=1, slowdowns=[("a", "b", *slowdowns)])
    # Two steps of 4 samples over one of 8: 2 (f + 4) / (f + 8) = slowdown_factor.
    return with_batch(
        where,
        {"a": 8000.0, "b": 12000.0},
        fixed_s=8 * (slowdown_factor - 1) / (2 - slowdown_factor),
    )


@pytest.mark.parametrize(
    ("slowdown_factor", "mean_s"),
    # Shared, a ends at 1.05 x 100 = 105 and b, which keeps its sub-batch, at
    # 5 + slowdown_factor x 1000. One after the other at full batch: 100 and 1100.
    [(1.07, 590), (1.24, 600), (1.38, 600), (1.5, 600)],
)
def test_a_sub_batch_stretches_a_job_to_its_end(slowdown_factor, mean_s):
    where = with_half_batches((1.05, 1.05), slowdown_factor)
    jobs = trace((0, 1, 101, "a"), (1, 1, 1000, "b"))
    assert sum(finishes(run(jobs, where, policy_named("castor")))) / 2 - 1 == pytest.approx(mean_s)
    data = where.to_data() | {
        "jobs": [
            {"id": "host", "workload": "a", "state": "running", "gpus": ["n0-0"]},
            {"id": "joiner", "workload": "b"},
        ]
    }
    data["jobs"][0]["remaining_s"], data["jobs"][1]["remaining_s"] = 100, 1000
    found = solve(Instance.from_data(data), "jct").plan
    assert found is not None
    assert (len(found.assignments) == 2) == (mean_s < 600)


@dataclass(frozen=True)
class Fixed:
    """Start the host in one mode and the other with it in another, or after its end (None)."""

    host_mode: int
    joining_mode: int | None

    def decide(self, state: State) -> Decision:
        for job in state.pending.values():
            if not state.residents[0]:
                mode = self.host_mode if job.number == 0 else 0
                return Decision((Start(job, (0,), mode=mode),))
            if self.joining_mode is not None:
                return Decision((Start(job, (0,), mode=self.joining_mode),))
        return Decision()


@dataclass(frozen=True)
class Joining:
    """Start the host in a mode; the policy decides on the other."""

    host_mode: int
    policy: Policy

    def decide(self, state: State) -> Decision:
        if 0 in state.pending:
            return Fixed(self.host_mode, None).decide(state)
        return self.policy.decide(state)


@given(
    slowdowns=st.tuples(st.floats(1, 2.2), st.floats(1, 2.2)),
    left=st.tuples(st.integers(20, 2000), st.integers(20, 2000)),
    slowdown_factor=st.floats(1.01, 1.6),
    host_mode=st.integers(0, 1),
)
def test_the_better_of_sharing_and_waiting_is_chosen(slowdowns, left, slowdown_factor, host_mode):
    where = with_half_batches(slowdowns, slowdown_factor)
    jobs = trace((0, 1, left[0], "a"), (1, 1, left[1], "b"))

    def total_s(policy: Policy) -> float:
        return sum(finishes(simulate(jobs, where, policy)))

    # At full batch b fits only with a at half.
    joining = [1, 2] if host_mode == 0 else [0, 1, 2]
    best = min(total_s(Fixed(host_mode, mode)) for mode in (None, *joining))
    assert total_s(Joining(host_mode, policy_named("castor"))) == pytest.approx(best, abs=1e-4)


@pytest.mark.parametrize(("gsla", "together"), [(1.3, False), (1.5, True)])
def test_a_latency_critical_gang_keeps_its_gsla_at_the_smallest_sub_batch_of_its_hosts(
    gsla, together
):
    # With a, b fits at half its batch: 1.1 x 10/9 = 1.22. With c it fits at a quarter:
    # 0.96 x 12/9 = 1.28. One batch for both is a quarter, which is 1.1 x 12/9 = 1.47 with a.
    where = world(gpus=2, slowdowns=[("a", "b", 1.1, 1.1), ("c", "b", 1.1, 0.96)], workloads="abc")
    where = with_batch(where, {"a": 12000.0, "b": 8000.0, "c": 14000.0})
    jobs = trace((0, 1, 100, "a"), (0, 1, 100, "c"), (1, 2, 9, "b", gsla), priority="latency")
    for name in ("castor", "sjf-ffs"):
        gang = run(jobs, where, policy_named(name)).stays[0 if together else 2]
        assert (gang.job, gang.mode, gang.start_s) == ((2, 2, 1) if together else (2, 0, 100))


def test_a_pair_that_ran_out_of_memory_is_not_tried_again():
    # The world knows no slowdown of a with b, the belief does: the first try fails, and b
    # then waits until a ends. One try is one stay that is out of memory.
    where, belief = world(gpus=1), world(gpus=1, slowdowns=[("a", "b", 1.1, 1.1)])
    jobs = trace((0, 1, 500, "a"), (1, 1, 10, "b"))
    for name in ("castor", "sjf-ffs"):
        history = run(jobs, where, policy_named(name), predicted=SlowdownTable.of(belief))
        assert [stay.ending for stay in history.stays].count("out_of_memory") == 1
        assert finishes(history) == [500, 510]


@pytest.mark.parametrize("name", ["castor", "sjf-ffs"])
def test_no_job_joins_where_one_job_a_gpu_is_the_rule(name):
    where = world(gpus=1, slowdowns=[("a", "b", 1.1, 1.1)], max_jobs_per_gpu=1)
    jobs = trace((0, 1, 100, "a"), (1, 1, 10, "b"))
    assert finishes(run(jobs, where, policy_named(name))) == [100, 110]
