"""Write the reference from the code.

    python docs/generate.py            write the generated pages and tables of docs/reference
    python docs/generate.py --check    name the pages that are out of date (exit status 1)

Types, limits and defaults come from the records, the options of commands from their declarations,
those of policies from their classes, metrics from their descriptions, the HTTP API from its OpenAPI
description. The meaning of each field of a record is below, in one line; the generator fails on a
field without a meaning, a meaning without a field, and an option of a policy that its docstring
does not describe.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import re
import sys
from collections.abc import Mapping, Sequence, Set
from inspect import getdoc
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from dovetail.cli.parser import COMMANDS
from dovetail.executor.jobs.specs import JobSpec
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live import views
from dovetail.executor.measuring import workloads
from dovetail.executor.simulation.metrics import METRICS
from dovetail.instances import instance as instances
from dovetail.instances import plan as plans
from dovetail.instances._record import Record
from dovetail.instances.datasets import _rows, records
from dovetail.live import faults, requests
from dovetail.solver.policies import POLICIES
from dovetail.solver.policies.registry import policy_class
from dovetail.toolkit.commands import Argument, Command, leaves

REFERENCE = Path(__file__).parent / "reference"

FIELDS: Mapping[type, Mapping[str, str]] = {
    instances.Instance: {
        "format": "Says what the file is.",
        "name": "Any name; plans repeat it.",
        "cluster": "The GPUs and the rules for sharing them.",
        "workloads": "What jobs run, by name.",
        "jobs": "The jobs, in the order of the queue.",
        "slowdowns": "What is known of workloads that share a GPU. No entry: may not share.",
    },
    instances.Cluster: {
        "max_jobs_per_gpu": "At most so many jobs on one GPU.",
        "shares": "The caps that a starting job may be given, in per cent of a GPU's SMs. "
        "`idle`: it may run in the idle time of its co-runners. Empty: jobs share unpartitioned.",
        "share_sum": "The caps on one GPU sum to at most this; jobs without a cap do not count.",
        "start_capped": "Whether a job that starts alone on a GPU may take a cap, so that "
        "another can join later.",
        "gang_sharing": "`partial`: a gang may share some of its GPUs, each with another "
        "co-runner. `whole`: two jobs share only if they have equally many workers and share all "
        "their GPUs.",
        "reserve_mib": "Memory kept free on every GPU (the driver's), MiB.",
        "per_process_mib": "Memory that each resident process takes besides its job's (CUDA "
        "context), MiB.",
        "nodes": "The machines.",
    },
    instances.Node: {
        "id": "Name of the node.",
        "rack": "Rack that it is in. Nodes without one count as one rack together.",
        "host": "What it has in addition to its GPUs. What is not given is never short.",
        "gpus": "Its GPUs, listed.",
        "gpu_count": "Or: so many equal GPUs, named `<id>-0`, `<id>-1` and so on,",
        "gpu": "each like this.",
    },
    instances.HostResources: {
        "cpu_cores": "Processor cores.",
        "memory_bytes_s": "Bandwidth of the host's memory, bytes a second.",
        "disk_bytes_s": "Bytes read from disk or network storage a second.",
        "pcie_bytes_s": "Bytes over PCIe a second, one way, of all GPUs together.",
        "net_bytes_s": "Bytes over the network a second, one way.",
    },
    instances.GpuModel: {
        "model": "Name of the GPU model. GPUs of one model are equally fast.",
        "memory_mib": "Memory of the GPU, MiB (`nvidia-smi`'s total).",
        "sms": "Number of SMs. For people; no rule uses it yet.",
    },
    instances.Gpu: {"id": "Name of the GPU, unique in the cluster."},
    instances.Workload: {
        "memory_mib": "Memory of one worker, MiB.",
        "host": "What one worker needs of its node at full speed. What is not given is 0, but "
        "PCIe and network: the larger of both directions in `metrics`.",
        "family": "Name that variants of one workload share (batch sizes, precisions); a predictor "
        "that knows the family predicts better.",
        "metrics": "Profile of the workload alone on a GPU; what a predictor reads.",
        "metrics_by_share": "The same under a cap, by share; trained predictors read it.",
        "metrics_variance": "Variance over time of metrics, in their unit squared.",
        "memory_mean_mib": "Mean over time of a worker's memory, MiB; `memory_mib` is the most.",
        "duration_s": "Time that a whole run takes alone, s.",
        "throughput": "Iterations per second alone, by share; 100 is the whole GPU.",
        "power_w": "Power of a GPU on which it runs alone, W; objective `energy` needs it.",
        "speed": "Speed on a GPU model relative to the others; 1 where not given.",
        "isolation": "`blocks`: its kernels can be preempted between thread blocks, so that it may "
        "have the share `idle`.",
        "batch": "Memory and iteration time by batch size. Its presence allows gradient "
        "accumulation.",
        "batch_size": "Samples of a batch, where `batch` is not given; a predictor that knows the "
        "family predicts better with it.",
        "stages_s": "How long one iteration holds each resource in turn, s: storage and CPU, the "
        "GPU, the network (Muri's stages). The same resources in every workload.",
    },
    instances.Metrics: {
        "sm_active": "DCGM's SM activity.",
        "sm_occupancy": "DCGM's SM occupancy.",
        "dram_active": "DCGM's memory activity.",
        "tensor_active": "DCGM's tensor pipe activity.",
        "fp64_active": "DCGM's FP64 pipe activity.",
        "fp32_active": "DCGM's FP32 pipe activity.",
        "fp16_active": "DCGM's FP16 pipe activity.",
        "pcie_rx_bytes_s": "Bytes received over PCIe a second.",
        "pcie_tx_bytes_s": "Bytes sent over PCIe a second.",
        "gpu_util": "`nvidia-smi`'s GPU utilisation, as a fraction.",
        "mem_util": "`nvidia-smi`'s memory utilisation, as a fraction.",
        "graphics_active": "DCGM's graphics engine activity.",
        "warp_efficiency": "Active threads of a warp, as a fraction of all (nvprof).",
        "ipc": "Instructions a cycle (nvprof).",
        "gld_bytes_s": "Bytes loaded from global memory a second (nvprof).",
        "gst_bytes_s": "Bytes stored to global memory a second (nvprof).",
        "nvlink_rx_bytes_s": "Bytes received over NVLink a second.",
        "nvlink_tx_bytes_s": "Bytes sent over NVLink a second.",
        "net_rx_bytes_s": "Bytes received from other nodes a second.",
        "net_tx_bytes_s": "Bytes sent to other nodes a second.",
        "cpu_util": "Processor use, as a fraction of all cores of the node.",
    },
    instances.Batch: {
        "size": "Samples of a worker's full batch.",
        "min": "The smallest sub-batch.",
        "fixed_mib": "Memory that does not depend on the batch, MiB.",
        "mib_per_sample": "Memory that each sample takes, MiB.",
        "step_s": "Time to compute a batch.",
        "comm_s": "Time to exchange gradients, s.",
        "overlap": "Castor's delta: 1 = none of that hides behind computing; the larger, the more.",
    },
    instances.StepTime: {
        "fixed": "Seconds that do not depend on the batch.",
        "per_sample": "Seconds for each sample.",
    },
    instances.Job: {
        "id": "Name of the job, unique.",
        "workload": "What it runs: a key of `workloads`.",
        "workers": "Processes of the gang, one GPU each, started together or not at all.",
        "gsla": "The largest job slowdown that the owner accepts. Absent: any.",
        "weight": "How much the job counts. A gang counts once, however many workers it has.",
        "arrival_s": "When it came: the queue's order for `greedy`, `exclusive` and `random`. "
        "Nothing else uses it.",
        "remaining_s": "Time it would still run alone, s; objectives `jct` and `completion` need "
        "it.",
        "priority": "`latency`: checked against `p99` where an entry has it.",
        "state": "Whether it waits or holds GPUs already.",
        "gpus": "Of a running job: the GPU of each worker.",
        "share": "Of a running job: the cap on each of these GPUs, null for none.",
        "sub_batch": "Of a running job: its sub-batch; absent: full size.",
    },
    instances.SlowdownEntry: {
        "pair": "The two workloads. Covers both orders, everything mirrored.",
        "set": "Or three and more, where `max_jobs_per_gpu` allows them.",
        "share": "The cap of each; null for none. Absent: no caps.",
        "slowdown": "Iteration time together / alone, of each. null: they may not share.",
        "upper": "Upper confidence bounds. gSLAs are checked against these where given.",
        "p99": "Growth of the tail latency; what the gSLA of a latency job is checked against.",
        "power_w": "Power of the GPU with all of them on it, W; objective `energy` needs it.",
        "gpu_model": "The GPU model that this was measured on. Absent: holds on every model that "
        "has no entry of its own.",
    },
    plans.Plan: {
        "format": "Says what the file is.",
        "instance": "Name of the instance.",
        "objective": "What was optimised, its value and what is proven.",
        "status": "What we have. `optimal`: gap at most 1e-6. `feasible`: a valid plan without "
        "that proof. `unknown`: an answer failed its check, so nothing starts.",
        "stopped": "Why the search ended.",
        "runtime_s": "Seconds from the call to the checked plan.",
        "solver": "Which solver answered.",
        "seed": "Seed of the search.",
        "preempt": "Whether running jobs were made pending first.",
        "nodes_spanned": "The node spans: each placed job counts once for every node it is on. Two "
        "jobs on one GPU make 2.",
        "tie_break": "`proven`: no plan of this value is on fewer nodes, then racks, then GPUs.",
        "verification": "What `dovetail plan --verify` found true again.",
        "notes": "What else the user should know.",
        "assignments": "Every placed job, the running ones too.",
        "waiting": "Every job that is not placed, and why.",
    },
    plans.ObjectiveValue: {
        "name": "Which objective; `python:MODULE.CLASS` is one of a user's own, whose value the "
        "checker does not compute.",
        "value": "Its value, as the checker recomputes it.",
        "bound": "No valid plan has a better value than this. null: nothing proven.",
        "gap": "\\|bound - value\\| / max(\\|bound\\|, \\|value\\|).",
        "placed_weight": "Weight of the placed jobs (first stage of the two-stage objectives).",
        "placed_weight_bound": (
            "No valid plan places more weight than this; above `placed_weight` where solvers had "
            "to round the weights, or were stopped."
        ),
    },
    plans.Verification: {
        "certificate": "`checked`: the bound was proven again by the solver's certificate, the "
        "duals of a matching. `none`: the solver leaves none.",
        "pairs": "The pairs of jobs that the certificate was held against: all of them.",
    },
    plans.Assignment: {
        "job": "Which job.",
        "gpus": "The GPU of each worker.",
        "share": "The cap on each, null for none.",
        "slowdown": "The job slowdown: that of its slowest worker.",
        "sub_batch": "Samples per accumulation step; absent: full size.",
        "co_runners": "The other jobs on each of the GPUs.",
        "start": "Whether it starts now. False for a running job, with `preempt` for one that "
        "keeps its GPUs, shares and sub-batch; one that moves starts.",
    },
    plans.Waiting: {
        "job": "Which job.",
        "reason": "Why it waits, in one line.",
        "nearest": "The co-runner that came closest to letting it start.",
    },
    plans.Nearest: {
        "co_runner": "Which job.",
        "share": "At which share of the waiting job.",
        "slowdown": "How slow the waiting job would be.",
        "gpu": "On which GPU.",
    },
    records.SoloProfile: {
        "workload": "Name of the workload.",
        "gpu_model": "Name of the GPU model. A MIG slice is a model of its own "
        "(`A100-40GB MIG 2g.10gb`).",
        "share": "MPS share in per cent of the SMs; empty: none.",
        "family": "Groups variants of one workload (batch sizes, precisions), which tests hold "
        "out together; empty: the workload itself.",
        "workers": "Processes of the gang, one GPU each.",
        "batch_size": "Samples per iteration and worker.",
        "throughput": "Iterations per second alone, unless the source says otherwise.",
        "power_w": "Mean power of the GPU, W.",
        "memory_mib": "Memory of one worker, MiB: the high-water mark.",
        "memory_mean_mib": "Mean of that over time, MiB.",
        "duration_s": "Time of a whole run alone, s.",
        "latency_p99_s": "99th percentile of the latency, s.",
        "driver": "Version of the driver.",
        "library": "Version of cuBLAS.",
        "source": "Origin of the row.",
        "date": "ISO 8601: `2026-11-21`, `2026-11-21T10:00:00+00:00`.",
    },
    records.Measurement: {
        "workloads": "Names of the workloads.",
        "gpu_model": "Name of the GPU model.",
        "share": "MPS share of each; empty: none.",
        "slowdown": "Iteration time together / alone on that GPU without a share.",
        "p99": "Growth of the 99th percentile of latency: together / alone.",
        "power_w": "Mean power of the GPU, W.",
        "driver": "Version of the driver.",
        "library": "Version of cuBLAS.",
        "source": "Origin of the row.",
        "date": "As in profiles.",
    },
    views.JobView: {
        "id": "`j1`, `j2` and so on, in the order of submission.",
        "name": "What people call it.",
        "owner": "Its user.",
        "uid": "The user's number.",
        "command": "Program and arguments.",
        "cwd": "Its working folder.",
        "workload": "Jobs of one user and one workload are alike to predictors.",
        "workers": "Processes, one device each.",
        "priority": "`batch` or `latency`.",
        "nice": "Its place among its owner's jobs: those of a lower one start first.",
        "gsla": "The largest slowdown that its owner accepts.",
        "state": "State of the job.",
        "why": "Why it came there.",
        "waiting_for": "What a waiting job waits for, as far as that is known.",
        "submitted_s": "When it was submitted.",
        "since_s": "When it came to its state.",
        "started_s": "When it first ran.",
        "ended_s": "When it was over.",
        "runs": "How often it was started.",
        "run": "Id of its present or last run.",
        "gpus": "The device of each rank of that run.",
        "shares": "The cap of each there, per cent; null for none.",
        "co_runners": "The other jobs on each of these devices.",
        "pids": "The process of each rank.",
        "statuses": "The exit status of each rank; negative for a signal, null while it runs or "
        "where it is not known.",
        "iterations": "Done by the slowest rank in this run.",
        "total": "Iterations in all, where the job says so.",
        "rate": "Iterations a second now.",
        "solo_rate": "Iterations a second alone.",
        "slowdown": "Measured: its rate alone over its rate now.",
        "predicted": "The slowdown that was believed when it was placed.",
        "upper": "The upper bound of that.",
        "memory_mib": "Memory limit of a rank, MiB.",
        "walltime_s": "The longest that a run may take, s; null for no limit.",
        "retries": "How often it is started again after it failed.",
        "grace_s": "From being asked to end to being killed, s.",
        "public_log": "Whether other users may read its output.",
        "output": "The file that gets its output, too, with `%j` and the like as submitted.",
        "error": "The one for its standard error, where that is apart.",
        "log": "The file with the output of the first rank of its last run, where the service's "
        "machine has it; empty in lists of jobs.",
        "held": "Who holds it; empty where it is not held.",
        "awaits": "The jobs that have to be over before it may start.",
        "index": "Which one of an array it is.",
        "history": "How it came to its state; empty in lists of jobs.",
    },
    views.StepView: {
        "at_s": "When.",
        "state": "What state it came to.",
        "why": "Why.",
    },
    views.ServiceView: {
        "pool": "`gpu`, `cpu` or `simulated`.",
        "notice": "What figures of this pool are worth; empty for GPUs under MPS.",
        "policy": "Which policy decides.",
        "version": "Dovetail's.",
        "pid": "The service's process.",
        "directory": "Where it keeps its state.",
        "started_s": "When it started.",
        "now_s": "Its clock now.",
        "sequence": "Number of the last event in the journal.",
        "jobs": "How many jobs are in each state.",
        "decide_s": "How long its last decision took, s.",
        "gap": "The proven gap of that decision.",
        "dry_run": "Whether it starts nothing.",
        "trouble": "What is wrong with it; empty where nothing is.",
        "devices": "Its devices.",
    },
    views.DeviceView: {
        "id": "Name of the device.",
        "node": "The node that has it.",
        "rack": "Rack of the node, if known.",
        "model": "Its model.",
        "memory_mib": "Its memory, MiB.",
        "jobs": "The jobs that hold it.",
        "used_mib": "Memory in use, MiB.",
        "power_w": "Power drawn, W.",
        "energy_j": "Energy drawn, J, from an origin of its own.",
        "metrics": "Means over the last interval, named as in a workload's profile.",
        "source": "Where the metrics come from.",
        "trouble": "Why it takes no new jobs; empty where it does.",
    },
    requests.Submissions: {"jobs": "The jobs, at most 10,000, accepted all or none."},
    requests.Accepted: {"ids": "Their ids, in the order of the request."},
    requests.DrainRequest: {
        "gpus": "Which devices; none: all.",
        "on": "true: they take no new jobs; false: they do again.",
    },
    requests.Explained: {"job": "Which job.", "text": "Why it waits, what would let it start."},
    faults.Fault: {"kind": "For programs; the table above lists them.", "error": "One line."},
}
"""What each field means. A record that extends another shows the other's fields as well."""

RULES: Mapping[type[Record], tuple[str, ...]] = {
    instances.Instance: (
        "Job ids differ. A job's workload, and every workload of an entry, is in `workloads`.",
        "A running job is on GPUs of the cluster, all of one model; no GPU holds more running "
        "jobs than `max_jobs_per_gpu`.",
        "The same combination (workloads with their shares, on the same `gpu_model`) is listed "
        "once in `slowdowns`, mirrored or not.",
    ),
    instances.Cluster: (
        "Node ids differ, GPU ids differ (those that the shorthand makes, too), and a share is "
        "listed once. At most 100,000 GPUs.",
    ),
    instances.Node: (
        "Either `gpus`, or `gpu_count` with `gpu`.",
        "A resource of `host` is more than 0.",
    ),
    instances.Batch: (
        "`min` is at most `size`, and an iteration takes some time.",
        "The sub-batches are `size` / 2^k, whole numbers not below `min`.",
    ),
    instances.Job: (
        "Only a running job has `gpus`, `share` and `sub_batch`; it must have `gpus`.",
        "`gpus` and `share` have one item for each worker, and the GPUs differ.",
        "`sub_batch` is one that the workload's `batch` allows.",
    ),
    instances.SlowdownEntry: (
        "Either `pair` or `set`. `share`, `slowdown`, `upper` and `p99` have one item for each "
        "workload.",
        "`upper` is nowhere below `slowdown`. With `slowdown: null` there is no `upper`, `p99` "
        "or `power_w`.",
        "A workload with itself at one share has the same numbers twice.",
    ),
    plans.Assignment: ("`share` and `co_runners` have one item for each GPU.",),
}
"""What must fit together; a file that breaks one of these is refused on reading."""

FORMATS = """\
# Formats, field by field

Written by `docs/generate.py` from the records in `instances/`; do not edit by hand.

Two files pass through Dovetail: an *instance* (one round's problem) and a *plan* (an answer).
Both are JSON, or the same as YAML. `.gz` is read and written. `-` is standard input or output.
YAML is read by the core schema of version 1.2, so `yes` is a text and `1.1e9` a number. A field
that is not listed here is refused, with its path and the nearest name. So is a value outside its
limits. Fields at their default may be left out. A file may have at most 512 MiB unpacked.

The same in machine form: JSON Schemas of the [instance]({schemas}/dovetail-instance-1.schema.json)
and of the [plan]({schemas}/dovetail-plan-1.schema.json). The numbers mean for a plan what
[constraints and objectives](constraints-and-objectives.md) says; a first file is written step by
step in the [tutorial](../tutorials/plan.md).

Sizes are in MiB, times in seconds, powers in watts. *Number* is a finite number; NaN and infinity
are refused. A slowdown below 0.001 is refused as a mistake of units: measured ones are hardly below
0.5. Names have 1 to 200 characters on one line and are not all blank; control characters,
characters without width and those that turn the direction of writing are refused.
"""

CLI = """\
# Commands

Written by `docs/generate.py` from the declarations of commands; do not edit by hand.

| exit status | meaning |
|--:|---|
| 0 | done |
| 1 | checked and found wrong, no valid plan, or a job that did not finish; also an internal error |
| 2 | bad input or usage: one line on standard error |
| 3 | `doctor`: jobs can share GPUs, but without SM shares; `measure`: time was up, more is left |
| 130 | interrupted (Ctrl-C) |

Every command takes `--json` for the machine's form and `-h` for help. Where a file is read, `-` is
standard input; where one is written, `-` is standard output. Files ending in `.gz` are packed and
unpacked on the way, and a file appears whole or not at all. `DOVETAIL_DEBUG=1` shows where an
internal error came from.

How to use them: [plan from a file](../howto/plan-from-a-file.md),
[importing data](../howto/import-data.md), [data sets](datasets.md),
[solvers](../explanation/solvers.md), [live mode](../howto/serve.md).
"""

API = """\
# HTTP API, request by request

Written by `docs/generate.py` from the service's OpenAPI description; do not edit by hand.

A live service answers on its socket and, with `serve --listen HOST:PORT --tokens FILE`, over TCP:

```sh
curl --unix-socket DIRECTORY/api.sock http://dovetail/v1/jobs
curl -H "Authorization: Bearer $TOKEN" http://HOST:PORT/v1/jobs
```

`dovetail serve` prints the path of the socket.
[Live mode](../explanation/live.md#who-may-do-what) says who may do what. Bodies are JSON.
`GET /openapi.json` describes the same for programs, `GET /metrics` has figures for Prometheus.
Times of day are seconds since the epoch.

An error is a [Fault](#fault):

| status | kind | meaning |
|--:|---|---|
"""

MOST_REPEATED = 3
"""Commands that have more arguments in common refer to the first of them."""

REQUESTS: tuple[type[Record], ...] = (
    requests.Submissions,
    requests.Accepted,
    requests.DrainRequest,
    requests.Explained,
    faults.Fault,
)
VIEWS: tuple[type[Record], ...] = (
    views.JobView,
    views.StepView,
    views.ServiceView,
    views.DeviceView,
)


POLICY_PAGE = """\
# Policies, option by option

Written by `docs/generate.py` from the classes in `solver/policies/`; do not edit by hand.

A policy is named `NAME` or `NAME:OPTION=VALUE,OPTION=VALUE` in `--policy`, `--policies` and
`policy_named`. Infinite is written `inf`. [Policies](../explanation/policies.md) compares them.
"""


def main() -> int:
    """Write or check the files; 1 if one is out of date."""
    options = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    options.add_argument("--check", action="store_true", help="write nothing")
    check = options.parse_args().check
    stale = 0
    for name, text in pages().items():
        path = REFERENCE / name
        if check:
            current = path.exists() and path.read_text(encoding="utf-8") == text
            if not current:
                print(f"{path} is out of date: run python docs/generate.py")
                stale = 1
        else:
            path.write_text(text, encoding="utf-8")
    return stale


def pages() -> dict[str, str]:
    """Return the text of every generated file by its name."""
    return {
        "formats.md": formats_page(),
        "cli.md": cli_page(),
        "policies.md": policies_page(),
        "api.md": api_page(),
        **{page: _filled(page) for page in ("datasets.md", "metrics.md", "workloads.md")},
    }


_PLACE = re.compile(r"(<!-- generated: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _filled(page: str) -> str:
    """Return a hand-written page with the tables that are generated into it."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    return _PLACE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", text)


def profile_columns() -> str:
    """Return the table of the columns of profiles."""
    kind = records.SoloProfile
    meanings = _meanings(kind, nested={"metrics", "metrics_variance"})
    rows = []
    for column in _rows.PROFILE_COLUMNS:
        field, _, name = column.path.partition(".")
        if field == "metrics":
            rows.append(_row(instances.Metrics, name, FIELDS[instances.Metrics][name]))
        elif not name:
            rows.append(_row(kind, field, meanings[field]))
    rows.append("| `METRIC_variance` | number >= 0 | absent | Variance of a metric over time. |")
    return "\n".join(["| column | type | default | meaning |", "|---|---|---|---|", *rows])


def pair_columns() -> str:
    """Return the table of the columns of pairs."""
    kind = records.Measurement
    properties = TypeAdapter(kind).json_schema()["properties"]
    status = "`ok` or empty; any other (`failed`): they did not run together."
    rows = []
    for field, meaning in _meanings(kind).items():
        names = [one.name for one in _rows.pair_columns(2) if one.path.partition("[")[0] == field]
        needed = "required" if names[0] in _rows.PAIR_REQUIRED else "absent"
        listed = ", ".join(f"`{name}`" for name in names) + ", ..." * (len(names) > 1)
        typed = _type(properties[field]).removeprefix("list of ").removesuffix(", 2 or more")
        typed = typed.removesuffix(" or null")
        rows.append(f"| {listed} | {typed} | {needed} | {meaning} |")
    rows.append(f"| `status` | text | ok | {status} |")
    return "\n".join(["| column | type | default | meaning |", "|---|---|---|---|", *rows])


def metrics_table() -> str:
    """Return the table of the metrics; those that differ in their statistic only share a row."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, metric in METRICS.items():
        alike.setdefault(metric[1:], []).append(f"`{name}`")
    rows = [
        f"| {', '.join(names)} | {unit} | {better} | {meaning} |"
        for (unit, better, meaning), names in alike.items()
    ]
    return "\n".join(["| name | unit | better | meaning |", "|---|---|---|---|", *rows])


def workloads_table() -> str:
    """Return the table of the built-in workloads, from their docstrings: PyTorch may be missing."""
    rows = []
    for name, module in sorted(workloads.MODULES.items()):
        source = workloads.WORKER.with_name(f"{module}.py").read_text(encoding="utf-8")
        texts = [
            ast.get_docstring(each) or ""
            for each in ast.parse(source).body
            if isinstance(each, ast.FunctionDef) and each.name == name
        ]
        does, bounded, size = (" ".join(part.split()) for part in texts[0].split("\n\n"))
        rows.append(f"| `{name}` | {does} {bounded} | {size.removeprefix('Full size: ')} |")
    head = ["| name | does | full size, memory |", "|---|---|---|"]
    return "\n".join([*head, *rows])


TABLES = {
    "profiles": profile_columns,
    "pairs": pair_columns,
    "metrics": metrics_table,
    "workloads": workloads_table,
}


def formats_page() -> str:
    """Return the reference of both formats."""
    parts = [FORMATS.format(schemas="../../instances/schemas")]
    for title, module in (("Instance", instances), ("Plan", plans)):
        stamp = getattr(module, f"{title.upper()}_FORMAT")
        parts.append(f'## {title}: `"format": "{stamp}"`\n')
        parts += [_record(kind) for kind in FIELDS if kind.__module__ == module.__name__]
    return "\n".join(parts)


def _record(kind: type) -> str:
    meanings = _meanings(kind)
    rows = [_row(kind, name, meaning) for name, meaning in meanings.items()]
    rules = [f"- {rule}" for rule in RULES.get(kind, ())]
    table = ["| field | type | default | meaning |", "|---|---|---|---|", *rows]
    text = _plain(getdoc(kind) or "")
    return "\n".join([f"### {kind.__name__}\n", text, "", *table, "", *rules, *[""] * bool(rules)])


def _row(kind: type, name: str, meaning: str) -> str:
    typed = _type(TypeAdapter(kind).json_schema()["properties"][name])
    return f"| `{name}` | {typed} | {_default(kind, name)} | {meaning} |"


def _meanings(kind: type, nested: Set[str] = frozenset()) -> dict[str, str]:
    """Return the line of every field, in the order of the record, except the nested records."""
    known = {
        name: text
        for base in reversed(kind.__mro__)
        for name, text in FIELDS.get(base, {}).items()  # type: ignore[call-overload]
    }
    fields = [name for name in _defaults(kind) if name not in nested]
    if set(known) != set(fields):
        wrong = ", ".join(sorted(set(known) ^ set(fields)))
        raise SystemExit(f"docs/generate.py: FIELDS and {kind.__name__} differ in: {wrong}")
    return {name: known[name] for name in fields}


def _plain(text: str) -> str:
    """Return a docstring as Markdown."""
    return text.replace("``", "`")


_REQUIRED: Any = object()


def _defaults(kind: type) -> dict[str, Any]:
    """Return the fields of a record or a data class with their defaults."""
    if issubclass(kind, Record):
        return {
            name: _REQUIRED if field.is_required() else field.get_default(call_default_factory=True)
            for name, field in kind.model_fields.items()
        }
    made: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        factory = field.default_factory
        missing = _REQUIRED if factory is dataclasses.MISSING else factory()
        made[field.name] = missing if field.default is dataclasses.MISSING else field.default
    return made


def _default(kind: type, name: str) -> str:
    value = _defaults(kind)[name]
    if value is _REQUIRED or name == "format":
        return "required"
    match value:
        case None:
            return "absent"
        case bool():
            return str(value).lower()
        case () | "":
            return "empty"
        case Mapping() if not value:
            return "empty"
        case float():
            return f"{value:g}"
        case _:
            return f"{value}"


def _type(schema: Mapping[str, Any]) -> str:
    """Return a JSON Schema as a short phrase."""
    if "anyOf" in schema:
        kinds = [kind for kind in schema["anyOf"] if kind.get("type") != "null"]
        return " or ".join(map(_type, kinds)) if len(kinds) == 1 else _several(schema)
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    return _KINDS[schema["type"]](schema)


def _several(schema: Mapping[str, Any]) -> str:
    return " or ".join("null" if k.get("type") == "null" else _type(k) for k in schema["anyOf"])


def _limits(schema: Mapping[str, Any]) -> str:
    most = schema.get("maximum")
    upper = "" if most is None or most >= 1_000_000 else f"{most:g}"
    if "exclusiveMinimum" in schema:
        return f" > {schema['exclusiveMinimum']:g}"
    if "minimum" in schema and upper:
        return f", {schema['minimum']:g} to {upper}"
    return f" >= {schema['minimum']:g}" if "minimum" in schema else ""


def _list(schema: Mapping[str, Any]) -> str:
    if "prefixItems" in schema:
        first = schema["prefixItems"][0]
        return f"list of {len(schema['prefixItems'])}: {_item(first)}"
    least = f", {schema['minItems']} or more" if schema.get("minItems") else ""
    return f"list of {_item(schema['items'])}{least}"


def _item(schema: Mapping[str, Any]) -> str:
    return _several(schema) if "anyOf" in schema else _type(schema)


def _mapping(schema: Mapping[str, Any]) -> str:
    values = schema.get("additionalProperties") or next(iter(schema["patternProperties"].values()))
    key = "share" if schema.get("propertyNames", {}).get("pattern", "").startswith("^(") else "name"
    if "patternProperties" in schema:
        key = "share" if any("100" in k for k in schema["patternProperties"]) else "name"
    return f"mapping of {key} to {_type(values)}"


_KINDS = {
    "string": lambda schema: "text",
    "boolean": lambda schema: "true or false",
    "integer": lambda schema: f"whole number{_limits(schema)}",
    "number": lambda schema: f"number{_limits(schema)}",
    "array": _list,
    "object": _mapping,
}


def cli_page() -> str:
    """Return the reference of the command line."""
    commands = list(leaves(COMMANDS))
    return "\n".join([CLI, *(_command(*each, commands[:k]) for k, each in enumerate(commands))])


def _command(path: str, command: Command, before: Sequence[tuple[str, Command]]) -> str:
    """Return the section of a command; many arguments of an earlier one are named only."""
    model, common = "", set[str]()
    for other, one in before:
        same = set(map(_meant, one.arguments)) & set(map(_meant, command.arguments))
        if len(same) > max(len(common), MOST_REPEATED):
            model, common = other, same
    own = [each for each in command.arguments if _meant(each) not in common]
    rows = [f"| {_names(each)} | {each.text} | {_standing(each)} |" for each in own]
    table = ["| argument | meaning | default |", "|---|---|---|", *rows, ""] if rows else []
    known = ", ".join(_names(each) for each in command.arguments if _meant(each) in common)
    anchor = f"dovetail-{model.replace(' ', '-')}"
    also = [f"As in [dovetail {model}](#{anchor}): {known}.", ""] if known else []
    block = ["```text", command.usage or _usage(path, command), "```"]
    return "\n".join([f"## dovetail {path}\n", command.text, "", *block, "", *table, *also])


def _meant(one: Argument) -> str:
    """Return what an argument is, whatever its default."""
    return f"{_names(one)} {one.text}"


def _usage(path: str, command: Command) -> str:
    shapes = {"?": "[{}]", "+": "{} ...", "*": "[{} ...]"}
    placed = [one for one in command.arguments if not one.names]
    places = [shapes.get(one.number, "{}").format(one.value) for one in placed]
    needed = [f"{one.names[0]} {one.value}" for one in command.arguments if one.required]
    free = any(one.names and not one.required for one in command.arguments)
    return " ".join(["dovetail", path, *places, *needed, *["[OPTION ...]"] * free])


def _names(one: Argument) -> str:
    return ", ".join(f"`{f'{name} {one.value}'.strip()}`" for name in one.names or ("",))


def _standing(one: Argument) -> str:
    if one.required or (not one.names and one.number in ("", "+")):
        return "required"
    return f"`{one.default}`" if one.default else ""


def api_page() -> str:
    """Return the reference of the HTTP API."""
    # Of the extra live.
    from dovetail.live.application import MEANINGS, application

    openapi = application(None).openapi()
    faults = [f"| {status} | {kind} | {meaning} |" for status, kind, meaning in MEANINGS]
    parts = [API + "\n".join(faults) + "\n", "## Requests\n"]
    for path, methods in openapi["paths"].items():
        if path.startswith("/v1/"):
            parts += [
                _request(method.upper(), path, described) for method, described in methods.items()
            ]
    parts += [
        "## Records\n",
        _submission(),
        _changes(),
        *map(_record, (*REQUESTS, *VIEWS)),
        _states(),
    ]
    return "\n".join(parts)


def _request(method: str, path: str, described: Mapping[str, Any]) -> str:
    asked = [
        f"- `{each['name']}` ({each['in']}): {_asked(each['schema'])}"
        for each in described.get("parameters", ())
        if each["in"] != "path"
    ]
    body = _content(described.get("requestBody", {}))
    takes = [f"- body: {body}"] if body else []
    answer = next(found for status, found in described["responses"].items() if status < "300")
    gives = [f"- answer: {_content(answer) or 'JSON'}"]
    lines = [f"### {method} {path}\n", described["description"], "", *asked, *takes, *gives, ""]
    return "\n".join(lines)


def _asked(schema: Mapping[str, Any]) -> str:
    default = schema.get("default")
    shown = "" if default is None else f"; default: `{str(default).lower()}`"
    return f"{_type(schema)}{shown}"


def _content(described: Mapping[str, Any]) -> str:
    """Return what a body or an answer is."""
    for kind, content in described.get("content", {}).items():
        if kind.startswith("text/"):
            return "plain text"
        schema = content["schema"]
        if schema.get("type") == "array" or "$ref" in schema:
            return _type(schema)
    return ""


def _submission() -> str:
    """Return the fields of a job that is submitted: a ``JobSpec`` without its owner."""
    meanings = _texts_in(getdoc(JobSpec) or "")
    shared = {"gsla": "gsla", "weight": "weight", "priority": "priority"}
    instance = FIELDS[instances.Job]
    own = {"array": "A job for each of these numbers, its `index`."}
    schema = requests.SUBMISSION.model_json_schema()["properties"]
    rows = [
        f"| `{name}` | {_type(schema[name])} | {_default(requests.SUBMISSION, name)} | "
        f"{_plain(own.get(name) or (instance if name in shared else meanings)[name])} |"
        for name in requests.SUBMISSION.model_fields
    ]
    table = ["| field | type | default | meaning |", "|---|---|---|---|", *rows]
    return "\n".join(["### Submission\n", getdoc(requests.SUBMISSION) or "", "", *table, ""])


def _changes() -> str:
    """Return the fields of a job that waits that can be changed."""
    listed = ", ".join(f"`{name}`" for name in requests.CHANGES.model_fields)
    meaning = getdoc(requests.CHANGES) or ""
    return f"### Changes\n\n{meaning} As in a [submission](#submission): {listed}.\n"


def _states() -> str:
    listed = ", ".join(f"`{state.value}`" for state in JobState)
    return (
        f"### JobState\n\nOne of {listed}: [live mode](../explanation/live.md#the-life-of-a-job).\n"
    )


def policies_page() -> str:
    """Return the reference of the policies and their options."""
    return "\n".join([POLICY_PAGE, *map(_policy, POLICIES)])


def _policy(name: str) -> str:
    kind: Any = policy_class(name)
    text = getdoc(kind) or ""
    meanings = _texts_in(text)
    types = get_type_hints(kind)
    rows = []
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        if field.name not in meanings:
            raise SystemExit(f"docs/generate.py: policy {name} says nothing of {field.name}")
        default = str(field.default).lower() if types[field.name] is bool else field.default
        typed = _OPTION_TYPES[types[field.name]]
        rows.append(f"| `{field.name}` | {typed} | `{default}` | {_plain(meanings[field.name])} |")
    head = ["| option | type | default | meaning |", "|---|---|---|---|"] if rows else []
    lead = _plain(text.partition("\n\n")[0].replace("\n", " "))
    return "\n".join([f"## {name}\n", lead, "", *head, *(rows or ["No options."]), ""])


def _texts_in(docstring: str) -> dict[str, str]:
    """Return the text of a docstring on each parameter or attribute."""
    found = re.finditer(r"^([\w, ]+) : .+\n((?: {4}.*(?:\n|$))+)", docstring, re.M)
    return {name: " ".join(each[2].split()) for each in found for name in each[1].split(", ")}


_OPTION_TYPES = {int: "whole number", float: "number", str: "text", bool: "true or false"}


if __name__ == "__main__":
    sys.exit(main())
