"""``dovetail explain``: why jobs wait and what would let them start."""

from __future__ import annotations

from argparse import Namespace
from itertools import islice
from typing import TYPE_CHECKING, Final

from dovetail.predicting.options import PREDICTION
from dovetail.toolkit.commands import INSTANCE, PLAN_FILE, SLOWDOWNS, Command, argument
from dovetail.toolkit.files import naming, print_either
from dovetail.toolkit.progress import working
from dovetail.toolkit.tables import named_lines, stacked, text_rows, title
from dovetail.toolkit.wording import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from dovetail.instances.instance import Instance
    from dovetail.instances.plan import Plan, Waiting
    from dovetail.solver.explaining.explanations import Explanation
    from dovetail.solver.rounds import UnknownPairs

EXPLAIN: Final = Command(
    "explain",
    "Explain why jobs wait and what would let them start.",
    "dovetail.planning.explain:explain",
    (
        INSTANCE,
        PLAN_FILE,
        argument(
            "[JOB]", "id of the job (default: all waiting jobs, and the pairs not yet measured)"
        ),
        SLOWDOWNS,
        *PREDICTION,
    ),
)

_MOST_PAIRS: Final = 1000
_ANY: Final = "Any one of these (would: proven by solving; could: if the rest stays):"


def explain(options: Namespace) -> int:
    """Explain why a job waits and what would let it start, or why each waiting job waits."""
    from dovetail.instances.files import read_plan
    from dovetail.predicting.filling import completed
    from dovetail.solver.explaining.explanations import explain as explained

    instance = completed(options)
    plan = read_plan(options.plan)
    if options.job is None:
        return _explain_waiting(options, instance, plan)
    with naming(options.instance), working("solving changed rounds"):
        story = explained(instance, plan, options.job)
    print_either(options, story.to_data(), lambda: _view(story))
    return 0


def _explain_waiting(options: Namespace, instance: Instance, plan: Plan) -> int:
    from dovetail.solver.explaining.explanations import explain_waiting
    from dovetail.solver.rounds import UnknownPairs

    with naming(options.instance):
        waiting = explain_waiting(instance, plan)
    pairs = UnknownPairs.of(instance)
    named = list(pairs.names()) if options.json else []
    data = {"waiting": [row.to_data() for row in waiting], "unknown_pairs": named}
    print_either(options, data, lambda: waiting_view(waiting, pairs))
    return 0


def _view(story: Explanation) -> RenderableType:
    """Return why a job waits or where it runs, and what would let it start."""
    head = _reasons([story])
    if not story.remedies:
        return head
    return stacked(head, "", _ANY, text_rows(("  -", remedy.text) for remedy in story.remedies))


def waiting_view(waiting: Sequence[Waiting], pairs: UnknownPairs | None = None) -> RenderableType:
    """Return why each job waits, and the first pairs of workloads without a known slowdown."""
    found = _reasons(waiting) if waiting else "no job waits"
    if pairs is None or not pairs.number:
        return stacked(found)
    left = pairs.number - _MOST_PAIRS
    return stacked(
        found,
        title(f"{number(pairs.number, 'pair')} of workloads without a known slowdown:"),
        *(f"{a} + {b}" for a, b in islice(pairs.names(), _MOST_PAIRS)),
        f"... {left:,} more (--json lists all)" if left > 0 else None,
    )


def _reasons(waiting: Sequence[Waiting | Explanation]) -> RenderableType:
    return named_lines((each.job, each.reason or "no reason given") for each in waiting)
