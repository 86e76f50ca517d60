"""What a policy is and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from dovetail.instances.errors import UnsupportedError
from dovetail.instances.objectives import OBJECTIVES, ObjectiveName
from dovetail.solver.outside import path_of
from dovetail.solver.policies.state import Job, Reservation, State


class Start(NamedTuple):
    """Start a pending job.

    Attributes
    ----------
    job : Job
        A pending job, or one that the same decision stops (a migration).
    gpus : tuple of int
        ``job.workers`` different GPUs of one model.
    shares : tuple of (int or None), or None
        Its cap on each; None = no caps.
    mode : int
        Index into ``State.modes`` of its workload (0 = full batch).
    """

    job: Job
    gpus: tuple[int, ...]
    shares: tuple[int | None, ...] | None = None
    mode: int = 0


class RoundProof(NamedTuple):
    """What an optimising policy proved of its decision.

    Attributes
    ----------
    value, bound, gap : float
        Of the round's objective; ``gap`` as in a plan, NaN where there is no bound.
    jobs : int
        Jobs that took part in the round, and those that no GPU had room for.
    """

    value: float
    bound: float
    gap: float
    jobs: int

    def followed_by(self, other: RoundProof) -> RoundProof:
        """Return the proof of two rounds, the second on what the first has left."""
        value, bound = self.value + other.value, self.bound + other.bound
        return RoundProof(value, bound, max(self.gap, other.gap), self.jobs + other.jobs)


class Decision(NamedTuple):
    """What to do now.

    Attributes
    ----------
    starts : tuple of Start
        Carried out after the stops, in this order.
    stops : tuple of Job
        Running jobs to checkpoint and take off their GPUs; they are pending again.
    wake_s : float or None
        The pool's time at which the policy wants to be asked again even if nothing happens; it
        replaces that of the decision before.
    proof : RoundProof or None
        Where the policy has one.
    reserved : mapping of int to Reservation
        What is kept from now on for waiting jobs, by ``Job.number``, in place of
        ``State.reserved``.
    """

    starts: tuple[Start, ...] = ()
    stops: tuple[Job, ...] = ()
    wake_s: float | None = None
    proof: RoundProof | None = None
    reserved: Mapping[int, Reservation] = MappingProxyType({})


NOTHING = Decision()
"""Leave everything as it is."""


class Policy(Protocol):
    """Decides which job runs where; the same in a simulation and on real GPUs.

    It reads the world from ``state`` only and never changes it. What it keeps between rounds is
    gone whenever the state is another object, so a promise to a job belongs into
    ``Decision.reserved``. One that optimises an objective of plans may name it in an attribute
    ``objective``; plans and reasons of live mode then use it.
    """

    def decide(self, state: State) -> Decision:
        """Return what to do at ``state.now``."""
        ...


def objective_of(policy: Policy) -> ObjectiveName:
    """Return the objective that a policy optimises; ``throughput`` where it names none."""
    named = getattr(policy, "objective", None)
    return next((known for known in OBJECTIVES if known == named), "throughput")


def decided(policy: Policy, state: State) -> Decision:
    """Return what a policy decides.

    Raises
    ------
    UnsupportedError
        When its ``decide`` returns something else.
    """
    decision: object = policy.decide(state)
    if not isinstance(decision, Decision):
        got = type(decision).__name__
        raise UnsupportedError(f"{path_of(policy)}.decide must return a Decision, got {got}")
    return decision
