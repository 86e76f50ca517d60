"""Policies by their names: the core's are its own, and plugins add others."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dovetail.instances.errors import UnsupportedError
from dovetail.instances.plugins import Plugin
from dovetail.solver.policies import POLICIES, Decision, policy_class, policy_named, registry
from dovetail.solver.policies.exclusive import Fifo

HERE = "tests.solver.policies.test_registry"


@dataclass(frozen=True)
class Waits:
    """Starts nothing."""

    for_s: float = 60.0

    def decide(self, state):
        return Decision(wake_s=state.now + self.for_s)


class Idles:
    """Has no method decide."""


@pytest.fixture
def plugged(monkeypatch):
    """Add plugins by name and target."""

    def plug(**targets):
        found = {name: Plugin("policy", name, "other", target) for name, target in targets.items()}
        monkeypatch.setattr(registry, "plugins", lambda _: found)

    return plug


def test_a_plugin_is_a_policy_with_options(plugged):
    plugged(waits=f"{HERE}:Waits")
    assert policy_named("waits:for_s=5") == Waits(5.0)
    assert registry.policy_names() == (*POLICIES, "waits")
    with pytest.raises(UnsupportedError, match="waits is the name of another policy"):
        policy_named("waits=python:m.C")


def test_the_cores_names_are_its_own(plugged):
    plugged(fifo=f"{HERE}:Waits")
    assert policy_class("fifo") is Fifo
    assert registry.policy_names() == tuple(POLICIES)


def test_an_unknown_name_lists_all_with_a_hint(plugged):
    plugged(waits=f"{HERE}:Waits")
    known = ", ".join([*POLICIES, "waits"])
    with pytest.raises(UnsupportedError) as error:
        policy_named("wait")
    message = f"policy must be one of {known}, got 'wait', did you mean waits?"
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("target", "rule"),
    [
        ("absent_module:Waits", "cannot be imported: ModuleNotFoundError: No module named"),
        (f"{HERE}:Absent", "cannot be imported: AttributeError"),
        (f"{HERE}:HERE", "must be a function or a class, got str"),
        (f"{HERE}:Idles", "must be a class with a method decide"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_an_error_of_its_name_alone(plugged, target, rule):
    plugged(mine=target)
    with pytest.raises(UnsupportedError) as error:
        policy_named("mine")
    what = f"plugin policy.mine of the package other ({target})"
    assert str(error.value).startswith(f"{what} {rule}")
    assert "\n" not in str(error.value)
    assert isinstance(policy_named("fifo"), Fifo)
