"""A plan as one self-contained HTML page for people who were not there when it was made.

The page needs no script, no network and no other file. Every text from a plan or an instance
is escaped by the template engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle

from jinja2 import Environment, PackageLoader, StrictUndefined

from dovetail import __version__, wording
from dovetail.comparison import Comparison, Row
from dovetail.instances.instance import Instance
from dovetail.instances.plan import ObjectiveValue, Plan
from dovetail.views import LOWER_IS_BETTER, TWO_STAGE, GpuView, PlacedJob, PlanView, Seat, view

UNFOLDED = 60
"""How many rows of a long table are seen before the reader asks for the rest."""

_LONGEST_AXIS = 3.0
_SHORTEST_AXIS = 1.5
_LEAST_PIECE = 15
_HUES = 11
_GOLDEN_ANGLE = 137.508


@dataclass(frozen=True)
class Piece:
    """A seat as a piece of its GPU's width; the hue tells gangs from each other."""

    seat: Seat
    width: int
    hue: int
    hatched: bool
    told: str


@dataclass(frozen=True)
class Span:
    """A part of a bar, in per cent of its whole width."""

    start: float
    length: float


@dataclass(frozen=True)
class SlowdownBar:
    """A job's slowdown, what it is at most, and the mark of its gSLA; None where unknown."""

    placed: PlacedJob
    slowdown: Span | None
    margin: Span | None
    limit: float | None
    limit_beyond: bool
    told: str


@dataclass(frozen=True)
class ComparisonBar:
    """A row of the comparison, its bar, and what the plan is worth beside it."""

    row: Row
    length: float
    cells: tuple[str, ...]
    advantage: str


def report_html(instance: Instance, plan: Plan, comparison: Comparison) -> str:
    """Return a plan as an HTML page.

    Parameters
    ----------
    instance : Instance
        The round that the plan answers.
    plan : Plan
        A plan that the checker finds valid.
    comparison : Comparison
        The same round planned in simpler ways.

    Raises
    ------
    InputError
        When the instance lacks a field that the plan's objective is computed from.
    """
    laid_out = view(instance, plan)
    axis = _axis(laid_out.placed)
    return _template().render(
        view=laid_out,
        plan=plan,
        report=laid_out.report,
        headline=_headline(laid_out),
        proof=_proof(laid_out),
        tiles=_tiles(laid_out),
        pieces=_pieces(laid_out),
        slowdowns=_slowdown_bars(laid_out.placed, axis),
        axis=axis,
        columns=wording.comparison_columns(comparison),
        bars=_comparison_bars(comparison),
        objective=comparison.objective,
        settings=_settings(laid_out),
        unfolded=UNFOLDED,
        version=__version__,
    )


@cache
def _template() -> Environment:  # type: ignore[no-any-unimported]
    raise NotImplementedError


def _headline(laid_out: PlanView) -> str:
    jobs, gpus = len(laid_out.instance.jobs), len(laid_out.gpus)
    placed, used = len(laid_out.placed), laid_out.report.gpus_used
    runs = f"{placed} of {wording.number(jobs, 'job')} run on {used} of {gpus} GPUs"
    return runs
