"""``dovetail check``: verify a plan and compute its value again."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Final

from dovetail.instances.objectives import OBJECTIVES
from dovetail.predicting.options import PREDICTION
from dovetail.toolkit.commands import INSTANCE, PLAN_FILE, SLOWDOWNS, Command, option
from dovetail.toolkit.files import naming, print_either
from dovetail.toolkit.tables import fact_lines, stacked, text_rows
from dovetail.toolkit.wording import number

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dovetail.instances.checking.checker import CheckReport

CHECK: Final = Command(
    "check",
    "Verify any plan, and recompute its value.",
    "dovetail.planning.check:check",
    (
        INSTANCE,
        PLAN_FILE,
        option(
            "--objective O",
            f"compute this: {', '.join(OBJECTIVES)} (default: the plan's own)",
            choices=OBJECTIVES,
        ),
        SLOWDOWNS,
        *PREDICTION,
    ),
)


def check(options: Namespace) -> int:
    """Verify a plan; 1 if it breaks a rule."""
    from dovetail.instances.checking.checker import check as verify
    from dovetail.instances.files import read_plan
    from dovetail.predicting.filling import completed

    instance = completed(options)
    plan = read_plan(options.plan)
    if plan.instance not in (None, instance.name):
        text = f"the plan was made for instance {plan.instance}, this one is {instance.name}"
        print(f"dovetail: {text}: are these the right files?", file=sys.stderr)
    with naming(options.instance):
        report = verify(instance, plan, options.objective)
    print_either(options, report.to_data(), lambda: check_view(report))
    return 0 if report.valid else 1


def check_view(report: CheckReport) -> RenderableType:
    """Return the checker's verdict, the recomputed figures and every violation."""
    from dovetail.planning.views import node_spans, values

    broken = number(len(report.violations), "violation")
    found = [
        *(("violation", str(each)) for each in report.violations),
        *(("warning", each) for each in report.warnings),
    ]
    return stacked(
        fact_lines(
            ("plan", "valid" if report.valid else f"not valid: {broken}"),
            *values(report, None),
            ("GPUs used", str(report.gpus_used)),
            node_spans(report),
        ),
        text_rows(found) if found else None,
    )
