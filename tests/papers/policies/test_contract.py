"""The policies of papers keep the contract of policies."""

import pytest

from dovetail.instances.plugins import plugins
from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import run, trace
from tests.formulations.test_rules import fits_in_memory_but_for_rounding
from tests.solver.policies.contract import PolicyContract, metered, stays_of, with_services

NAMES = tuple(name for name, each in plugins("policy").items() if each.is_own)


class TestPoliciesOfPapers(PolicyContract):
    @pytest.fixture(params=NAMES)
    def name(self, request):
        return request.param


@pytest.mark.parametrize("policy", ["tiresias", "gavel"])
def test_a_sum_of_memory_that_is_over_by_rounding_fits(policy):
    fits_in_memory_but_for_rounding(policy)


@pytest.mark.parametrize(
    "name",
    [
        *("gavel", "muri", "tesserae:threshold_gpu_s=600"),
        *("tiresias:threshold_gpu_s=600", "reactive"),
    ],
)
def test_those_that_stop_jobs_stop_no_service(name):
    jobs = trace((0, 1, 7200, "a"), *[(60 * k, 1, 1800, "b") for k in range(1, 5)])
    history = run(with_services(jobs, 0), metered(), policy_named(name))
    (stay,) = stays_of(history, 0)
    assert (stay.start_s, stay.end_s) == (0.0, 7200.0)
    if name != "reactive":  # it stops those that share alone
        batch = run(jobs, metered(), policy_named(name))
        assert len(stays_of(batch, 0)) > 1
