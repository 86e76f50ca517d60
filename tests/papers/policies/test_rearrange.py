from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.papers.policies.rearrange import Group, rearranged
from dovetail.solver.policies import Job, State
from tests.executor.simulation.worlds import world


def pool(*jobs, gpus=3):
    """Return a state of jobs of one worker, each on the GPU given or waiting for None."""
    where = world(gpus=gpus, slowdowns=[("a", "a", 1.0, 1.0)])
    state = State(where, SlowdownTable.of(where))
    for number, gpu in enumerate(jobs):
        job = Job(number, f"j{number}", 0, 1, 100.0, 0.0)
        if gpu is None:
            state.pending[number] = job
        else:
            job.phase, job.gpus = "running", (gpu,)
            state.running[number] = job
            state.idle_count[0] -= not state.residents[gpu]
            state.residents[gpu].append(job)
    return state, [*state.running.values(), *state.pending.values()]


def steps(draft):
    decision = draft.decision()
    starts = {(start.job.number, start.gpus) for start in decision.starts}
    return {job.number for job in decision.stops}, starts


def test_a_correct_share_is_kept_and_others_join():
    # 0 stays on GPU 1 and 3 joins it; 1 is in no group and stops; 2 stays.
    state, (a, _, c, d) = pool(1, 0, 2, None)
    draft = rearranged(state, [Group((d, a), 0), Group((c,), 0)])
    assert steps(draft) == ({1}, {(3, (1,))})


def test_two_groups_do_not_stay_on_one_gpu():
    # 0 and 1 share GPU 0. The first group keeps it; 1 starts again with 3 on an idle GPU.
    state, (a, b, c, d) = pool(0, 0, None, None)
    stops, starts = steps(rearranged(state, [Group((a, c), 0), Group((b, d), 0)]))
    assert stops == {1}
    assert starts == {(2, (0,)), (1, (1,)), (3, (1,))}


def test_a_group_stays_where_that_moves_fewest():
    # On GPU 0, where 0 runs, the first group would drive 2 away and 1 would join: two move.
    state, (a, b, c) = pool(0, 1, 0)
    stops, starts = steps(rearranged(state, [Group((a, b), 0), Group((c,), 0)]))
    assert (stops, starts) == ({0}, {(0, (1,))})


def test_a_group_without_idle_gpus_waits():
    state, (a, b) = pool(0, None, gpus=1)
    assert steps(rearranged(state, [Group((a,), 0), Group((b,), 0)])) == (set(), set())
