"""The page about states agrees with the table of transitions."""

import re
from itertools import product
from pathlib import Path

from dovetail.executor.jobs.journal import EVENTS_A_CHECKPOINT
from dovetail.executor.jobs.state_machine import KEPT_OVER, MOST_LOSSES
from dovetail.executor.jobs.states import HOLDING, OVER, QUEUED, TRANSITIONS

PAGE = (Path(__file__).parents[3] / "docs" / "internals" / "live-states.md").read_text(
    encoding="utf-8"
)
BOXES = {"queued": QUEUED, "holding": HOLDING, "over": OVER}
NOT_THERE = {("stopping", "finished"), ("profiling", "waiting")}


def test_the_diagram_is_the_codes():
    drawn = set()
    for before, after in re.findall(r"^ *(\w+) --> (\w+)", PAGE, re.M):
        ends = (BOXES.get(end, {end}) for end in (before, after))
        drawn |= {(str(one), str(other)) for one, other in product(*ends)}
    known = {(str(one), str(other)) for one, ways in TRANSITIONS.items() for other in ways}
    assert drawn >= NOT_THERE
    assert drawn - NOT_THERE == known
    assert all(f"`{one}` does not become `{other}`" in PAGE for one, other in NOT_THERE)


def test_its_numbers_are_the_codes():
    assert f"up to {MOST_LOSSES} times" in PAGE
    assert f"every {EVENTS_A_CHECKPOINT:,} events" in PAGE
    assert f"the last {KEPT_OVER:,} that are" in PAGE
