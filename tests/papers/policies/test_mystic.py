import pytest

from dovetail.instances.errors import InputError
from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import run, trace, world
from tests.papers.policies.profiled import companions, profiled


def _metrics(**values):
    return {"metrics": values}


def test_the_least_similar_are_paired():
    # Scaled by the largest values (0.8, 0.5): a = (1, 0), b = (0, 1), c = (0.75, 0.2). c is at
    # cosine 0.97 of a and 0.26 of b, so j2 joins j1.
    where = profiled(
        {
            "a": _metrics(sm_active=0.8, dram_active=0.0),
            "b": _metrics(sm_active=0.0, dram_active=0.5),
            "c": _metrics(sm_active=0.6, dram_active=0.1, gpu_util=0.7),
        },
        gpus=2,
    )
    jobs = trace((0, 1, 10, "a"), (0, 1, 10, "b"), (0, 1, 10, "c"))
    assert companions(run(jobs, where, policy_named("mystic")))[2] == {1}


def test_single_kernels_do_not_count():
    where = profiled(
        {
            "a": _metrics(sm_active=0.8, dram_active=0.0, kernels_s=0.0),
            "b": _metrics(sm_active=0.0, dram_active=0.5, kernels_s=1e5),
            "c": _metrics(sm_active=0.6, dram_active=0.1, kernels_s=1e5),
        },
        gpus=2,
    )
    jobs = trace((0, 1, 10, "a"), (0, 1, 10, "b"), (0, 1, 10, "c"))
    assert companions(run(jobs, where, policy_named("mystic")))[2] == {1}  # as without them


def test_the_pair_that_is_least_alike_goes_first():
    # One place, with j0 (a). j1 (a too) came before j2 (b), which is less like it.
    where = profiled(
        {
            "a": _metrics(sm_active=0.8, dram_active=0.0),
            "b": _metrics(sm_active=0.0, dram_active=0.5),
        }
    )
    jobs = trace((0, 1, 10, "a"), (0, 1, 10, "a"), (0, 1, 10, "b"))
    history = run(jobs, where, policy_named("mystic"))
    assert [outcome.first_start_s for outcome in history.outcomes] == [0, 20, 0]


def test_it_needs_a_common_metric():
    with pytest.raises(InputError, match="needs a metric that every workload has"):
        run(trace((0, 1, 10, "a")), world(gpus=1), policy_named("mystic"))
    apart = profiled({"a": _metrics(sm_active=0.8), "b": _metrics(gpu_util=0.8)})
    with pytest.raises(InputError, match="needs a metric that every workload has"):
        run(trace((0, 1, 10, "a")), apart, policy_named("mystic"))
