"""Small instances and plans that tests start from, and the vectors next to the checkout."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.instances.instance import Instance
from dovetail.instances.plan import Plan

VECTORS = Path(__file__).parents[2] / "shared" / "vectors" / "rounds.json.gz"

EXAMPLE: dict[str, Any] = {
    "format": "dovetail-instance/1",
    "name": "example",
    "cluster": {
        "max_jobs_per_gpu": 2,
        "shares": [40, 50, 60],
        "share_sum": 100,
        "start_capped": True,
        "gang_sharing": "partial",
        "reserve_mib": 100,
        "per_process_mib": 300,
        "nodes": [
            {
                "id": "n0",
                "rack": "r0",
                "gpus": [
                    {"id": "n0-0", "model": "V100", "memory_mib": 16160, "sms": 80},
                    {"id": "n0-1", "model": "K80", "memory_mib": 12206},
                ],
            },
            {"id": "n1", "gpu_count": 4, "gpu": {"model": "V100", "memory_mib": 16160}},
        ],
    },
    "workloads": {
        "resnet": {
            "memory_mib": 9000,
            "metrics": {"sm_active": 0.92, "pcie_rx_bytes_s": 1.1e9},
            "metrics_by_share": {"50": {"sm_active": 0.5}},
            "throughput": {"100": 310.0, "50": 201.0},
            "power_w": 240,
            "speed": {"K80": 0.2, "V100": 1.0},
            "batch": {
                "size": 64,
                "min": 8,
                "fixed_mib": 2100,
                "mib_per_sample": 108,
                "step_s": {"fixed": 0.004, "per_sample": 0.0031},
                "comm_s": 0.01,
                "overlap": 1.0,
            },
        },
        "bert": {"memory_mib": 5000},
        "gpt": {"memory_mib": 3000},
    },
    "jobs": [
        {
            "id": "j1",
            "workload": "bert",
            "workers": 1,
            "gsla": 1.5,
            "weight": 2.0,
            "arrival_s": 0,
            "remaining_s": 3600,
            "priority": "latency",
        },
        {
            "id": "j2",
            "workload": "resnet",
            "workers": 2,
            "state": "running",
            "gpus": ["n0-0", "n1-3"],
            "share": [50, None],
            "sub_batch": 32,
        },
    ],
    "slowdowns": [
        {
            "pair": ["resnet", "bert"],
            "share": [60, 40],
            "slowdown": [1.3, 1.9],
            "upper": [1.4, 2.1],
            "p99": [1.5, 2.2],
            "power_w": 280,
            "gpu_model": "V100",
        },
        {"pair": ["bert", "bert"], "slowdown": [1.25, 1.25]},
        {"set": ["resnet", "bert", "gpt"], "slowdown": None},
    ],
}
"""An instance that uses every field of the format."""

EXAMPLE_PLAN: dict[str, Any] = {
    "format": "dovetail-plan/1",
    "instance": "example",
    "objective": {"name": "throughput", "value": 2.1, "bound": 2.1, "gap": 0.0},
    "status": "optimal",
    "stopped": "complete",
    "runtime_s": 0.041,
    "solver": "matching",
    "seed": 7,
    "preempt": False,
    "nodes_spanned": 3,
    "tie_break": "proven",
    "notes": ["one line"],
    "assignments": [
        {
            "job": "j2",
            "gpus": ["n0-0", "n1-3"],
            "share": [50, None],
            "slowdown": 1.3,
            "sub_batch": 32,
            "co_runners": [[], ["j7"]],
            "start": False,
        },
    ],
    "waiting": [
        {
            "job": "j1",
            "reason": "gsla: best partner j2 would slow it 1.62 > 1.50",
            "nearest": {"co_runner": "j2", "share": 40, "slowdown": 1.62, "gpu": "n0-0"},
        },
    ],
}
"""A plan that uses nearly every field of the format."""


def example_data() -> dict[str, Any]:
    """Return a copy of `EXAMPLE` that a test may change."""
    return copy.deepcopy(EXAMPLE)


def plan_data() -> dict[str, Any]:
    """Return a copy of `EXAMPLE_PLAN` that a test may change."""
    return copy.deepcopy(EXAMPLE_PLAN)


def example() -> Instance:
    """Return `EXAMPLE` as a record."""
    return Instance.from_data(EXAMPLE)


def example_plan() -> Plan:
    """Return `EXAMPLE_PLAN` as a record."""
    return Plan.from_data(EXAMPLE_PLAN)


def small(
    jobs: list[dict[str, Any]] | None = None,
    slowdowns: list[dict[str, Any]] | None = None,
    gpus: int = 2,
    **cluster: object,
) -> Instance:
    """Return an instance of one node with ``gpus`` GPUs g-0, g-1 and so on of 16,000 MiB.

    Its workloads a, b and c need 4,000 MiB each; a job without a workload runs a.
    """
    node = {"id": "g", "gpu_count": gpus, "gpu": {"model": "V100", "memory_mib": 16000}}
    return Instance.from_data(
        {
            "name": "small",
            "cluster": {"nodes": [node], **cluster},
            "workloads": {name: {"memory_mib": 4000} for name in "abc"},
            "jobs": [{"workload": "a", **job} for job in jobs or []],
            "slowdowns": slowdowns or [],
        }
    )


_SLOWER_AT_LAST = ("brute-30", "brute-42", "brute-43", "brute-47")
"""Vectors whose optimum breaks a gSLA once a job is left alone at its cap: it is of before."""


def vectors() -> list[dict[str, Any]]:
    """Return the shared test vectors; skip the test where they are not next to the checkout."""
    if not VECTORS.exists():
        pytest.skip(f"no test vectors at {VECTORS}")
    with gzip.open(VECTORS) as file:
        found: list[dict[str, Any]] = json.load(file)
    return found


def solved_vectors() -> list[dict[str, Any]]:
    """Return the shared test vectors with an optimum that holds."""
    return [entry for entry in vectors() if entry["instance"]["name"] not in _SLOWER_AT_LAST]
