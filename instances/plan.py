"""The records of an answer, ``dovetail-plan/1``.

A plan made elsewhere needs only ``assignments``; every other field is a claim that ``dovetail
check`` verifies if it is present.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, StrictBool, WithJsonSchema, model_validator

from dovetail.instances._frames import frame, html
from dovetail.instances._record import (
    AnyShare,
    Confidence,
    Count,
    Name,
    NonNegative,
    Number,
    Positive,
    Record,
    SeatShare,
    Text,
    rule_broken,
    shown,
)
from dovetail.instances.objectives import OBJECTIVES, ObjectiveName
from dovetail.instances.slowdowns.entry import Source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pandas import DataFrame

    from dovetail.instances.instance import Job

PLAN_FORMAT: Final = "dovetail-plan/1"

OWN_OBJECTIVE: Final = "python:"
"""The prefix of the names of users' own objectives: ``python:MODULE.CLASS``."""


def _objective(name: str) -> str:
    if name in OBJECTIVES or name.startswith(OWN_OBJECTIVE):
        return name
    known = ", ".join(map(repr, OBJECTIVES))
    raise rule_broken("", f"must be {known} or '{OWN_OBJECTIVE}MODULE.CLASS', got {shown(name)}")


AnyObjective = Annotated[
    Name,
    AfterValidator(_objective),
    WithJsonSchema(
        {"anyOf": [{"enum": list(OBJECTIVES)}, {"type": "string", "pattern": f"^{OWN_OBJECTIVE}"}]}
    ),
]

Status = Literal["optimal", "feasible", "infeasible", "unknown"]
"""The status of a plan: ``optimal`` means gap <= 1e-6, ``feasible`` valid without that proof."""

Stopped = Literal["complete", "time_limit", "gap_reached", "interrupted", "error"]
"""Why the search ended."""


class ObjectiveValue(Record):
    """Value, proven bound and gap of the plan.

    Under the two-stage objectives (``slowdown``, ``sensitivity``, ``energy``, ``fewest``) these
    belong to the second stage and ``placed_weight`` to the first; ``bound`` is null until the
    first stage is proven.
    """

    name: AnyObjective
    value: Number
    bound: Number | None = None
    gap: NonNegative | None = None
    placed_weight: NonNegative | None = None
    placed_weight_bound: NonNegative | None = None


class Assignment(Record):
    """A placed job: its GPUs, shares, slowdown and co-runners."""

    job: Name
    gpus: Annotated[tuple[Name, ...], Field(min_length=1)]
    share: tuple[SeatShare | None, ...] | None = None
    slowdown: Positive | None = None
    sub_batch: Count | None = None
    co_runners: tuple[tuple[Name, ...], ...] | None = None
    start: StrictBool | None = None
    source: Source | None = None
    confidence: Confidence | None = None

    @model_validator(mode="after")
    def _one_value_each(self) -> Self:
        for name in ("share", "co_runners"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.gpus):
                raise rule_broken(name, f"must have {len(self.gpus)} items, got {len(values)}")
        return self

    @property
    def shares(self) -> tuple[AnyShare, ...]:
        """The share on each GPU, with ``share`` expanded."""
        return self.share if self.share is not None else (None,) * len(self.gpus)


class Nearest(Record):
    """The co-runner that came closest to letting a waiting job start, with its numbers."""

    co_runner: Name
    share: SeatShare | None = None
    slowdown: Positive | None = None
    gpu: Name | None = None


class Waiting(Record):
    """A job that is not placed, and why."""

    job: Name
    reason: Text = ""
    nearest: Nearest | None = None


class Stop(Record):
    """A running job that must be stopped before anything starts, and the GPUs that it runs on."""

    job: Name
    gpus: tuple[Name, ...]


class Verification(Record):
    """A verification of the plan by code that shares nothing with its solver.

    The checker has passed the plan, and the certificate, if there is one, proves its bound.
    """

    certificate: Literal["checked", "none"]
    pairs: Annotated[int, Field(strict=True, ge=0)] | None = None


class Plan(Record):
    """The answer to an instance."""

    format: Literal["dovetail-plan/1"] = PLAN_FORMAT
    instance: Name | None = None
    objective: ObjectiveValue | None = None
    status: Status | None = None
    stopped: Stopped | None = None
    runtime_s: NonNegative | None = None
    solver: Text | None = None
    seed: Annotated[int, Field(strict=True)] | None = None
    preempt: StrictBool = False
    nodes_spanned: Annotated[int, Field(strict=True, ge=0)] | None = None
    tie_break: Literal["proven", "heuristic"] | None = None
    verification: Verification | None = None
    notes: tuple[Text, ...] = ()
    assignments: tuple[Assignment, ...]
    waiting: tuple[Waiting, ...] = ()
    stops: tuple[Stop, ...] = ()

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        """Return its outcome; the whole plan would fill many screens."""
        value = f"{self.objective.name} {self.objective.value:.6g}, " if self.objective else ""
        return f"<Plan of {self.instance!r}: {value}{len(self.assignments):,} jobs placed>"

    def to_frame(self) -> DataFrame:
        """Return a pandas data frame with a row for each job, waiting jobs last."""
        waiting = ({"job": row.job, "start": False, "reason": row.reason} for row in self.waiting)
        rows = (*map(dict, self.assignments), *waiting)
        return frame(rows, (*Assignment.model_fields, "reason"))

    def _repr_html_(self) -> str:
        return html(self, self.to_frame())

    def starts(self, row: Assignment, running: bool) -> bool:
        """Return whether it starts an assigned job, i.e. one that waits or that it moves."""
        return row.start is not False and (self.preempt or not running)

    def leaving(self, jobs: Iterable[Job]) -> tuple[Stop, ...]:
        """Return the running jobs that do not stay: those that it moves or makes wait."""
        stay = {row.job for row in self.assignments if not self.starts(row, running=True)}
        return tuple(
            Stop(job=job.id, gpus=job.gpus or ())
            for job in jobs
            if job.running and job.id not in stay
        )

    @property
    def judged_by(self) -> ObjectiveName:
        """The built-in objective to judge it by: ``throughput`` if it names no built-in one."""
        name = self.objective.name if self.objective else None
        return next((known for known in OBJECTIVES if known == name), "throughput")
