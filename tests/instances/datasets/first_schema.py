"""The records of ``first_schema.sql``: every kind, with every field, and with as few as may be."""

from __future__ import annotations

from pathlib import Path

from dovetail.instances._record import IDLE
from dovetail.instances.datasets import EvidenceRecord, Measurement, SoloProfile

SQL = Path(__file__).with_suffix(".sql")

FULL = SoloProfile(
    workload="lm é",
    gpu_model="V100",
    share=40,
    family="transformer",
    workers=2,
    batch_size=32,
    metrics={"ipc": 1.5, "gpu_util": 0.1},
    metrics_variance={"ipc": 0.1 + 0.2, "mem_util": 0.0},
    throughput=1 / 3,
    power_w=212.0,
    memory_mib=0.0,
    memory_mean_mib=1000.5,
    duration_s=1e-9,
    latency_p99_s=0.02,
    driver="580.1",
    library="130100",
    source="dovetail measure",
    date="2026-11-21T10:00:00+02:00",
)
LEAST = SoloProfile(workload="b", gpu_model="V100")
PROFILES = (FULL, LEAST, FULL.replace(share=None, driver=None), LEAST.replace(library="130100"))

PAIR = Measurement(
    workloads=("lm é", "b"),
    gpu_model="V100",
    share=(40, None),
    slowdown=(1.1, 1e15),
    p99=(None, 1.8),
    power_w=250.5,
    driver="580.1",
    library="130100",
    source="dovetail measure",
    date="2026-11-21",
)
MEASUREMENTS = (
    PAIR,
    Measurement(workloads=("b", "b"), gpu_model="V100", slowdown=(1.0, 2.0)),
    Measurement(workloads=("b", "c"), gpu_model="V100", slowdown=(1.5, 2.0), mode="time_sliced"),
    Measurement(workloads=("b", "c"), gpu_model="V100", share=(None, IDLE), slowdown=(1.0, 9.5)),
    Measurement(workloads=("a", "b", "c"), gpu_model="H200", slowdown=None),
    Measurement(workloads=("a", "b"), gpu_model="H200", slowdown=None, at_least=(None, 20.0)),
)
EVIDENCE = (
    EvidenceRecord("split", "H200", "580.1", "130100", "2026-11-22", {"share": 50, "of": [0.1]}),
    EvidenceRecord("result", "H200", None, None, "2026-11-23", {"note": "ü\n"}),
    EvidenceRecord("split", "H200", None, "130100", "2026-11-24", {}),
)
