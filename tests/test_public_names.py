"""Notebook support: public names before their first use, and records in one line."""

from __future__ import annotations

import subprocess
import sys

import dovetail
from dovetail.instances import library
from dovetail.instances.generate import generate
from dovetail.planning.comparison import compare


def test_all_public_names_are_listed_before_they_are_used():
    code = "import dovetail; print(*dir(dovetail))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(ran.stdout.split()) == {*dovetail.__all__, "__version__"}
    assert all(hasattr(dovetail, name) for name in dir(dovetail))


def test_records_are_shown_in_one_line():
    instance = generate(60, seed=1, gpus=12, shares=())
    result = dovetail.solve(instance, solver="greedy", explain=False)
    for shown in map(repr, (instance, result, result.plan)):
        assert len(shown) < 200, shown
    assert f"{instance}" == repr(instance)
    assert repr(instance).startswith(f"<Instance '{instance.name}': 60 jobs, 12 GPUs, ")
    placed = f"throughput {result.objective:.6g}, {len(result.plan.assignments)} jobs placed"
    assert placed in repr(result.plan)


def test_a_plan_is_a_frame_of_its_jobs():
    instance = generate(60, seed=1, gpus=12, shares=())
    plan = dovetail.solve(instance, solver="greedy").plan
    frame = plan.to_frame()
    assert [*frame.job] == [row.job for row in (*plan.assignments, *plan.waiting)]
    placed = frame[frame.gpus.notna()]
    assert [*placed.slowdown] == [row.slowdown for row in plan.assignments]
    assert [*frame.reason.dropna()] == [row.reason for row in plan.waiting]
    assert [*instance.to_frame().workload] == [job.workload for job in instance.jobs]


def test_a_comparison_is_a_frame_of_its_ways():
    instance = library.load("first-pairs")
    found = compare(instance, dovetail.solve(instance).plan)
    assert [*found.to_frame().value] == [row.value for row in found.rows]


def test_a_notebook_shows_a_table_of_at_most_twenty_jobs():
    instance = generate(60, seed=1, gpus=12, shares=())
    instance = instance.replace(name="<b>bold</b>")
    result = dovetail.solve(instance, solver="greedy", explain=False)
    for shown in (instance._repr_html_(), result._repr_html_(), result.plan._repr_html_()):
        assert 20 <= shown.count("<tr") <= 22
        assert "&lt;b&gt;bold" in shown
        assert "<b>" not in shown
