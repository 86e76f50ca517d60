"""The metrics of a simulation: `METRICS` has their names, units and meanings.

``docs/reference/metrics.md`` has formulas and published sources. A metric that is undefined, such
as the gSLA violation rate of jobs without gSLAs, is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.executor.simulation.history import History, Stay
from dovetail.formulations.arrays import Floats
from dovetail.instances._record import IDLE
from dovetail.instances.slowdowns.shares import share_total
from dovetail.instances.traces.trace import Texts, Trace
from dovetail.solver.types import OPTIMAL_GAP

Table = dict[str, NDArray[Any]]
"""Columns of equal length by name."""


SIZE_CLASSES: Final[Mapping[str, tuple[int, float]]] = MappingProxyType(
    {"1": (1, 1), "2_4": (2, 4), "5_8": (5, 8), "over_8": (9, np.inf)}
)
"""Size classes of jobs: the least and the most workers."""

_TOLERANCE = 1e-6
"""Relative tolerance: a slowdown that equals the gSLA up to rounding is no violation."""
_OUTCOME = attrgetter(
    *("first_start_s", "finish_s", "work_s", "solo_s", "held_s"),
    *("shared_s", "worst_slowdown", "breach_s", "idle_at_s", "left_s"),
)
_HOUR_S = 3600.0
_KWH_J = 3.6e6


class Metric(NamedTuple):
    """Name, unit and meaning of a metric.

    Attributes
    ----------
    label : str
        Its name in reports.
    unit : str
        ``s``, ``h``, ``%``, ...; empty for a ratio. A ``part`` is in 0..1, a ``number`` is a count.
    better : str
        ``lower`` or ``higher``; empty if neither is better.
    meaning : str
        Its meaning in one line.
    """

    label: str
    unit: str
    better: Literal["lower", "higher", ""]
    meaning: str


def _spread(name: str, label: str, unit: str, meaning: str, kinds: str) -> dict[str, Metric]:
    """Return metrics that are statistics of a figure of all jobs or rounds; lower is better.

    ``kinds`` are ``mean``, ``max``, ``p90``, ..., separated by spaces.
    """
    names = {"mean": "mean", "max": "largest", "p999": "p99.9"}
    suffix = "_s" if unit == "s" else ""
    return {
        f"{name}_{kind}{suffix}": Metric(
            f"{label}, {names.get(kind, kind)}", unit, "lower", meaning
        )
        for kind in kinds.split()
    }


METRICS: Final[Mapping[str, Metric]] = MappingProxyType(
    {
        "jobs": Metric("jobs", "number", "", "jobs of the trace, all of which ended"),
        **_spread("jct", "JCT", "s", "end less arrival", "mean p50 p90 p99"),
        **{
            f"jct_mean_{name}_s": Metric(
                f"JCT of jobs on {size}, mean", "s", "lower", "JCT of jobs of this size"
            )
            for name, size in zip(
                SIZE_CLASSES, ("1 GPU", "2-4 GPUs", "5-8 GPUs", "> 8 GPUs"), strict=True
            )
        },
        "makespan_s": Metric("makespan", "s", "lower", "last end less first arrival"),
        "throughput_jobs_h": Metric("throughput", "jobs/h", "higher", "jobs over makespan"),
        **_spread("queueing", "queueing delay", "s", "JCT less held time", "mean p90 max"),
        **_spread(
            "first_start", "first-start delay", "s", "first start less arrival", "mean p90 max"
        ),
        **_spread(
            "slowdown",
            "slowdown",
            "",
            "held time over solo time; restores and lost work count",
            "mean p90 p99 max",
        ),
        "violation_rate": Metric(
            "gSLA violation rate",
            "part",
            "lower",
            "fraction of the jobs with a gSLA that had a slowdown above it, or were "
            "latency-critical and taken off their GPUs",
        ),
        "violation_rate_shared": Metric(
            "gSLA violation rate of jobs that shared",
            "part",
            "lower",
            "the same for jobs with a gSLA that shared a GPU at any time",
        ),
        **_spread(
            "excess",
            "gSLA excess ratio",
            "%",
            "100 (slowdown - gSLA) / gSLA of jobs with a slowdown above their gSLA",
            "p50 p90 p999",
        ),
        "breach_part": Metric(
            "time in breach",
            "part",
            "lower",
            "fraction of the held time of jobs with a gSLA with a current slowdown above it",
        ),
        **_spread(
            "service_wait",
            "wait of services for their first start",
            "s",
            "first start less arrival, of latency-critical jobs",
            "mean max",
        ),
        **_spread(
            "service_off",
            "time of services off their GPUs",
            "s",
            "time without GPUs between first start and end, of latency-critical jobs",
            "mean max",
        ),
        "service_absent_part": Metric(
            "time of services off their GPUs",
            "part",
            "lower",
            "the same as a fraction of the time between first start and end, over all these jobs",
        ),
        "service_interruptions": Metric(
            "interruptions of services",
            "number",
            "lower",
            "times a policy or a failure took a latency-critical job off its GPUs",
        ),
        "best_effort_jct_mean_s": Metric(
            "JCT of best-effort jobs, mean",
            "s",
            "lower",
            "JCT of jobs that are not latency-critical, if any job is",
        ),
        "gpu_time_h": Metric(
            "GPU time", "h", "lower", "time with at least one job, summed over GPUs"
        ),
        "shared_part": Metric(
            "shared GPU time", "part", "", "fraction of the GPU time with two jobs or more"
        ),
        "utilisation": Metric("utilisation", "part", "higher", "GPU time over GPUs x makespan"),
        "effective_utilisation": Metric(
            "effective utilisation",
            "",
            "higher",
            "sum of workers x solo time over GPUs x makespan",
        ),
        "energy_kwh": Metric(
            "energy", "kWh", "lower", "power x time of GPUs in use, if all powers are known"
        ),
        "energy_per_job_kwh": Metric("energy a job", "kWh", "lower", "energy over jobs"),
        "throughput_per_kw": Metric(
            "throughput per kW", "1/kW", "higher", "sum of workers x solo time over energy"
        ),
        "sharing_benefit_mean": Metric(
            "sharing benefit, mean",
            "",
            "higher",
            "JCT if it had waited for idle GPUs over JCT, for jobs that started as co-runners",
        ),
        "sharing_loss_rate": Metric(
            "sharing that did not pay",
            "part",
            "lower",
            "fraction of the jobs that started as co-runners with a sharing benefit below 1",
        ),
        **_spread(
            "fairness",
            "finish-time fairness",
            "",
            "JCT over (solo time x mean contention) (Themis's rho)",
            "mean p90 max",
        ),
        "preemptions": Metric(
            "preemptions", "number", "lower", "times a policy took a job off its GPUs"
        ),
        "failures": Metric(
            "failures", "number", "", "times a node's failure took a job off its GPUs"
        ),
        "out_of_memory": Metric(
            "out-of-memory starts", "number", "lower", "starts that failed for lack of memory"
        ),
        "rounds": Metric("rounds", "number", "", "decisions of the policy"),
        **_spread("decide", "time a decision", "s", "real time of a decision", "mean p99 max"),
        "proven_rounds": Metric(
            "rounds with a proven gap", "number", "", "rounds with a proven gap"
        ),
        "optimal_rounds": Metric(
            "rounds proven optimal", "number", "", "rounds with a proven gap of at most 1e-6"
        ),
        "gap_max": Metric("proven gap, largest", "", "lower", "largest proven gap of a round"),
        "events": Metric("events", "number", "", "simulated arrivals, ends, failures and wake-ups"),
    }
)
"""Every metric of `summary`, in the order of its keys."""


def summary(history: History, trace: Trace) -> dict[str, float]:
    """Return the metrics of a finished simulation, by the names of `METRICS`.

    Parameters
    ----------
    history : History
        The history of a run in which every job ended.
    trace : Trace
        The jobs of that run.
    """
    jobs = job_table(history, trace)
    found: dict[str, float] = {"jobs": len(trace)}
    found |= _times(jobs)
    found |= _gslas(jobs)
    found |= _services(jobs)
    found |= _use(history, jobs)
    found |= _sharing(jobs)
    found |= _endings(history.stays)
    found |= _rounds(history)
    found["events"] = history.events
    return {name: float(found[name]) for name in METRICS}


def job_table(history: History, trace: Trace) -> Table:
    """Return a row for each job, in the order of the trace.

    Columns: ``job``, ``tenant``, ``workload``, ``priority`` (text), ``workers``, ``weight``,
    ``gsla`` (NaN: none), ``arrival_s``, ``first_start_s``, ``finish_s``, ``work_s`` (alone at speed
    1), ``solo_s``, ``held_s``, ``jct_s``, ``queueing_s``, ``first_start_delay_s``, ``off_s``
    (without GPUs after its first start), ``interruptions`` (times it was taken off its GPUs),
    ``slowdown``, ``worst_slowdown``, ``shared_s``, ``breach_s``, ``starts``,
    ``sharing_benefit`` (NaN: never started with a co-runner) and ``fairness``.
    """
    given = trace.columns
    arrival, workers = given.arrival_s, given.workers
    first, finish, work, solo, held, shared, worst, breach, idle_at, left = _columns(
        [_OUTCOME(outcome) for outcome in history.outcomes], 10
    )
    jct = finish - arrival
    waited = idle_at - arrival + left * solo / work
    contention = _contention(arrival, finish, workers, history.gpus)
    return {
        "job": _texts(given.id),
        "tenant": _texts(given.tenant),
        "workload": _texts(given.workload),
        "priority": _texts(given.priority),
        "workers": workers,
        "weight": given.weight,
        "gsla": given.gsla,
        "arrival_s": arrival,
        "first_start_s": first,
        "finish_s": finish,
        "work_s": work,
        "solo_s": solo,
        "held_s": held,
        "jct_s": jct,
        # Sums over many stays can be slightly too large because of rounding.
        "queueing_s": np.maximum(jct - held, 0.0),
        "first_start_delay_s": first - arrival,
        "off_s": np.maximum(finish - first - held, 0.0),
        "interruptions": np.bincount(_interrupted(history.stays), minlength=len(given)),
        "slowdown": held / solo,
        "worst_slowdown": worst,
        "shared_s": shared,
        "breach_s": breach,
        "starts": np.array([job.starts for job in history.jobs], dtype=np.int64),
        "sharing_benefit": np.where(np.isfinite(waited), waited / jct, np.nan),
        "fairness": jct / (solo * contention),
    }


def _texts(column: Texts) -> NDArray[np.str_]:
    return np.array([text or "" for text in column.tolist()], dtype=np.str_)


def series_table(history: History) -> Table:
    """Return a row for each round: the columns of `Series`."""
    return {name: np.array(column) for name, column in vars(history.series).items()}


def stay_table(history: History) -> Table:
    """Return a row for each worker of each stay, in the order in which the stays ended.

    Columns: ``stay`` and ``job`` (numbers; the job's is its row in `job_table`), ``gpu``,
    ``share`` (NaN: no cap), ``best_effort`` (whether it has the share ``idle``), ``mode``,
    ``start_s``, ``end_s``, ``delay_s``, ``done_s``, and ``ending`` (text).
    """
    stays = history.stays
    width = np.array([len(stay.gpus) for stay in stays], dtype=np.int64)
    shares = [share for stay in stays for share in stay.shares or (None,) * len(stay.gpus)]
    start, end, delay, done = _columns(
        [(stay.start_s, stay.end_s, stay.delay_s, stay.done_s) for stay in stays], 4
    )
    return {
        "stay": np.repeat(np.arange(len(stays)), width),
        "job": np.repeat(np.array([stay.job for stay in stays], dtype=np.int64), width),
        "gpu": np.array([gpu for stay in stays for gpu in stay.gpus], dtype=np.int64),
        "share": np.array([share_total([s]) or np.nan for s in shares], dtype=np.float64),
        "best_effort": np.array([share == IDLE for share in shares], dtype=np.bool_),
        "mode": np.repeat(np.array([stay.mode for stay in stays], dtype=np.int64), width),
        "start_s": np.repeat(start, width),
        "end_s": np.repeat(end, width),
        "delay_s": np.repeat(delay, width),
        "done_s": np.repeat(done, width),
        "ending": np.repeat(np.array([stay.ending for stay in stays], dtype=np.str_), width),
    }


def _columns(rows: list[tuple[float, ...]], width: int) -> list[Floats]:
    return list(np.array(rows, dtype=np.float64).reshape(-1, width).T)


def _times(jobs: Table) -> dict[str, float]:
    jct, workers = jobs["jct_s"], jobs["workers"]
    found = _statistics("jct", jct)
    for name, (least, most) in SIZE_CLASSES.items():
        found[f"jct_mean_{name}_s"] = _mean(jct[(workers >= least) & (workers <= most)])
    found["makespan_s"] = _span(jobs)
    found["throughput_jobs_h"] = jct.size / found["makespan_s"] * _HOUR_S
    found |= _statistics("queueing", jobs["queueing_s"])
    found |= _statistics("first_start", jobs["first_start_delay_s"])
    return found | _statistics("slowdown", jobs["slowdown"])


def _gslas(jobs: Table) -> dict[str, float]:
    slowdown, gsla, held = (jobs[name] for name in ("slowdown", "gsla", "held_s"))
    asked = np.isfinite(gsla)
    over = slowdown > gsla * (1 + _TOLERANCE)
    violates = over | (_critical(jobs) & (jobs["interruptions"] > 0))
    excess = 100 * (slowdown - gsla) / gsla
    shared = jobs["shared_s"] > 0
    held_asked = held[asked].sum()
    return {
        "violation_rate": _mean(violates[asked]),
        "violation_rate_shared": _mean(violates[asked & shared]),
        **_statistics("excess", excess[over]),
        "breach_part": jobs["breach_s"][asked].sum() / held_asked if held_asked else np.nan,
    }


def _services(jobs: Table) -> dict[str, float]:
    critical, off = _critical(jobs), jobs["off_s"]
    present = (jobs["finish_s"] - jobs["first_start_s"])[critical].sum()
    return {
        **_statistics("service_wait", jobs["first_start_delay_s"][critical]),
        **_statistics("service_off", off[critical]),
        "service_absent_part": off[critical].sum() / present if present else np.nan,
        "service_interruptions": jobs["interruptions"][critical].sum()
        if critical.any()
        else np.nan,
        "best_effort_jct_mean_s": _mean(jobs["jct_s"][~critical]) if critical.any() else np.nan,
    }


def _critical(jobs: Table) -> NDArray[np.bool_]:
    return np.asarray(jobs["priority"] == "latency")


def _interrupted(stays: Sequence[Stay]) -> NDArray[np.int64]:
    """Return the job of each stay that a policy or a failure ended."""
    return np.array([s.job for s in stays if s.ending in ("stopped", "failed")], dtype=np.int64)


def _use(history: History, jobs: Table) -> dict[str, float]:
    busy_s, shared_s = _occupied(history)
    capacity_s = history.gpus * _span(jobs)
    work_s = float((jobs["workers"] * jobs["solo_s"]).sum())
    kwh = history.energy_j / _KWH_J
    return {
        "gpu_time_h": busy_s / _HOUR_S,
        "shared_part": shared_s / busy_s if busy_s else np.nan,
        "utilisation": busy_s / capacity_s,
        "effective_utilisation": work_s / capacity_s,
        "energy_kwh": kwh,
        "energy_per_job_kwh": kwh / len(history.jobs) if history.jobs else np.nan,
        "throughput_per_kw": work_s / _HOUR_S / kwh if kwh else np.nan,
    }


def _occupied(history: History) -> tuple[float, float]:
    """Return the seconds with at least one job on a GPU, and with several, summed over GPUs."""
    stays = stay_table(history)
    gpu = np.tile(stays["gpu"], 2)
    time = np.concatenate([stays["start_s"], stays["end_s"]])
    step = np.repeat([1, -1], stays["gpu"].size)
    order = np.lexsort((time, gpu))
    # Every stay ends, so the count is 0 again between the last time of a GPU and the next GPU.
    present = np.cumsum(step[order])[:-1]
    passed = np.diff(time[order])
    return float(passed[present > 0].sum()), float(passed[present > 1].sum())


def _sharing(jobs: Table) -> dict[str, float]:
    benefit = jobs["sharing_benefit"]
    benefit = benefit[np.isfinite(benefit)]
    return {
        **_statistics("sharing_benefit", benefit),
        "sharing_loss_rate": _mean(benefit < 1 - _TOLERANCE),
        **_statistics("fairness", jobs["fairness"]),
    }


def _contention(arrival: Floats, finish: Floats, workers: NDArray[np.int64], gpus: int) -> Floats:
    """Return for each job the mean contention (GPUs asked for over GPUs) during its JCT.

    The demand changes only at arrivals and ends; its integral is linear between them.
    """
    if not arrival.size:
        return arrival
    time = np.concatenate([arrival, finish])
    order = np.argsort(time, kind="stable")
    asked = np.cumsum(np.concatenate([workers, -workers])[order])
    contention = np.maximum(1.0, asked / gpus)[:-1]
    time = time[order]
    total = np.concatenate([[0.0], np.cumsum(contention * np.diff(time))])
    passed = np.interp(finish, time, total) - np.interp(arrival, time, total)
    return np.asarray(passed / (finish - arrival), dtype=np.float64)


def _endings(stays: list[Stay]) -> dict[str, float]:
    endings = [stay.ending for stay in stays]
    return {
        "preemptions": endings.count("stopped"),
        "failures": endings.count("failed"),
        "out_of_memory": endings.count("out_of_memory"),
    }


def _rounds(history: History) -> dict[str, float]:
    decide_s, gap = np.array(history.series.decide_s), np.array(history.series.gap)
    proven = gap[~np.isnan(gap)]
    return {
        "rounds": decide_s.size,
        **_statistics("decide", decide_s),
        "proven_rounds": proven.size,
        "optimal_rounds": int((proven <= OPTIMAL_GAP).sum()),
        **_statistics("gap", proven),
    }


def _span(jobs: Table) -> float:
    finish, arrival = jobs["finish_s"], jobs["arrival_s"]
    return float(finish.max() - arrival.min()) if finish.size else np.nan


def _statistics(name: str, values: Floats) -> dict[str, float]:
    """Return the metrics that are statistics of this figure."""
    parts = {metric: metric.removesuffix("_s").rpartition("_") for metric in METRICS}
    return {
        metric: _statistic(values, kind)
        for metric, (figure, _, kind) in parts.items()
        if figure == name
    }


def _statistic(values: Floats, kind: str) -> float:
    """Return the mean, the largest or a percentile (linear between values); NaN if empty."""
    if not values.size:
        return np.nan
    if kind == "mean":
        return float(values.mean())
    if kind == "max":
        return float(values.max())
    return float(np.percentile(values, 99.9 if kind == "p999" else int(kind[1:])))


def _mean(values: NDArray[Any]) -> float:
    return float(np.mean(values)) if values.size else np.nan
