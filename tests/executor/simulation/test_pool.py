"""The simulated pool on cases computed by hand."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from benchmarks.conservation import violations
from dovetail.executor.simulation import Options, PolicyError, simulate
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Cluster, Instance
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.solver.policies import Decision, Start, policy_named
from dovetail.solver.policies.policy import RoundProof
from tests.executor.simulation.worlds import finishes, run, trace, world


@dataclass
class Scripted:
    """Starts and stops jobs at given times: ``starts`` are (time, job, gpus[, shares, mode])."""

    starts: list[tuple]
    stops: list[tuple] = field(default_factory=list)

    def decide(self, state):
        jobs = {job.id: job for job in [*state.pending.values(), *state.running.values()]}
        starts = [Start(jobs[s[1]], *s[2:]) for s in self.starts if s[0] == state.now]
        stops = [jobs[s[1]] for s in self.stops if s[0] == state.now]
        later = [s[0] for s in [*self.starts, *self.stops] if s[0] > state.now]
        return Decision(tuple(starts), tuple(stops), min(later, default=None))


SLOW = [("a", "b", 2.0, 1.5)]


def test_a_pair_slows_both_until_one_ends():
    # a runs alone for 10 s (10 of 40 done), with b at half speed until b ends: b needs
    # 20 x 1.5 = 30 s and ends at 40, when a has done 10 + 15 = 25; the last 15 alone: 55.
    jobs = trace((0, 1, 40, "a"), (10, 1, 20, "b"))
    history = run(jobs, world(1, 1, SLOW), Scripted([(0, "j0", (0,)), (10, "j1", (0,))]))
    assert finishes(history) == [55, 40]
    first = history.outcomes[0]
    assert (first.held_s, first.shared_s, first.worst_slowdown) == (55, 30, 2.0)
    assert first.solo_s == pytest.approx(40)


def test_a_gang_runs_at_the_pace_of_its_slowest_worker():
    # The gang of two a's shares one of its GPUs: both workers run at half speed while b is
    # there. b ends at 15, the gang has done 7.5 of 10 and ends at 17.5.
    jobs = trace((0, 2, 10, "a"), (0, 1, 10, "b"))
    history = run(jobs, world(1, 2, SLOW), Scripted([(0, "j0", (0, 1)), (0, "j1", (1,))]))
    assert finishes(history) == [17.5, 15]


def test_time_over_the_gsla_is_booked_as_breach():
    jobs = trace((0, 1, 40, "a", 1.5), (10, 1, 20, "b", 1.5))
    history = run(jobs, world(1, 1, SLOW), Scripted([(0, "j0", (0,)), (10, "j1", (0,))]))
    assert [outcome.breach_s for outcome in history.outcomes] == [30, 0]


def test_a_stopped_job_keeps_its_work_and_pays_for_its_restart():
    # 10 of 30 s done, off the GPU from 10 to 50, then 60 s of restoring and 20 s of work.
    jobs = trace((0, 1, 30, "a"))
    script = Scripted([(0, "j0", (0,)), (50, "j0", (1,))], [(10, "j0")])
    history = run(jobs, world(), script, Options(restart_s=60))
    assert finishes(history) == [130]
    assert [(s.start_s, s.end_s, s.done_s, s.ending) for s in history.stays] == [
        (0, 10, 10, "stopped"),
        (50, 130, 20, "finished"),
    ]
    assert history.jobs[0].starts == 2
    assert history.outcomes[0].held_s == 90


def test_a_migration_is_a_stop_and_a_start_in_one_decision():
    jobs = trace((0, 1, 30, "a"))
    script = Scripted([(0, "j0", (0,)), (10, "j0", (1,))], [(10, "j0")])
    assert finishes(run(jobs, world(), script, Options(restart_s=5))) == [35]


def test_caps_sub_batches_and_speeds_multiply():
    # V100 at speed 2; with b under caps [40, 60]: 1.6; half the batch: t(1) / t(0) with
    # t_comp(b) = b, no communication: 2 x 4 / 8 = 1, plus fixed 1 s a step: (2 x 5) / 9.
    instance = world(1, 1, workloads=("b",), shares=[40, 60]).model_dump(mode="json")
    instance["workloads"]["a"] = {
        "memory_mib": 15500.0,
        "speed": {"V100": 2.0},
        "batch": {
            "size": 8, "min": 4, "fixed_mib": 100.0, "mib_per_sample": 1000.0,
            "step_s": {"fixed": 1.0, "per_sample": 1.0},
        },
    }  # fmt: skip
    instance["slowdowns"] = [{"pair": ["a", "b"], "share": [40, 60], "slowdown": [1.6, 1.25]}]
    where = Instance.from_data(instance)
    jobs = trace((0, 1, 72, "a"), (0, 1, 400, "b"))
    script = Scripted([(0, "j0", (0,), (40,), 1), (0, "j1", (0,), (60,))])
    history = run(jobs, where, script)
    # 72 / 2 x 1.6 x 10 / 9 = 64. Until then b has done 64 / 1.25 = 51.2; alone at 60 % its
    # throughput there is unknown, which counts as no slowdown: 64 + 348.8.
    assert finishes(history) == [64, 412.8]


def test_three_on_a_gpu_follow_the_model_of_sets():
    # Equal jobs that take turns (pair slowdown 2) slow each other by their number.
    where = world(1, 1, [("a", "a", 2.0, 2.0)], max_jobs_per_gpu=3)
    jobs = trace((0, 1, 10, "a"), (0, 1, 10, "a"), (0, 1, 10, "a"))
    script = Scripted([(0, f"j{k}", (0,)) for k in range(3)])
    assert finishes(run(jobs, where, script)) == [30, 30, 30]


def test_declared_slowdowns_are_true():
    rule = {"pair": 1.5, "sets": "product"}
    where = world(1, 1, [("a", "b", 2.0, 2.0)], max_jobs_per_gpu=3, assumed=rule)
    jobs = trace((0, 1, 10, "a"), (0, 1, 30, "b"), (0, 1, 20, "b"))
    script = Scripted([(0, f"j{k}", (0,)) for k in range(3)])
    # j0: 2 x 2 = 4, j1 and j2: 2 x 1.5 = 3. j0 ends at 40; then j1 and j2 slow each other by 1.5.
    # j2 has 20 - 40 / 3 left: 40 + 10 = 50, then j1 30 - 40 / 3 - 10 / 1.5 = 10 alone: 60.
    assert finishes(run(jobs, where, script)) == [40, 60, 50]


def test_what_remains_of_a_set_without_an_entry_takes_turns():
    # Nothing is known of a with b. When c has ended, both have half of the GPU.
    pairs = [("a", "c", 1.0, 1.0)]
    data = world(1, 1, pairs, ("a", "b", "c"), max_jobs_per_gpu=3).to_data()
    data["slowdowns"].append({"set": ["a", "b", "c"], "slowdown": [1.0, 1.0, 1.0]})
    jobs = trace((0, 1, 100, "a"), (0, 1, 10, "c"), (0, 1, 50, "b"))
    script = Scripted([(0, f"j{k}", (0,)) for k in range(3)])
    assert finishes(run(jobs, Instance.from_data(data), script)) == [140, 10, 90]


def test_a_set_with_a_part_that_may_not_share_fails_as_it_starts():
    rule = {"pair": 1.5, "sets": "product"}
    data = world(1, 2, max_jobs_per_gpu=4, assumed=rule).to_data()
    data["slowdowns"] = [{"set": ["a", "a", "b"], "slowdown": None}]
    jobs = trace(*[(0, 1, 10, workload) for workload in "abba"])
    script = Scripted([(0, f"j{k}", (0,)) for k in range(4)] + [(5, "j3", (1,))])
    history = run(jobs, Instance.from_data(data), script)
    assert [stay.job for stay in history.stays if stay.ending == "out_of_memory"] == [3]
    assert finishes(history) == [22.5, 22.5, 22.5, 15]


def test_a_pair_that_cannot_run_fails_as_it_starts_and_is_remembered():
    jobs = trace((0, 1, 10, "a"), (0, 1, 10, "b"))
    script = Scripted([(0, "j0", (0,)), (0, "j1", (0,)), (5, "j1", (1,))])
    history = run(jobs, world(1, 2), script)
    assert finishes(history) == [10, 15]
    assert [stay.ending for stay in history.stays].count("out_of_memory") == 1


def test_a_crash_for_want_of_memory_leaves_the_resident_alone():
    jobs = trace((0, 1, 10, "a"), (0, 1, 10, "b"))
    where = world(1, 1, SLOW, memory_mib=1500.0)
    script = Scripted([(0, "j0", (0,)), (0, "j1", (0,)), (10, "j1", (0,))])
    assert finishes(run(jobs, where, script)) == [10, 20]


def test_a_failed_node_costs_the_work_since_the_last_checkpoint():
    options = Options(node_mtbf_s=1000, repair_s=100, checkpoint_s=30, restart_s=0, seed=3)
    jobs = trace(*[(0, 1, 2000, "a")] * 4)
    history = run(jobs, world(2, 2), policy_named("fifo"), options)
    lost = [stay for stay in history.stays if stay.ending == "failed"]
    assert lost
    assert all(stay.done_s % 30 == pytest.approx(0, abs=1e-6) for stay in lost)
    assert all(stay.end_s - stay.start_s - stay.done_s < 30 for stay in lost)


@pytest.mark.parametrize(("racks", "slowed"), [(("r", "r", "s"), 2.0), (("r", None, None), 1.0)])
def test_gangs_that_span_nodes_and_racks_are_slower_if_the_network_is(racks, slowed):
    """Nodes without a rack form one together."""
    gpu = {"model": "V100", "memory_mib": 16000.0}
    nodes = [{"id": f"n{k}", "gpu_count": 2, "gpu": gpu, "rack": r} for k, r in enumerate(racks)]
    cluster = world().cluster.to_data() | {"nodes": nodes}
    replaced = world().altered(cluster=Cluster.from_data(cluster))
    options = Options(across_nodes=1.25, across_racks=2.0)
    jobs = trace((0, 2, 10, "a"), (0, 2, 10, "a"))
    script = Scripted([(0, "j0", (0, 1)), (0, "j1", (2, 4))])
    history = run(jobs, replaced, script, options)
    assert finishes(history) == [10, 10 * 1.25 * slowed]
    assert history.outcomes[1].solo_s == pytest.approx(10 * 1.25 * slowed)


def test_rounds_fall_on_multiples():
    jobs = trace((1, 1, 10, "a"), (3, 1, 10, "a"), (3, 1, 10, "a"))
    history = run(jobs, world(1, 2), policy_named("fifo"), Options(round_s=7))
    # Both starts at 7, ends at 17, the third start at the next multiple.
    assert finishes(history) == [17, 17, 31]


def test_policies_see_durations_with_their_error():
    options = Options(estimate_error=0.5, seed=1)
    jobs = trace(*[(0, 1, 100, "a")] * 200)
    history = run(jobs, world(25, 8), policy_named("fifo"), options)
    logs = [math.log(job.work_s / 100) for job in history.jobs]
    assert 0.4 < (sum(x * x for x in logs) / 200) ** 0.5 < 0.6
    assert set(finishes(history)) == {100}


def _measured(state):
    table = state.believed
    cells = [] if table.seen is None else np.argwhere(table.seen).tolist()
    return {tuple(cell): table.slowdown[*cell] for cell in cells}


def test_measured_slowdowns_become_known():
    seen = {}

    class Watching(Scripted):
        def decide(self, state):
            seen.update(_measured(state))
            return super().decide(state)

    jobs = trace((0, 1, 400, "a"), (0, 1, 100, "b"))
    script = Watching([(0, "j0", (0,)), (0, "j1", (0,))])
    run(jobs, world(1, 1, SLOW), script)
    assert seen == {(0, 0, 0, 1): 2.0, (0, 0, 1, 0): 1.5}


def test_a_pair_is_known_as_soon_as_it_was_observed():
    # Nothing happens to the pair at 60; the decision at 61 knows of it, that at 59 does not.
    known = {}

    class Watching(Scripted):
        def decide(self, state):
            known[state.now] = state.news
            return super().decide(state)

    jobs = trace((0, 1, 400, "a"), (0, 1, 300, "b"), (59, 1, 1, "a"), (61, 1, 1, "a"))
    script = Watching(
        [(0, "j0", (0,)), (0, "j1", (0,)), (59, "j2", (1,)), (61, "j3", (2,))],
    )
    run(jobs, world(1, 3, SLOW), script)
    assert (known[59], known[61]) == (0, 2)


def test_a_pair_that_was_parted_too_soon_is_not_known_after_a_restart():
    seen = {}

    class Watching(Scripted):
        def decide(self, state):
            seen.update(_measured(state))
            return super().decide(state)

    jobs = trace((0, 1, 400, "a"), (0, 1, 400, "b"))
    starts = [(0, "j0", (0,)), (0, "j1", (0,)), (500, "j1", (1,))]
    run(jobs, world(1, 2, SLOW), Watching(starts, [(10, "j1")]))
    assert seen == {}


def test_energy_is_the_power_of_the_jobs_present():
    data = world(1, 1).model_dump(mode="json")
    data["workloads"] = {
        "a": {"memory_mib": 1, "power_w": 100.0},
        "b": {"memory_mib": 1, "power_w": 200.0},
    }
    data["slowdowns"] = [{"pair": ["a", "b"], "slowdown": [2.0, 1.5], "power_w": 250.0}]
    jobs = trace((0, 1, 40, "a"), (10, 1, 20, "b"))
    script = Scripted([(0, "j0", (0,)), (10, "j1", (0,))])
    history = run(jobs, Instance.from_data(data), script)
    assert history.energy_j == pytest.approx(10 * 100 + 30 * 250 + 15 * 100)


def test_when_enough_gpus_would_have_been_idle():
    jobs = trace((0, 1, 40, "a"), (10, 1, 20, "b"))
    history = run(jobs, world(1, 1, SLOW), Scripted([(0, "j0", (0,)), (10, "j1", (0,))]))
    assert history.outcomes[1].idle_at_s == 40
    assert math.isnan(history.outcomes[0].idle_at_s)


def test_jobs_that_start_at_the_same_moment_are_assumed_to_run_on_alone():
    jobs = trace((0, 1, 40, "a"), (0, 1, 20, "b"))
    script = Scripted([(0, "j0", (0,)), (0, "j1", (0,))])
    assert run(jobs, world(1, 1, SLOW), script).outcomes[1].idle_at_s == 40


def test_failures_do_not_hide_that_a_policy_starts_no_job():
    rules = Options(node_mtbf_s=100.0, repair_s=10.0)
    with pytest.raises(PolicyError, match="leaves 1 jobs waiting for ever"):
        simulate(trace((0, 1, 10, "a")), world(), Scripted([]), rules)


def test_a_waiter_for_the_next_round_survives_an_earlier_failure():
    rules = Options(round_s=360.0, node_mtbf_s=50.0, repair_s=10.0, checkpoint_s=1.0)
    history = run(trace((1, 1, 5, "a")), world(1, 1), policy_named("fifo"), rules)
    assert history.outcomes[0].first_start_s % 360 == 0


def test_a_decision_on_a_round_comes_after_what_happens_at_that_moment():
    times = []

    class Watching(Scripted):
        def decide(self, state):
            times.append((state.now, len(state.pending)))
            return super().decide(state)

    jobs = trace((5, 1, 30, "a"), (10, 1, 30, "a"))
    run(jobs, world(1, 2), Watching([(10, "j0", (0,)), (10, "j1", (1,))]), Options(round_s=10))
    assert times == [(10, 2)]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (Scripted([(0, "j0", (0,))]), "gives 'j0' 1 GPUs for 2 workers"),
        (Scripted([(0, "j0", (0, 0))]), "gives 'j0' 1 GPUs for 2 workers"),
        (Scripted([(0, "j0", (0, 1)), (0, "j0", (0, 1))]), "starts 'j0', which is running"),
        (Scripted([(0, "j0", (0, 1), (50, 50))]), "a share of 50, not one of the cluster's shares"),
        (Scripted([(0, "j0", (0, 1), None, 1)]), "runs 'j0' in no known mode"),
        (Scripted([], [(0, "j0")]), "stops 'j0', which does not run"),
        (Scripted([]), "leaves 1 jobs waiting for ever"),
    ],
)
def test_a_decision_that_breaks_a_rule_is_refused(script, message):
    with pytest.raises(PolicyError, match=message):
        simulate(trace((0, 2, 10, "a")), world(), script)


class Proving(Scripted):
    """A script that claims a proof of its decisions."""

    def decide(self, state):
        return super().decide(state)._replace(proof=RoundProof(1.0, 1.0, 0.0, 2))


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (world(1, 1, [("a", "b", 1.4, 1.2)]), "job j0: gsla: slowdown 1.4 > 1.3"),
        (world(1, 1), "entry: no entry lets j0"),
        (world(1, 1, SLOW, memory_mib=1900.0), "memory: j0, j1 need 2000 MiB > 1900 MiB"),
    ],
)
def test_a_decision_with_a_proof_has_to_pass_the_checker(where, message):
    jobs = trace((0, 1, 40, "a", 1.3), (10, 1, 20, "b"))
    starts = [(0, "j0", (0,)), (10, "j1", (0,)), (40, "j1", (0,))]
    with pytest.raises(PolicyError, match=f"breaks a rule: .*{message}"):
        simulate(jobs, where, Proving(starts))


def test_what_an_unchanged_job_breaks_is_found_when_it_matters():
    # The gang is believed to run at 1.2 beside b, and after 60 s seen to run at 2.0 > 1.5. No
    # later decision changes it or the b on n0-1, and those that leave it alone are carried out;
    # but nothing may join it on n0-0, where the other b has ended at 50 x 1.5 = 75.
    where = world(1, 3, [*SLOW, ("a", "a", 1.1, 1.1)])
    believed = SlowdownTable.of(world(1, 3, [("a", "b", 1.2, 1.5), ("a", "a", 1.1, 1.1)]))
    jobs = trace((0, 2, 900, "a", 1.5), (0, 1, 900, "b"), (0, 1, 50, "b"), (0, 1, 30, "a"))
    early = [(0, "j0", (0, 1)), (0, "j1", (1,)), (0, "j2", (0,))]
    alone = Proving([*early, (80, "j3", (2,))])
    assert finishes(run(jobs, where, alone, predicted=believed))[2:] == [75, 110]
    joins = Proving([*early, (80, "j3", (0,))])
    message = r"breaks a rule: job j0: gsla: slowdown 2 > 1.5 \(at 80 s\)"
    with pytest.raises(PolicyError, match=message):
        run(jobs, where, joins, predicted=believed)


def with_tails(where, p99):
    """Return a world whose entries have these tail latencies."""
    data = where.to_data()
    data["slowdowns"] = [{**entry, "p99": p99} for entry in data["slowdowns"]]
    return Instance.from_data(data)


def test_a_start_that_breaks_a_latency_critical_job_s_gsla_is_refused():
    jobs = trace((0, 1, 40, "a", 1.5), (10, 1, 20, "b", 1.5), priority="latency")
    script = Scripted([(10, "j1", (0,))])  # j0, a service, starts by itself
    where = world(1, 1, [("a", "b", 1.2, 1.2)])
    for p99 in ([1.6, 1.1], [1.1, 1.6]):
        message = r"puts 'j1' on n0-0: a latency-critical job would be over its gSLA"
        with pytest.raises(PolicyError, match=message):
            simulate(jobs, with_tails(where, p99), script)
    assert finishes(run(jobs, with_tails(where, [1.5, 1.5]), script)) == [44, 34]


@dataclass
class Impatient:
    """Stops the job after 5 seconds and starts it again a second later."""

    def decide(self, state):
        if state.running:
            return Decision((), tuple(state.running.values()), state.now + 1)
        starts = tuple(Start(job, (0,)) for job in state.pending.values())
        return Decision(starts, (), state.now + 5)


def test_what_would_go_on_for_ever_is_given_up(monkeypatch):
    monkeypatch.setattr("dovetail.executor.simulation.pool.MOST_BARREN", 50)
    # 5 s of work before the first stop; after it 60 s of restore, of which 5 are waited for.
    with pytest.raises(PolicyError, match=r"50 times in a row .* restores take 60 s"):
        simulate(trace((0, 1, 100, "a")), world(), Impatient())
    history = run(trace((0, 1, 100, "a")), world(), Impatient(), Options(restart_s=0.0))
    # 20 stays of 5 s, 19 seconds between them.
    assert finishes(history) == [119]
    # A checkpoint never comes before the next failure.
    rules = Options(node_mtbf_s=10.0, repair_s=1.0, checkpoint_s=1000.0)
    with pytest.raises(PolicyError, match="work since a checkpoint"):
        simulate(trace((0, 1, 5000, "a")), world(), policy_named("fifo"), rules)


def test_no_job_joins_a_full_gpu():
    jobs = trace(*[(0, 1, 10, "a")] * 3)
    script = Scripted([(0, f"j{k}", (0,)) for k in range(3)])
    with pytest.raises(PolicyError, match=r"puts 'j2' on n0-0: 3 jobs, at most 2 may share a GPU"):
        simulate(jobs, world(1, 2, [("a", "a", 1.0, 1.0)]), script)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ((0, 3, 10, "a"), r"trace: jobs\[0\].workers: must be <= 2 .*, got 3 for job 'j0'"),
        ((0, 1, 10, "c"), r"trace: jobs\[0\].workload: must be a workload .*, got 'c'"),
    ],
)
def test_a_job_that_can_never_run_is_refused_at_once(job, message):
    with pytest.raises(InputError, match=message):
        simulate(trace(job), world(), policy_named("fifo"))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("restart_s", -1.0, "restart_s: must be a finite number >= 0, got -1.0"),
        ("round_s", math.nan, "round_s: must be a finite number >= 0, got nan"),
        ("across_nodes", 0.5, "across_nodes: must be a finite number >= 1, got 0.5"),
        ("repair_s", 0.0, "repair_s: must be > 0, got 0.0"),
    ],
)
def test_options_out_of_range(field, value, message):
    with pytest.raises(InputError) as error:
        Options(**{field: value})
    assert str(error.value) == message


def test_the_conservation_check_notices_what_is_impossible():
    jobs = trace((0, 1, 40, "a"), (10, 1, 20, "b"))
    where = world(1, 1, SLOW)
    history = run(jobs, where, Scripted([(0, "j0", (0,)), (10, "j1", (0,))]))
    stays = history.stays
    history.stays = [stays[0], stays[1]._replace(end_s=50)]
    assert any("j0: booked 40.0 s of work and did" in v for v in violations(history, jobs, where))
    history.stays = stays[:1]
    assert violations(history, jobs, where)[0] == "j0: does not end exactly once"
    history.stays = [stays[0]._replace(start_s=5), stays[1]]
    assert "j1: starts before it arrives" in violations(history, jobs, where)
    where = world(1, 1, SLOW, max_jobs_per_gpu=1)
    history.stays = stays
    assert "n0-0: 2 jobs at 10 s" in violations(history, jobs, where)


def test_the_conservation_check_notices_a_latency_critical_job_over_its_gsla():
    starts = Scripted([(0, "j0", (0,)), (10, "j1", (0,))])
    arrivals = (0, 1, 40, "a", 1.5), (10, 1, 20, "b")
    where = world(1, 1, [("a", "b", 1.2, 1.2)])
    history = run(trace(*arrivals), where, starts)
    late = trace(*arrivals, priority="latency")
    assert violations(history, late, where) == []
    broken = ["n0-0: j0 is over its gSLA for latency at 10 s"]
    assert violations(history, late, with_tails(where, [1.6, 1.0])) == broken
    # What was believed counts, and of slowdowns what may have been measured, too.
    believed = SlowdownTable.of(with_tails(where, [1.6, 1.0]))
    assert violations(history, late, where, predicted=believed) == broken
    slower = SlowdownTable.of(world(1, 1, [("a", "b", 1.6, 1.2)]))
    assert violations(history, late, where, predicted=slower) == []
    unknown = SlowdownTable.of(world(1, 1))
    assert violations(history, late, where, predicted=unknown) == []
