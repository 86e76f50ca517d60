import dataclasses

import pytest

from dovetail.executor.simulation import Options
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.instance import Instance
from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import finishes, run, trace, world

FREE_RESTARTS = Options(restart_s=0.0)


def test_two_jobs_on_one_gpu_take_turns():
    # Each is due half of the time: a, b, a, b in rounds of 360 s.
    jobs = trace((0, 1, 720, "a"), (0, 1, 720, "b"))
    history = run(jobs, world(gpus=1), policy_named("gavel"), FREE_RESTARTS)
    assert finishes(history) == [1080, 1440]


def test_a_weight_of_three_is_three_quarters_of_the_time():
    # Owed over (received + 1), a before b where equal: .75 to .25, .75 to .5, .75 to .75, then
    # .75 to 1: a has three rounds and b the fourth.
    jobs = trace((0, 1, 1080, "a"), (0, 1, 360, "b"))
    heavy = dataclasses.replace(jobs.jobs[0], weight=3.0)
    jobs = jobs.replace([heavy, jobs.jobs[1]])
    history = run(jobs, world(gpus=1), policy_named("gavel"), FREE_RESTARTS)
    assert finishes(history) == [1080, 1440]


def test_a_pair_that_is_faster_together_shares_all_of_the_time():
    where = world(gpus=1, slowdowns=[("a", "b", 1.25, 1.25)])
    jobs = trace((0, 1, 720, "a"), (0, 1, 720, "b"))
    assert finishes(run(jobs, where, policy_named("gavel"), FREE_RESTARTS)) == [900, 900]
    apart = run(jobs, where, policy_named("gavel:space_sharing=false"), FREE_RESTARTS)
    assert finishes(apart) == [1080, 1440]


def test_a_pair_that_is_slower_together_takes_turns():
    where = world(gpus=1, slowdowns=[("a", "b", 2.5, 2.5)])
    jobs = trace((0, 1, 720, "a"), (0, 1, 720, "b"))
    assert finishes(run(jobs, where, policy_named("gavel"), FREE_RESTARTS)) == [1080, 1440]


def test_each_job_runs_where_it_is_fastest_for_all():
    # a is four times as fast on the V100, b as fast on either: progress against equal shares
    # is 4 / 2.5 and 1 this way, and 1 / 2.5 and 1 the other way round.
    data = world(gpus=1).to_data()
    data["cluster"]["nodes"].append(
        {"id": "old", "gpu_count": 1, "gpu": {"model": "K80", "memory_mib": 12000.0}}
    )
    data["workloads"]["a"]["speed"] = {"V100": 4.0}
    jobs = trace((0, 1, 300, "b"), (0, 1, 400, "a"))
    history = run(jobs, Instance.from_data(data), policy_named("gavel"))
    assert finishes(history) == [300, 100]


def test_makespan_gives_time_by_the_work_left():
    # Shares by work left: .75 and .25, a runs; 2/3 and 1/3, so a is owed 1.417 / 2 and b .583:
    # a again; half each, so a is owed 1.917 / 3 and b 1.083: b, which ends. Then a's last 360.
    jobs = trace((0, 1, 1080, "a"), (0, 1, 360, "b"))
    policy = policy_named("gavel:objective=makespan")
    assert finishes(run(jobs, world(gpus=1), policy, FREE_RESTARTS)) == [1440, 1080]


def test_finish_time_fairness_holds_the_ratios_to_half_of_the_gpu_each():
    # Alone on half of the GPU they would take 2,160 and 1,440 s. After a's first round the ratio is
    # 1.05, at shares of .38 and .62; after b's it is 1, half each. Owed over received + 1: .44 and
    # 1.12, then .69 and .81: b has the second round and the third. In turns b would end at 1,440.
    jobs = trace((0, 1, 1080, "a"), (0, 1, 720, "b"))
    policy = policy_named("gavel:objective=finish-time")
    assert finishes(run(jobs, world(gpus=1), policy, FREE_RESTARTS)) == [1800, 1080]


def test_fifo_gives_all_of_the_time_to_the_first():
    jobs = trace((0, 1, 720, "a"), (0, 1, 720, "a"))
    found = run(jobs, world(gpus=1), policy_named("gavel:objective=fifo"), FREE_RESTARTS)
    assert finishes(found) == [720, 1440]
    where = world(gpus=1, slowdowns=[("a", "a", 1.25, 1.25)])
    found = run(jobs, where, policy_named("gavel:objective=fifo"), FREE_RESTARTS)
    assert finishes(found) == [900, 900]


def test_a_job_that_fits_nowhere_ends_no_search_for_ratios():
    data = world(gpus=1, nodes=2).to_data()
    data["cluster"]["nodes"][1]["gpu"] = {"model": "A100", "memory_mib": 40000.0}
    data["workloads"]["b"]["memory_mib"] = 30000.0
    options = Options(restart_s=0.0, node_mtbf_s=200.0, repair_s=100.0)
    jobs = trace((0, 1, 500, "a"), (0, 1, 500, "b"))
    policy = policy_named("gavel:objective=finish-time")
    history = run(jobs, Instance.from_data(data), policy, options)
    assert all(finish > 0 for finish in finishes(history))


def test_throughput_lets_the_better_pair_run_and_the_third_wait():
    # a with c is worth 2 / 1.1, a with b 2 / 1.25. b waits for the next round after they end.
    where = world(
        gpus=1,
        slowdowns=[("a", "b", 1.25, 1.25), ("a", "c", 1.1, 1.1)],
        workloads=("a", "b", "c"),
    )
    jobs = trace((0, 1, 300, "a"), (0, 1, 100, "b"), (0, 1, 300, "c"))
    history = run(jobs, where, policy_named("gavel:objective=throughput"))
    assert finishes(history) == [330, 460, 330]


def test_a_job_that_arrives_waits_for_the_next_round():
    jobs = trace((0, 1, 1000, "a"), (10, 1, 10, "b"))
    history = run(jobs, world(gpus=2), policy_named("gavel:round_s=100"))
    assert finishes(history) == [1000, 110]
    assert history.jobs[0].starts == 1


@pytest.mark.parametrize("option", ["objective=fair", "round_s=0", "round_s=nan"])
def test_options_out_of_range_are_refused(option):
    with pytest.raises(UnsupportedError, match=option.partition("=")[0]):
        policy_named(f"gavel:{option}")
