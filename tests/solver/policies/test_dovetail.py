"""Dovetail's own policy on cases computed by hand."""

import dataclasses
import math

import numpy as np
import pytest

from dovetail.executor.simulation import Options
from dovetail.formulations.prices import Asks, GpuPrice, layout
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.solver.policies import Job, Start, State, policy_named
from dovetail.solver.policies.state import Reservation
from tests.executor.simulation.worlds import finishes, run, trace, world


def _gpus(history):
    """Return the GPUs of each job's first stay."""
    first = {}
    for stay in sorted(history.stays, key=lambda stay: stay.start_s):
        first.setdefault(stay.job, stay.gpus)
    return [first[number] for number in range(len(first))]


def _first_starts(history):
    return [round(outcome.first_start_s, 6) for outcome in history.outcomes]


def test_partners_are_chosen_together():
    # x and y run alone for 1,000 s. p and q come: p fits best with x, but q may share with x
    # only, so p goes to y. A policy that serves the shorter p first puts it with x, and q waits.
    slowdowns = [("p", "x", 1.1, 1.1), ("p", "y", 1.2, 1.1), ("q", "x", 1.1, 1.1)]
    where = world(gpus=2, slowdowns=slowdowns, workloads=("x", "y", "p", "q"))
    jobs = trace((0, 1, 1000, "x"), (0, 1, 1000, "y"), (10, 1, 20, "p"), (10, 1, 30, "q"))
    history = run(jobs, where, policy_named("dovetail"))
    x, y, p, q = _gpus(history)
    assert (p, q) == (y, x)
    greedy = run(jobs, where, policy_named("castor"))
    assert _gpus(greedy)[2] == _gpus(greedy)[0]
    assert np.nanmax(history.series.gap) <= 1e-6


@pytest.mark.parametrize(("slowdown", "joins"), [(0.8, True), (1.0, False)])
def test_jobs_that_speed_each_other_up_share_though_a_gpu_is_idle(slowdown, joins):
    where = world(gpus=2, slowdowns=[("a", "b", slowdown, slowdown)])
    history = run(trace((0, 1, 1000, "a"), (10, 1, 500, "b")), where, policy_named("dovetail"))
    first, second = _gpus(history)
    assert (first == second) == joins


def test_a_job_is_alone_on_an_idle_gpu_where_it_gains_no_more_beside_another():
    # c needs all GPUs and has to wait for a. Neither of a and b slows the other.
    where = world(gpus=3, slowdowns=[("a", "b", 1.0, 1.0)], workloads=("a", "b", "c"))
    jobs = trace((0, 1, 1000, "a"), (10, 1, 200, "b"), (10, 3, 500, "c"))
    first, second, _ = _gpus(run(jobs, where, policy_named("dovetail")))
    assert first != second


@pytest.mark.parametrize(("needs", "finish"), [(10, [10, 110]), (1000, [1100, 201])])
def test_a_job_waits_where_that_ends_both_earlier(needs, finish):
    # Both are slowed to half. At 1, a has run for a second and b comes, which needs 100. With
    # an a that needs 9 s still, a would end at 19 and b at 19 + 91; one after the other, a at 10
    # and b at 110: b waits. An a that needs 999 s would keep b waiting until 1,000; sharing, b
    # ends at 201 and a at 201 + 899.
    where = world(gpus=1, slowdowns=[("a", "b", 2.0, 2.0)])
    jobs = trace((0, 1, needs, "a"), (1, 1, 100, "b"))
    assert finishes(run(jobs, where, policy_named("dovetail"))) == finish


def test_the_upper_bound_keeps_the_gsla():
    # With a, b is predicted to slow to 1.2, with an upper bound of 1.6; it accepts 1.5.
    where = world(gpus=1, slowdowns=[("a", "b", 1.2, 1.2)])
    jobs = trace((0, 1, 1000, "a"), (0, 1, 100, "b", 1.5))
    table = SlowdownTable.of(where)
    history = run(jobs, where, policy_named("dovetail"), predicted=table)
    assert history.outcomes[1].shared_s > 0
    unsure = dataclasses.replace(table, upper=table.slowdown + 0.4)
    history = run(jobs, where, policy_named("dovetail"), predicted=unsure)
    assert history.outcomes[1].shared_s == 0


def test_a_running_job_keeps_its_gsla():
    where = world(gpus=1, slowdowns=[("a", "b", 1.2, 1.2)])
    jobs = trace((0, 1, 1000, "a", 1.1), (1, 1, 100, "b"))
    assert run(jobs, where, policy_named("dovetail")).outcomes[1].shared_s == 0


def test_what_was_measured_overrides_what_was_predicted():
    # Predicted at 1.1 each, truly 4. The first b learns it; the second, with the same a, waits.
    where = world(gpus=1, slowdowns=[("a", "b", 4.0, 4.0)])
    believed = SlowdownTable.of(world(gpus=1, slowdowns=[("a", "b", 1.1, 1.1)]))
    jobs = trace((0, 1, 2000, "a"), (10, 1, 100, "b"), (600, 1, 1000, "b"))
    policy = policy_named("dovetail:preempt=false")
    history = run(jobs, where, policy, Options(observe_s=60), believed)
    first, second = history.outcomes[1], history.outcomes[2]
    assert first.first_start_s == 10
    assert second.first_start_s == history.outcomes[0].finish_s


def test_sharing_despite_idle_gpus_depends_on_their_price():
    # Two jobs of 100 s on two GPUs. Alone they cost 200 s and 200 GPU seconds; together, at a
    # slowdown of 1.1, 220 s and 110 GPU seconds. The second is cheaper from a price of 20 / 90.
    where = world(gpus=2, slowdowns=[("a", "b", 1.1, 1.1)])
    jobs = trace((0, 1, 100, "a"), (0, 1, 100, "b"))
    assert finishes(run(jobs, where, policy_named("dovetail"))) == [100, 100]
    assert finishes(run(jobs, where, policy_named("dovetail:gpu_price=0.2"))) == [100, 100]
    assert finishes(run(jobs, where, policy_named("dovetail:gpu_price=0.3"))) == [110, 110]


def test_no_sharing_pushes_out_the_end_of_the_last_job():
    # With b, a would end at 1,010 instead of 1,000; b waits for the GPU that is idle from 200 on,
    # where it delays no job.
    where = world(gpus=2, slowdowns=[("a", "b", 1.1, 1.0)])
    jobs = trace((0, 1, 1000, "a"), (0, 1, 200, "a"), (100, 1, 100, "b"))
    history = run(jobs, where, policy_named("dovetail"))
    assert max(finishes(history)) == 1000


class Forgetful:
    """A policy that is made anew for every decision, as where a service restarts before each."""

    def __init__(self, name):
        self.name = name

    def decide(self, state):
        return policy_named(self.name).decide(state)


@pytest.mark.parametrize("made", [policy_named, Forgetful])
def test_patience_bounds_the_wait_of_a_gang(made):
    # Singles of 10 s come every 5 s for 300 s and keep both GPUs from being idle at once. The
    # gang comes at 1. With a patience of 50 s, GPUs are kept from 51 on, and the singles on them
    # need 10 s more at most. Singles are served first otherwise: they need less GPU time.
    singles = [(5 * k, 1, 10, "a") for k in range(60)]
    jobs = trace(*sorted([(1, 2, 500, "b"), *singles]))
    gang = next(k for k, job in enumerate(jobs.jobs) if job.workers == 2)
    patient = run(jobs, world(gpus=2), made("dovetail:patience_s=inf"))
    bounded = run(jobs, world(gpus=2), made("dovetail:patience_s=50,patience_stretch=0"))
    assert _first_starts(patient)[gang] >= 300
    assert _first_starts(bounded)[gang] <= 1 + 50 + 10


def test_a_node_that_fails_ends_what_is_reserved_on_it():
    # The first and the third of three GPUs are kept for a gang of two. The third fails, so that
    # the gang is given the first two, which are idle.
    state = State(world(nodes=3, gpus=1), SlowdownTable.of(world(nodes=3, gpus=1)))
    state.pending[1] = job = Job(1, "j1", 0, 2, 10.0, 0.0)
    policy = policy_named("dovetail:patience_s=0,patience_stretch=0")
    state.reserved = {1: Reservation((0, 2), 1000.0)}
    state.down, state.idle_count = {2}, [1, 1, 0]
    decision = policy.decide(state)
    assert decision.reserved == {1: Reservation((0, 1), 0.0)}
    assert decision.starts == (Start(job, (0, 1)),)


def test_reserved_gpus_are_used_by_jobs_that_end_in_time():
    # j0 holds one GPU until 1,000. The gang j1 is overdue at once, so both GPUs are kept for it
    # from 0 on. j2 ends by 1,000 and may run on the idle one; j3 would not and has to wait.
    jobs = trace((0, 1, 1000, "a"), (1, 2, 10, "b"), (2, 1, 900, "a"), (3, 1, 2000, "a"))
    history = run(jobs, world(gpus=2), policy_named("dovetail:patience_s=0,patience_stretch=0"))
    assert _first_starts(history)[1:3] == [1000, 2]
    assert _first_starts(history)[3] >= 1000


@pytest.mark.parametrize("sharing", ["whole", "partial"])
def test_a_reserved_gpu_is_lent_to_one_of_the_jobs_that_end_in_time(sharing):
    # The first GPU is busy until 1,000, and reserved with the second for a gang. Of three jobs
    # that would end by then one has the second; two others are idle.
    where = world(gpus=4, slowdowns=[("a", "a", 1.1, 1.1)], gang_sharing=sharing)
    state = State(where, SlowdownTable.of(where))
    running = Job(0, "j0", 0, 1, 1000.0, 0.0, phase="running", rate=1.0, gpus=(0,))
    state.running[0], state.residents[0], state.idle_count = running, [running], [3]
    for k, workers in ((1, 2), (2, 1), (3, 1), (4, 1)):
        state.pending[k] = Job(k, f"j{k}", 0, workers, 900.0 + k, 0.0)
    state.reserved = {1: Reservation((0, 1), 1000.0)}
    decision = policy_named("dovetail").decide(state)
    assert {start.job.id: start.gpus for start in decision.starts}.keys() == {"j2", "j3", "j4"}
    assert {start.gpus for start in decision.starts} == {(1,), (2,), (3,)}


def test_a_larger_submission_is_asked_to_wait_longer():
    # The gang needs 500 s and waits for 10 + 0.2 * 500 s before GPUs are kept for it, from 111 on.
    singles = [(5 * k, 1, 10, "a") for k in range(60)]
    jobs = trace(*sorted([(1, 2, 500, "b"), *singles]))
    gang = next(k for k, job in enumerate(jobs.jobs) if job.workers == 2)
    policy = policy_named("dovetail:patience_s=10,patience_stretch=0.2")
    assert 111 <= _first_starts(run(jobs, world(gpus=2), policy))[gang] <= 111 + 10


def test_a_layout_leaves_idle_gpus_to_others():
    # GPUs free at 0, 5 and 9. The gang of two starts at 5 on the first two; then one is free at
    # 9 and two at 25: the single starts at 9.
    starts = layout([0.0, 5.0, 9.0], Asks([2, 1], [20.0, 3.0], [1.0, 1.0]))
    assert starts.tolist() == [5.0, 9.0]


def test_the_compiled_layout_and_prices_are_the_plain_ones():
    rng = np.random.default_rng(0)
    for _ in range(300):
        jobs, gpus = rng.integers(0, 40), rng.integers(0, 9)
        seconds = rng.choice([0.0, 1.0, 2.5, 1e9], jobs) * rng.choice([1.0, rng.random()], jobs)
        asks = Asks(rng.choice([1, 1, 1, 2, 4, 8], jobs), seconds, rng.random(jobs))
        free = np.sort(rng.choice([0.0, 0.0, 1.0, 3.0, rng.random()], gpus)).tolist()
        starts, same = layout(free, asks), layout(free, asks, run=lambda loop: loop)
        assert starts.tolist() == same.tolist()
        at = rng.random(5) * 10
        prices = [GpuPrice(starts, asks, run=run) for run in (None, lambda loop: loop)]
        assert prices[0].until(at).tolist() == prices[1].until(at).tolist()


def test_prices_are_what_starting_earlier_saves():
    # One GPU, idle at 10; jobs of 2 s and 3 s start at 10 and 12. Until 10 a second costs both
    # a second; from 10 to 12 the last one; after that none.
    prices = GpuPrice([10.0, 12.0], Asks([1, 1], [2.0, 3.0], [1.0, 1.0]))
    assert prices.until([10.0, 12.0, 99.0]).tolist() == [20.0, 22.0, 22.0]
    floor = GpuPrice([], Asks([], [], []), floor=0.5)
    assert float(floor.until(10.0)) == 5.0


def test_two_may_start_together_in_a_burst():
    # Four jobs of 100 s come at once to one GPU; two at a time at 1.2 take 120 s a pair, which
    # ends all by 240 instead of 400.
    where = world(gpus=1, slowdowns=[("a", "a", 1.2, 1.2)])
    jobs = trace(*[(0, 1, 100, "a")] * 4)
    assert sorted(finishes(run(jobs, where, policy_named("dovetail")))) == [120, 120, 240, 240]


def test_shares_are_set_where_they_help():
    # Uncapped, b slows a to 3; at 70 to 30 both run at 1.2. An a that runs uncapped keeps that.
    data = world(gpus=1, shares=[30, 70]).model_dump(mode="json", exclude_none=True)
    data["slowdowns"] = [
        {"pair": ["a", "b"], "slowdown": [3.0, 3.0]},
        {"pair": ["a", "b"], "share": [70, 30], "slowdown": [1.2, 1.2]},
    ]
    where = type(world()).from_data(data)
    jobs = trace((0, 1, 100, "a"), (0, 1, 100, "b"))
    history = run(jobs, where, policy_named("dovetail"))
    assert finishes(history) == [120, 120]
    assert {stay.shares for stay in history.stays} == {(70,), (30,)}


@pytest.mark.parametrize(("sharing", "starts"), [("partial", [0, 1, 1]), ("whole", [0, 1000, 1])])
def test_gangs_share_as_the_cluster_lets_them(sharing, starts):
    # A gang of two may be joined by a single of 100 s on one GPU, or only by a gang of two.
    slowdowns = [("a", "b", 1.1, 1.1), ("a", "a", 1.1, 1.1)]
    where = world(gpus=2, slowdowns=slowdowns, gang_sharing=sharing)
    policy = policy_named("dovetail:preempt=false")
    single = run(trace((0, 2, 1000, "a"), (1, 1, 100, "b")), where, policy)
    gang = run(trace((0, 2, 1000, "a"), (1, 2, 100, "a")), where, policy)
    found = [*_first_starts(single), _first_starts(gang)[1]]
    assert found == starts


def test_only_what_is_known_may_share():
    jobs = trace((0, 1, 100, "a"), (0, 1, 100, "b"))
    history = run(jobs, world(gpus=1), policy_named("dovetail"))
    assert sorted(finishes(history)) == [100, 200]
    assert all(math.isnan(gap) or gap <= 1e-6 for gap in history.series.gap)


def test_the_margin_is_learnt_from_what_was_measured():
    # Pairs are slowed by twice as much above 1 as predicted: 1.4 in place of 1.2. b accepts 1.35.
    # With nothing measured the margin of 1.5 lets it share (1 + 0.2 * 1.5); with pairs measured,
    # all at 2, it is 2, and a bound of 1.4 is too much even for a pair never seen.
    names = tuple(f"w{k}" for k in range(12))
    truth = [(a, b, 1.4, 1.4) for k, a in enumerate(names) for b in names[k:]]
    where = world(gpus=8, slowdowns=truth, workloads=names)
    table = SlowdownTable.of(where)
    believed = dataclasses.replace(
        table, slowdown=(1 + table.slowdown) / 2, upper=(1 + table.upper) / 2
    )
    teachers = [(0, 1, 2000, names[k]) for k in range(8)]
    teachers += [(1, 1, 100, names[k]) for k in range(4, 12)]
    late = (1500, 1, 10, names[11], 1.35)
    alone = run(trace(*teachers[:8], late), where, policy_named("dovetail"), predicted=believed)
    assert alone.outcomes[-1].shared_s > 0
    taught = run(trace(*teachers, late), where, policy_named("dovetail"), predicted=believed)
    assert taught.outcomes[-1].shared_s == 0


@pytest.mark.parametrize(
    "option", ["gpu_price=-1", "window=0", "patience_s=-1", "energy_price=nan"]
)
def test_options_have_ranges(option):
    with pytest.raises(UnsupportedError, match="must be >="):
        policy_named(f"dovetail:{option}")


def test_a_proof_states_its_number_of_jobs():
    # One of the two GPUs is idle: of the five that wait three more than that take part.
    proofs = []
    policy = policy_named("dovetail:window=3")

    class Watched:
        def decide(self, state):
            decision = policy.decide(state)
            proofs.append((len(state.pending), decision.proof))
            return decision

    jobs = trace((0, 1, 100, "a"), *[(1, 1, 10, "a")] * 5)
    run(jobs, world(gpus=2), Watched())
    assert [(waiting, proof.jobs) for waiting, proof in proofs[:2]] == [(1, 1), (5, 4)]
    assert all(proof.bound >= proof.value for _, proof in proofs if proof)


@pytest.mark.parametrize("blocked", [0, 3])
def test_a_window_is_of_jobs_that_some_gpus_have_room_for(blocked):
    # Four GPUs run a job each. At 10, jobs of a minute come that share with none, and behind them
    # in the queue four that may join: two windows, which all start at once.
    where = world(gpus=4, slowdowns=[("x", "h", 1.1, 1.1)], workloads=("x", "m", "h"))
    jobs = trace(
        *[(0, 1, 10_000, "x")] * 4,
        *[(10, 1, 60, "m")] * blocked,
        *[(10, 1, 1000 + k, "h") for k in range(4)],
    )
    history = run(jobs, where, policy_named("dovetail:window=2"))
    assert _first_starts(history)[4 + blocked :] == [10.0] * 4
    assert np.nanmax(history.series.gap) <= 1e-6


def test_a_window_starts_on_idle_gpus_before_the_next_one():
    # 20 jobs on 16 GPUs: those of the first window start alone, the others wait for them.
    where = world(gpus=16)
    jobs = trace(*[(0, 1, 100, "a")] * 20)
    history = run(jobs, where, policy_named("dovetail:window=1"))
    assert _first_starts(history) == [0.0] * 16 + [100.0] * 4
