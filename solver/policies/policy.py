"""The interface of policies, and their decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from dovetail.instances._record import AnyShare
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
        The job's cap on each GPU; None for no caps.
    mode : int
        Index into ``State.modes`` of its workload (0 = full batch).
    """

    job: Job
    gpus: tuple[int, ...]
    shares: tuple[AnyShare, ...] | None = None
    mode: int = 0


class RoundProof(NamedTuple):
    """The proof of an optimising policy for its decision.

    Attributes
    ----------
    value, bound, gap : float
        Value, bound and gap of the round's objective, as in a plan; ``gap`` is NaN if there is no
        bound.
    jobs : int
        Number of jobs that took part in the round or that no GPU had room for.
    """

    value: float
    bound: float
    gap: float
    jobs: int

    def followed_by(self, other: RoundProof) -> RoundProof:
        """Return the proof of two rounds, the second with the jobs and GPUs left by the first."""
        value, bound = self.value + other.value, self.bound + other.bound
        return RoundProof(value, bound, max(self.gap, other.gap), self.jobs + other.jobs)


class Decision(NamedTuple):
    """The actions to take now.

    Attributes
    ----------
    starts : tuple of Start
        Jobs to start after the stops, in this order.
    stops : tuple of Job
        Running jobs to checkpoint and remove from their GPUs; they become pending.
    wake_s : float or None
        The pool's time at which to call the policy again even if nothing happens; it replaces the
        time of the previous decision.
    proof : RoundProof or None
        The proof, if the policy has one.
    reserved : mapping of int to Reservation
        The GPUs reserved for waiting jobs from now on, by ``Job.number``; replaces
        ``State.reserved``.
    """

    starts: tuple[Start, ...] = ()
    stops: tuple[Job, ...] = ()
    wake_s: float | None = None
    proof: RoundProof | None = None
    reserved: Mapping[int, Reservation] = MappingProxyType({})

    def without(self, refused: Callable[[Start], bool]) -> Decision:
        """Return the decision without some starts and without the stops that only these need."""
        kept = tuple([start for start in self.starts if not refused(start)])
        if len(kept) == len(self.starts):
            return self
        used = {gpu for start in kept for gpu in start.gpus}
        lost = {gpu for start in self.starts for gpu in start.gpus} - used
        stops = [
            job for job in self.stops if not used.isdisjoint(job.gpus) or lost.isdisjoint(job.gpus)
        ]
        return self._replace(starts=kept, stops=tuple(stops))


NOTHING = Decision()
"""Leave everything as it is."""


class Policy(Protocol):
    """Decides which job runs where; the same in a simulation and on real GPUs.

    It reads only ``state`` and never changes it. Data that it caches between rounds is lost
    whenever the state is another object, so a promise to a job belongs in ``Decision.reserved``. A
    policy that optimises an objective of plans may name it in an attribute ``objective``; plans and
    reasons of live mode then use it.
    """

    def decide(self, state: State) -> Decision:
        """Return the decision at ``state.now``."""
        ...


def objective_of(policy: Policy) -> ObjectiveName:
    """Return the objective that a policy optimises; ``throughput`` if it names none."""
    named = getattr(policy, "objective", None)
    return next((known for known in OBJECTIVES if known == named), "throughput")


def decided(policy: Policy, state: State) -> Decision:
    """Return the decision of a policy.

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
