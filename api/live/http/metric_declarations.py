"""What ``/metrics`` offers: the name, the type, the labels and the meaning of each metric.

Names follow Prometheus' conventions (base units, ``_total``, ``_info``). Labels are named as in the
metrics that people have already, if they mean the same:

- ``UUID``, ``gpu``, ``modelName``, ``Hostname``: DCGM exporter (NVIDIA/dcgm-exporter,
  ``internal/pkg/rendermetrics/render_metrics.go``);
- ``uuid``: jobstats' GPU exporter (plazonic/nvidia_gpu_prometheus_exporter, ``main.go``);
- ``jobid``, ``username``, ``uid``: its exporter of cgroups (plazonic/cgroup_exporter, README).
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

_DEVICE: Final = ("UUID", "gpu", "modelName", "Hostname")
_JOB: Final = ("jobid", "username")
_SEAT: Final = (*_JOB, "UUID", "gpu", "Hostname")


class Declaration(NamedTuple):
    """A metric.

    Attributes
    ----------
    kind : {"gauge", "counter", "histogram"}
        Its type.
    unit : str
        Unit of its values; empty for numbers and ratios.
    labels : tuple of str
        The names of its labels.
    meaning : str
        The meaning, in a sentence.
    """

    kind: Literal["gauge", "counter", "histogram"]
    unit: str
    labels: tuple[str, ...]
    meaning: str


DECLARED: Final[dict[str, Declaration]] = {
    "dovetail_info": Declaration(
        "gauge", "", ("version", "pool", "policy"), "1. Pools other than gpu run stand-ins."
    ),
    "dovetail_start_time_seconds": Declaration(
        "gauge", "s", (), "When the service started, since the epoch."
    ),
    "dovetail_in_trouble": Declaration(
        "gauge", "", (), "1 while the service reports trouble, which dovetail queue shows; else 0."
    ),
    "dovetail_journal_events_total": Declaration("counter", "", (), "Events in the journal."),
    "dovetail_jobs": Declaration("gauge", "", ("state",), "Jobs in each state."),
    "dovetail_jobs_waiting": Declaration(
        "gauge", "", ("reason",), "Waiting jobs by what they lack (table of reasons)."
    ),
    "dovetail_oldest_wait_seconds": Declaration(
        "gauge", "s", (), "The longest time for which a job has competed for devices; 0: none does."
    ),
    "dovetail_jobs_ended_total": Declaration(
        "counter", "", ("state",), "Jobs that finished, failed or were cancelled."
    ),
    "dovetail_restarts_total": Declaration(
        "counter", "", (), "Starts of jobs that had been started before."
    ),
    "dovetail_promises_broken_total": Declaration(
        "counter", "", (), "How often a running job was found over its gSLA beyond the noise."
    ),
    "dovetail_decision_seconds": Declaration(
        "histogram", "s", (), "Time of decisions; its count is the number of decisions."
    ),
    "dovetail_decision_gap": Declaration(
        "gauge", "", (), "Proven gap of the last decision, as a fraction; absent without a proof."
    ),
    "dovetail_device_info": Declaration(
        "gauge",
        "",
        (*_DEVICE, "uuid", "device_id"),
        "1. The UUID again as jobstats spells the label, and the device's id in Dovetail.",
    ),
    "dovetail_device_available": Declaration(
        "gauge", "", _DEVICE, "1 if the device takes new jobs, 0 if it is drained, sick or gone."
    ),
    "dovetail_device_jobs": Declaration("gauge", "", _DEVICE, "Jobs on the device."),
    "dovetail_device_memory_bytes": Declaration("gauge", "bytes", _DEVICE, "Memory."),
    "dovetail_device_memory_used_bytes": Declaration("gauge", "bytes", _DEVICE, "Memory in use."),
    "dovetail_device_power_watts": Declaration(
        "gauge", "W", _DEVICE, "Mean power over the last second; absent while nothing runs."
    ),
    "dovetail_device_energy_joules_total": Declaration(
        "counter", "J", _DEVICE, "Energy drawn since an arbitrary moment."
    ),
    "dovetail_device_active_ratio": Declaration(
        "gauge",
        "",
        (*_DEVICE, "metric", "source"),
        "Activity of the device, such as sm_active, as a mean over the last second.",
    ),
    "dovetail_device_traffic_bytes_per_second": Declaration(
        "gauge", "bytes/s", (*_DEVICE, "metric", "source"), "Traffic on PCIe, NVLink and network."
    ),
    "dovetail_job_info": Declaration(
        "gauge",
        "",
        (*_JOB, "uid", "jobname", "workload", "priority", "state"),
        "1 for each job that holds devices. Names are empty in a private service for those who may "
        "not see them.",
    ),
    "dovetail_job_submit_time_seconds": Declaration(
        "gauge", "s", _JOB, "When it was submitted, since the epoch."
    ),
    "dovetail_job_start_time_seconds": Declaration(
        "gauge", "s", _JOB, "When it first ran, since the epoch."
    ),
    "dovetail_job_restarts_total": Declaration("counter", "", _JOB, "Starts after the first."),
    "dovetail_job_iterations_total": Declaration(
        "counter", "", _JOB, "Iterations of its slowest worker in this run."
    ),
    "dovetail_job_iterations_per_second": Declaration("gauge", "1/s", _JOB, "Its rate now."),
    "dovetail_job_slowdown": Declaration("gauge", "", _JOB, "Measured: rate alone / rate now."),
    "dovetail_job_slowdown_predicted": Declaration(
        "gauge", "", _JOB, "The slowdown believed with its present co-runners."
    ),
    "dovetail_job_slowdown_bound": Declaration(
        "gauge", "", _JOB, "The upper bound of that; absent for estimates without one."
    ),
    "dovetail_job_gsla": Declaration(
        "gauge", "", _JOB, "The largest slowdown that its owner accepts: the promise."
    ),
    "dovetail_job_promise_margin": Declaration(
        "gauge", "", _JOB, "gSLA / measured slowdown: below 1, the promise is broken."
    ),
    "dovetail_job_promise": Declaration(
        "gauge",
        "",
        (*_JOB, "state"),
        "1 for the present state of its promise, 0 for the others; absent without a gSLA.",
    ),
    "dovetail_job_memory_used_bytes": Declaration(
        "gauge", "bytes", _JOB, "The most memory that a worker was seen to use in this run."
    ),
    "dovetail_job_memory_limit_bytes": Declaration(
        "gauge",
        "bytes",
        _JOB,
        "Memory limit of a worker, the smallest of this run: --memory-mib, or what "
        "--memory-percent is on its device. Absent without either.",
    ),
    "dovetail_job_energy_joules_total": Declaration(
        "counter", "J", _JOB, "Energy of its devices that it answers for, in this run."
    ),
    "dovetail_job_device_seconds_total": Declaration(
        "counter", "s", _JOB, "Time of its devices that it answers for, in this run."
    ),
    "dovetail_job_sm_share_ratio": Declaration(
        "gauge",
        "",
        _SEAT,
        "The part of the SMs that it may use on a device: 1 without a limit, 0 if it only gets "
        "what a co-runner leaves.",
    ),
    "dovetail_job_time_ratio": Declaration(
        "gauge",
        "",
        (*_SEAT, "source"),
        "The part of a device's time that it answers for; the parts of a device sum to 1.",
    ),
    "dovetail_job_power_watts": Declaration(
        "gauge",
        "W",
        (*_SEAT, "source"),
        "The part of a device's power that it answers for; the parts sum to the device's power.",
    ),
}
"""Every metric, by its name."""
