"""The core's policies keep the contract of policies."""

import pytest

from dovetail.solver.policies import POLICIES
from tests.solver.policies.contract import PolicyContract


class TestPoliciesOfTheCore(PolicyContract):
    @pytest.fixture(params=POLICIES)
    def name(self, request):
        return request.param
