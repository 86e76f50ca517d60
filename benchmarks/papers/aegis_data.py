"""What AEGIS publishes, as times, traces, a world and pairs; ``aegis.py`` says how it is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

from dovetail.instances.datasets.records import Measurement
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Cluster, GpuModel, Instance, Node, Workload
from dovetail.instances.metrics import Metrics
from dovetail.instances.reading.tables import read_csv
from dovetail.instances.traces.trace import Trace, TraceJob

TRACES: Final = ("philly", "saturn", "venus")
OLDER: Final = "saturn_legacy"
LABELS: Final = {"exclusive": "exclusive", "horus": "horus_baseline", "lucid": "lucid_baseline"}
"""The policies that the authors ran and Dovetail has, with their labels in the files."""
GPUS, GPU_MODEL = 3, "A100"

_EXPERIMENTS: Final = "evaluation/experiments"
_RESULTS: Final = f"{_EXPERIMENTS}/results/final_representative_evaluation_analysis"
_OLDER: Final = f"{_EXPERIMENTS}/results/final_representative_evaluation_legacy_zeus_analysis"
_OLDER_TRACE: Final = f"{_EXPERIMENTS}/traces/legacy_rtx2080ti"
_LUCID: Final = "evaluation/lucid"
_TIMES: Final = ("makespan_s", "jct_mean_s", "successful_attempt_runtime_mean_s")
Times = Mapping[str, Sequence[float]]
"""``_TIMES`` by policy."""


def measured(folder: Path, trace: str) -> Times:
    """Return makespan, mean completion time and mean execution time in seconds, by policy."""
    file = folder / (_OLDER if trace == OLDER else _RESULTS) / "all_run_summaries.csv"
    found = {
        row.text("configuration_label"): [row.positive(name) for name in _TIMES]
        for row in read_csv(file, ["trace_name", "configuration_label", *_TIMES])
        if row.text("trace_name") == trace
    }
    lacking = [label for label in LABELS.values() if label not in found]
    if lacking:
        raise InputError(f"must have rows of {trace} for {', '.join(lacking)}", "", str(file))
    return {name: found[label] for name, label in LABELS.items()}


def trace_of(folder: Path, name: str, execution_s: float) -> Trace:
    """Return the jobs of a trace, with arrivals from Exclusive's completion times."""
    file = folder / _RESULTS / "traces" / name / "normalized_jct_values.csv"
    jobs = [
        (_workload(row.text("task_file")), row.positive("solo_runtime_s"), row.positive("jct_s"))
        for row in read_csv(file, ["run_label", "task_file", "jct_s", "solo_runtime_s"])
        if row.text("run_label") == "exclusive"
    ]
    if not jobs:
        raise InputError("must have rows whose run_label is exclusive", "", str(file))
    stretch = execution_s / fmean(solo_s for _, solo_s, _ in jobs)
    free, arrival_s, made = [0.0] * GPUS, 0.0, []
    for k, (workload, solo_s, jct_s) in enumerate(jobs):
        workers = 2 if workload.endswith("_2gpu") else 1
        free.sort()
        run_s, start_s = stretch * solo_s, free[workers - 1]
        arrival_s = max(arrival_s, start_s + run_s - jct_s)
        free[:workers] = [max(start_s, arrival_s) + run_s] * workers
        made.append(TraceJob(f"{name}-{k}", arrival_s, workers, solo_s, workload))
    return Trace.of(name, made)


def profiled(folder: Path) -> tuple[Instance, list[int]]:
    """Return the machine with the profiled workloads, and Lucid's scores of these."""
    file = folder / _LUCID / "results/lucid_predictions_all_specs_with_tiny_safeguard.csv"
    columns = ["peak_memory_mib", "horus_gpu_util_mean", "avg_smact", "avg_drama"]
    workloads, scores = {}, []
    for row in read_csv(file, ["spec_name", *columns, "lucid_final_ss"]):
        name = _workload(row.text("spec_name"))
        metrics = Metrics(
            sm_active=row.number("avg_smact"),
            dram_active=row.number("avg_drama"),
            pcie_rx_bytes_s=0.0,
            gpu_util=row.fraction("horus_gpu_util_mean"),
        )
        memory_mib, family = row.number("peak_memory_mib"), name.partition("_bs")[0]
        workloads[name] = Workload(memory_mib=memory_mib, family=family, metrics=metrics)
        scores.append(row.count("lucid_final_ss", 0))
    return _machine(GPU_MODEL, GPUS, 40960.0, workloads), scores


def older(folder: Path) -> tuple[Trace, Instance, list[int]]:
    """Return the older machine's trace, its workloads without DCGM's metrics, and the scores."""
    names = ["workload_id", "solo_runtime_s", "profile_peak_memory_mib", "lucid_ss"]
    file = folder / _OLDER_TRACE / "mapper_inputs/legacy_11gb_workload_catalog.csv"
    catalog = {_workload(row.text("workload_id")): row for row in read_csv(file, names)}
    file = folder / _LUCID / "legacy_rtx2080ti/results/lucid_feature_table_all36.csv"
    used = {
        _workload(row.text("spec_name")): row.fraction("horus_gpu_util_mean")
        for row in read_csv(file, ["spec_name", "horus_gpu_util_mean"])
    }
    workloads = {
        name: Workload(
            memory_mib=row.number("profile_peak_memory_mib"),
            metrics=Metrics(gpu_util=used.get(name), pcie_rx_bytes_s=0.0),
        )
        for name, row in catalog.items()
    }
    jobs = f"mapper_outputs/{OLDER}_rtx2080ti_seed42_60jobs.execution.csv"
    made = []
    for k, row in enumerate(read_csv(folder / _OLDER_TRACE / jobs, ["submit_time_s", "task_path"])):
        name = _workload(row.text("task_path"))
        if name not in catalog:
            raise row.broken("task_path", f"must be in the catalogue, got {name}")
        solo_s = catalog[name].positive("solo_runtime_s")
        made.append(TraceJob(f"{OLDER}-{k}", row.number("submit_time_s"), 1, solo_s, name))
    scores = [row.count("lucid_ss", 0) for row in catalog.values()]
    return Trace.of(OLDER, made), _machine("RTX 2080 Ti", 8, 11264.0, workloads), scores


def measured_pairs(folder: Path, world: Instance) -> Iterator[Measurement]:
    """Yield the measured pairs, for workloads that differ in the number of epochs alone too."""
    alike: dict[str, list[str]] = {}
    for name in world.workloads:
        alike.setdefault(_without_epochs(name), []).append(name)
    times = ["solo_time_a_s", "solo_time_b_s", "pair_time_a_s", "pair_time_b_s"]
    file = folder / _LUCID / "results/pairwise_results.csv"
    for row in read_csv(file, ["spec_a_key", "spec_b_key", *times]):
        solo_a, solo_b, pair_a, pair_b = (row.positive(name) for name in times)
        shared = min(pair_a, pair_b)
        work = solo_a - (pair_a - shared), solo_b - (pair_b - shared)
        if shared < max(pair_a, pair_b) / 2 or min(work) <= 0:
            continue
        slowdown = shared / work[0], shared / work[1]
        one, other = (_without_epochs(_workload(row.text(f"spec_{k}_key"))) for k in "ab")
        for a in alike.get(one, ()):
            for b in alike.get(other, ()):
                yield row.record(
                    Measurement, workloads=(a, b), gpu_model=GPU_MODEL, slowdown=slowdown
                )


def _machine(
    model: str, gpus: int, memory_mib: float, workloads: Mapping[str, Workload]
) -> Instance:
    node = Node(id="n0", gpu_count=gpus, gpu=GpuModel(model=model, memory_mib=memory_mib))
    return Instance(name="aegis", cluster=Cluster(nodes=(node,)), workloads=workloads, jobs=())


def _workload(path: str) -> str:
    return Path(path).name.removesuffix(".yaml").removesuffix("_1gpu")


def _without_epochs(workload: str) -> str:
    head, _, last = workload.rpartition("_")
    return _workload(head) if last[:-1].isdigit() and last.endswith("e") else workload
