"""What a notebook shows: the public names before their first use, and records in one line."""

from __future__ import annotations

import subprocess
import sys

import dovetail
from dovetail.instances.generate import generate


def test_all_public_names_are_listed_before_they_are_used():
    code = "import dovetail; print(*dir(dovetail))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(ran.stdout.split()) == {*dovetail.__all__, "__version__"}
    assert all(hasattr(dovetail, name) for name in dir(dovetail))


def test_records_are_shown_in_one_line():
    instance = generate(60, seed=1, gpus=12)
    result = dovetail.solve(instance, solver="greedy", explain=False)
    for shown in map(repr, (instance, result, result.plan)):
        assert len(shown) < 200, shown
    assert f"{instance}" == repr(instance)
    assert repr(instance).startswith(f"<Instance '{instance.name}': 60 jobs, 12 GPUs, ")
    placed = f"throughput {result.objective:.6g}, {len(result.plan.assignments)} jobs placed"
    assert placed in repr(result.plan)
