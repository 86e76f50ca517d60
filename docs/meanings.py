"""The meanings of fields and the rules of records that ``generate.py`` writes into pages."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.executor.live import views
from dovetail.instances import instance as instances
from dovetail.instances import plan as plans
from dovetail.instances._record import Record
from dovetail.instances.datasets import records
from dovetail.instances.metrics import Metrics
from dovetail.instances.slowdowns.entry import SlowdownEntry
from dovetail.live.http import faults, requests
from dovetail.measuring import campaign, results

FIELDS: Mapping[type, Mapping[str, str]] = {
    instances.Instance: {
        "format": "Format and version of the file.",
        "name": "Any name; plans repeat it.",
        "cluster": "The GPUs and the rules for sharing them.",
        "workloads": "The workloads of the jobs, by name.",
        "jobs": "The jobs, in the order of the queue.",
        "slowdowns": "Known slowdowns of workloads that share a GPU. No entry: they may not.",
    },
    instances.Cluster: {
        "sharing": "How jobs on one GPU share it: `mps`, as clients of one MPS server, or "
        "`time_sliced`, taking turns on the whole GPU without MPS. With `time_sliced` there are "
        "no caps.",
        "max_jobs_per_gpu": "Most jobs on one GPU.",
        "shares": "Caps that a starting job may be given, in per cent of a GPU's SMs. "
        "`idle`: its thread blocks run only while its co-runners have none. Empty: jobs share "
        "without caps.",
        "share_sum": "The caps on one GPU sum to at most this; jobs without a cap do not count.",
        "start_capped": "Whether a job that starts alone on a GPU may take a cap, so that "
        "another can join later.",
        "uncapped": "Whether two jobs that could have caps may share without on an estimate. If "
        "not, they do only if they were measured so, or if by its upper bound neither is slowed "
        "more than if they took turns.",
        "gang_sharing": "`partial`: a gang may share some of its GPUs, each with another "
        "co-runner. `whole`: two jobs share only if they have equally many workers and share all "
        "their GPUs.",
        "reserve_mib": "Memory kept free on every GPU (the driver's), MiB.",
        "per_process_mib": "Memory of each resident process in addition to its job's (CUDA "
        "context), MiB.",
        "assumed": "Slowdowns that are declared instead of measured; default: none.",
        "nodes": "The machines.",
    },
    instances.Assumed: {
        "pair": "Slowdown of each of two jobs without caps that no entry names. 1: any two may "
        "share whose memory fits.",
        "sets": "`product`: three and more jobs without caps that no entry names may share if each "
        "two of them may; a job's slowdown is the product of its slowdowns with each co-runner.",
    },
    instances.Node: {
        "id": "Name of the node.",
        "rack": "Rack of the node. All nodes without one are treated as one rack.",
        "host": "Resources of the node. A resource that is not given never runs short.",
        "gpus": "Its GPUs, one by one.",
        "gpu_count": "Or the number of equal GPUs, named `<id>-0`, `<id>-1` and so on.",
        "gpu": "With `gpu_count`: the description of each.",
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
        "sms": "Number of SMs. No rule uses it.",
        "max_jobs": "Most jobs on a GPU of this model, if they are fewer than the cluster's "
        "`max_jobs_per_gpu`. GPUs of one model have one limit.",
        "cost_per_hour": "Cost of a GPU of this model, in any currency. Objective `fewest` "
        "minimises the cost of the GPUs in use; absent, each counts 1. Given for all GPU models or "
        "for none. GPUs of one model have one cost.",
        "sharing": "How jobs share this GPU, where it is not the cluster's `sharing`: GPUs of one "
        "model may differ. Entries hold on GPUs of their `mode` only, caps on GPUs under `mps`.",
    },
    instances.Gpu: {"id": "Name of the GPU, unique in the cluster."},
    instances.Workload: {
        "memory_mib": "Memory of one worker, MiB.",
        "memory_percent": "Or its memory in per cent of what a GPU offers to jobs (its "
        "`memory_mib` less `reserve_mib`), `per_process_mib` included: 100 fits every GPU alone, "
        "and two of 50 fit together.",
        "host": "Needs of one worker at full speed. Not given: for PCIe and network the larger of "
        "both directions in `metrics`, otherwise 0.",
        "family": "Name that variants of one workload share (batch sizes, precisions); a predictor "
        "that knows the family predicts better.",
        "metrics": "Profile of the workload alone on a GPU, which predictors read.",
        "metrics_by_share": "The same under a cap, by share; fitted predictors read it.",
        "metrics_variance": "Variance over time of metrics, in their unit squared.",
        "memory_mean_mib": "Mean over time of a worker's memory, MiB; `memory_mib` is the maximum.",
        "duration_s": "Time of a whole run alone, s.",
        "throughput": "Iterations per second alone, by share; 100 is the whole GPU.",
        "power_w": "Power of a GPU on which it runs alone, W; objective `energy` needs it.",
        "speed": "Speed on a GPU model relative to the others; 1 where not given.",
        "isolation": "`blocks`: its kernels can be preempted between thread blocks, so that it may "
        "have the share `idle`.",
        "batch": "Memory and iteration time by batch size. Its presence allows gradient "
        "accumulation.",
        "batch_size": "Samples of a batch, if `batch` is not given; a predictor that knows the "
        "family predicts better with it.",
        "stages_s": "Time for which one iteration holds each resource in turn, s: storage and CPU, "
        "the GPU, the network (Muri's stages). The same resources in every workload.",
    },
    Metrics: {
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
        "kernels_s": "Kernels launched a second.",
        "kernel_mean_s": "Mean duration of a kernel, seconds.",
        "kernel_weighted_s": "Mean duration of a kernel, weighted by duration, seconds: the "
        "kernel that is found running at a random moment of the kernels' time.",
        "kernel_full": "Fraction of the kernels' time in kernels whose blocks fill every SM.",
        "kernel_occupancy": "Warps of a kernel that fit on an SM, as a fraction of the most; "
        "mean weighted by duration.",
        "block_threads": "Threads of a block, mean weighted by duration.",
        "block_shared_bytes": "Shared memory of a block in bytes, mean weighted by duration.",
        "thread_registers": "Registers of a thread, mean weighted by duration.",
    },
    instances.Batch: {
        "size": "Samples of a worker's full batch.",
        "min": "The smallest sub-batch.",
        "fixed_mib": "Memory that does not depend on the batch, MiB.",
        "mib_per_sample": "Memory that each sample takes, MiB.",
        "step_s": "Time to compute a batch.",
        "comm_s": "Time to exchange gradients, s.",
        "overlap": "Castor's delta: at 1, communication does not overlap with computing; the "
        "larger, the more it does.",
    },
    instances.StepTime: {
        "fixed": "Seconds that do not depend on the batch.",
        "per_sample": "Seconds for each sample.",
    },
    instances.Job: {
        "id": "Name of the job, unique.",
        "workload": "A key of `workloads`.",
        "workers": "Processes of the gang, one GPU each, started together or not at all.",
        "workers_per_node": "The number of its workers on each node that it uses, as with Slurm's "
        "`--ntasks-per-node` or `mpirun -N`. Must divide `workers`. Absent: any numbers.",
        "workers_together": "The size of groups of its workers; each group is on one node, and "
        "several may be on the same, as with Kubernetes pods of several GPUs or bundles of Ray. "
        "Must divide `workers`; not with `workers_per_node`.",
        "gsla": "The largest job slowdown that the owner accepts. Absent: any.",
        "weight": "How much the job counts. A gang counts once, however many workers it has.",
        "arrival_s": "Time of arrival: the queue's order for `greedy`, `exclusive` and `random`. "
        "Nothing else uses it.",
        "remaining_s": "Remaining run time alone, s; objectives `jct` and `completion` need it.",
        "priority": "`latency`: the gSLA is checked against `p99` where an entry has it.",
        "sharing": "The only way in which the job shares a GPU; alone it may run on any. Absent: "
        "any way.",
        "state": "Whether it waits or already has GPUs.",
        "gpus": "For a running job: the GPU of each worker.",
        "share": "For a running job: the cap on each of these GPUs, null for none.",
        "sub_batch": "For a running job: its sub-batch; absent: full size.",
    },
    SlowdownEntry: {
        "pair": "The two workloads, in either order.",
        "set": "Or three workloads and more, where `max_jobs_per_gpu` allows them.",
        "share": "The cap of each; null for none. Absent: no caps.",
        "slowdown": "Iteration time together / alone, of each. null: they may not share.",
        "upper": "Upper confidence bounds. gSLAs are checked against these if given.",
        "p99": "Growth of the tail latency; the gSLA of a latency-critical job is its limit.",
        "power_w": "Power of the GPU with all of them on it, W; objective `energy` needs it.",
        "gpu_model": "The GPU model of the entry. Absent: every model without an entry of its own.",
        "source": "`measured`: these workloads were measured together. `model`: predicted by a "
        "model of such measurements, with a bound. `estimate`: predicted without one. "
        "`assumed`: declared by the owner. Absent: as given.",
        "confidence": "Confidence of `upper` from a model: the fraction of jobs below it.",
        "mode": "The `sharing` of the GPUs on which they hold.",
    },
    plans.Plan: {
        "format": "Format and version of the file.",
        "instance": "Name of the instance.",
        "objective": "The objective, its value and its proof.",
        "status": "`optimal`: gap at most 1e-6. `feasible`: a valid plan without that proof. "
        "`unknown`: an answer failed its check, so nothing starts.",
        "stopped": "Why the search ended.",
        "runtime_s": "Seconds from the call to the checked plan.",
        "solver": "The solver that answered.",
        "seed": "Seed of the search.",
        "preempt": "Whether running jobs, except latency-critical ones, were pending.",
        "nodes_spanned": "Nodes that each placed job is on, summed over the jobs.",
        "tie_break": "`proven`: no plan of this value is on fewer nodes, then racks, then GPUs.",
        "verification": "Result of `dovetail plan --verify`.",
        "notes": "Remarks, one line each.",
        "assignments": "Every placed job, including running ones.",
        "waiting": "Every job that is not placed, with the reason.",
        "stops": "Every running job that moves or waits: stop it before anything starts.",
    },
    plans.Stop: {
        "job": "Id of the job.",
        "gpus": "The GPUs on which it runs until then.",
    },
    plans.ObjectiveValue: {
        "name": "The objective. The checker does not compute the value of one of your own, "
        "`python:MODULE.CLASS`.",
        "value": "Its value, as the checker recomputes it.",
        "bound": "No valid plan has a better value. null: nothing is proven.",
        "gap": "\\|bound - value\\| / max(\\|bound\\|, \\|value\\|).",
        "placed_weight": "Weight of the placed jobs (first stage of the two-stage objectives).",
        "placed_weight_bound": (
            "No valid plan places more weight; above `placed_weight` if solvers rounded the "
            "weights or were stopped."
        ),
    },
    plans.Verification: {
        "certificate": "`checked`: the solver's certificate, the duals of a matching, proved the "
        "bound again. `none`: the solver leaves no certificate.",
        "pairs": "Number of pairs of jobs that the certificate was checked against: all.",
    },
    plans.Assignment: {
        "job": "Id of the job.",
        "gpus": "The GPU of each worker.",
        "share": "The cap on each, null for none.",
        "slowdown": "The job slowdown.",
        "sub_batch": "Samples per accumulation step; absent: full size.",
        "co_runners": "The other jobs on each of the GPUs.",
        "start": "Whether it starts now. False for a running job, with `preempt` for one that "
        "keeps its GPUs, shares and sub-batch; one that moves starts.",
        "source": "The weakest source among the slowdowns of its workers, as in the instance. "
        "Absent: as given, or it is alone.",
        "confidence": "Confidence of its bound, if a model gave it.",
    },
    plans.Waiting: {
        "job": "Id of the job.",
        "reason": "The reason, in one line.",
        "nearest": "The co-runner that came closest to letting it start.",
    },
    plans.Nearest: {
        "co_runner": "Id of that job.",
        "share": "Share of the waiting job there.",
        "slowdown": "Slowdown of the waiting job there.",
        "gpu": "The GPU.",
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
        "at_least": "If it failed because one was too slow to measure: a lower bound; empty: "
        "not known.",
        "p99": "Growth of the 99th percentile of latency: together / alone.",
        "power_w": "Mean power of the GPU, W.",
        "driver": "Version of the driver.",
        "library": "Version of cuBLAS.",
        "source": "Origin of the row.",
        "date": "As in profiles.",
        "mode": "`time_sliced` if they took turns on the GPU, without MPS and caps. `shared` and "
        "an empty cell are `mps`.",
    },
    campaign.Campaign: {
        "format": "Format and version of the file.",
        "name": "Any name.",
        "workloads": "Names of [built-in workloads](workloads.md), or workloads of your own.",
        "stages": "The measurements, in order.",
        "windows": "Length of the windows.",
        "size": "`tiny` is for processor cores: it tests programs and says nothing about GPUs.",
        "seed": "Draws the order within stages, and data and weights of workloads.",
    },
    campaign.OwnWorkload: {
        "name": "Name of the workload.",
        "program": "A [Python file](workloads.md#a-workload-of-your-own); its path begins at the "
        "folder of the campaign.",
        "family": "Groups variants of one workload. Absent: the workload itself.",
    },
    campaign.Stage: {
        "measure": "`solos`: each workload alone. `pairs`: every two, and each with itself. "
        "`triples`: every three.",
        "mode": "`mps`: clients of one MPS server. `time-sliced`: without MPS. `isolated`: clients "
        "of one MPS server whose kernel launches are [intercepted](../explanation/isolation.md): "
        "those named in `latency` come first, the others run in their idle time.",
        "shares": "Shares in per cent, null for none: one for each workload. Those that "
        "differ are measured in every order. Absent: no shares.",
        "workloads": "Only these, or the pairs and triples with at least one of them. Absent: all.",
        "first": "Workloads to which MPS gives the higher priority.",
        "latency": "Workloads that answer requests at `load` instead of running without a pause. "
        "Pairs and triples then have exactly one of them.",
        "load": "Requests a second, as a part of the workload's iterations a second alone: those "
        "of its first sound window without a share. Needs `latency`.",
        "arrivals": "`poisson`: at random times, the same ones in all stages. `fixed`: at equal "
        "distances.",
        "most": "At most this many, drawn at random and the same in each round. Absent: all.",
        "repeats": "Rounds, each in a random order.",
    },
    campaign.Load: {
        "part": "Requests a second over iterations a second alone.",
        "arrivals": "As in a stage.",
    },
    campaign.Windows: {
        "settle_s": "Seconds at the start that are ignored.",
        "least_s": "Shortest window, s.",
        "most_s": "Longest window, s, and that of all windows with a `load`. It grows up to five "
        "times as long while a worker has done fewer than three chunks of iterations.",
        "relative_error": "Between the two, a window ends when the relative standard error of "
        "every worker's mean iteration time is below this.",
    },
    results.ExperimentResult: {
        "key": "Name of the experiment, such as `1:mps:conv@50+burst@50!#0`.",
        "stage": "Number of the stage, from 0.",
        "repeat": "Number of the round in the stage, from 0.",
        "mode": "How the GPU was shared.",
        "workloads": "The workers; the lists below have an item for each.",
        "shares": "Shares; null: none; `idle`: in the idle time of the other.",
        "first": "Whether a worker had the higher priority.",
        "loads": "The requests that each worker answered; null: those of its own, or none. Absent: "
        "null for all.",
        "families": "Families of the workloads. Absent: no worker was started.",
        "batch_sizes": "Samples in an iteration. Absent: no worker was started.",
        "status": "`starved`: a worker did too little for a throughput in a window of five times "
        "`most_s`, or until the time was up. `refused`: the setting is not available or not "
        "allowed. `known`: a data set has it.",
        "reason": "Why the status is not `ok`.",
        "paces": "Speeds of the workers. Absent unless the status is `ok`.",
        "most_iterations_s": "Iterations a second that each worker did at most. Absent unless the "
        "status is `starved`.",
        "window_s": "Length of the window, s.",
        "energy_j": "Energy of the whole GPU, J.",
        "power_w": "Mean power of the whole GPU, W.",
        "metrics": "Activity of the whole GPU: means of readings of a second.",
        "metrics_variance": "Variances of these readings.",
        "metrics_source": "Source of the metrics.",
        "kernels": "Kernels of the workload, profiled after the window: once, alone and uncapped.",
        "kernels_lack": "Why they could not be profiled.",
        "clock_mhz": "Clock of the SMs, read each second, MHz.",
        "temperature_c": "Temperature of the GPU, read each second, degrees Celsius.",
        "throttled": "Reasons for lowered clocks.",
        "launches": "With isolation: intercepted kernel launches in the window, of all workers.",
        "escapes": "With isolation: kernels that cannot be cut, or not in some way, and why.",
        "disturbed_by": "Pids of foreign processes on the GPU.",
        "others_busy": "On a processor core: fraction of time taken by others.",
        "residents": "Workers in memory, including idle ones.",
        "date": "Time of the measurement, ISO 8601.",
    },
    results.Throughput: {
        "iterations_s": "Iterations a second of busy time, without waiting for requests.",
        "iterations": "Number of iterations in the window.",
        "relative_error": "Standard error of the mean iteration time, over that mean.",
        "latency": "Absent for workloads that answer no requests.",
        "memory_mib": "Memory of the worker, MiB.",
        "sms": "SMs that the worker saw.",
    },
    results.ProfiledKernels: {
        "profiler": "Which profiler.",
        "launches": "Kernels an iteration.",
        "metrics": "[Their metrics](datasets.md#columns-of-profiles), but `kernels_s`.",
        "iterations": "Iterations that were profiled.",
        "cost_s": "Seconds that profiling took, after the window.",
    },
    results.Latency: {
        "p50_s": "Median, s.",
        "p99_s": "99th percentile, s.",
        "mean_s": "Mean, s.",
        "requests": "Number of requests.",
        "requests_s": "Requests a second that were due, if it answers those of a load.",
    },
    views.JobView: {
        "id": "`j1`, `j2` and so on, in the order of submission.",
        "name": "Name given by its owner.",
        "owner": "User name of its owner.",
        "uid": "User id of its owner.",
        "command": "Program and arguments; in lists of jobs, the first 200 characters; for a job "
        "that is over, the first 1,000.",
        "cwd": "Working directory.",
        "workload": "Predictors treat jobs of one owner and one workload as alike.",
        "workers": "Processes, one device each.",
        "workers_per_node": "How many of them are on each node that it uses.",
        "workers_together": "The size of groups of them, each on one node.",
        "priority": "`batch` or `latency`.",
        "nice": "Priority among its owner's jobs: lower values start first.",
        "gsla": "The largest slowdown that its owner accepts.",
        "isolation": "`blocks` if it may be part of an isolated pair.",
        "unisolated": "Why it is not isolated if it should be; else empty.",
        "launches": "Kernel launches of the isolated jobs on its devices, by kind.",
        "escapes": "Their kernels that cannot be isolated, and why.",
        "state": "State of the job.",
        "why": "Reason of the state.",
        "waiting_for": "What a waiting job waits for, if known.",
        "submitted_s": "Time of submission.",
        "since_s": "Time of its last change of state.",
        "started_s": "Time of its first start.",
        "ended_s": "Time of its end.",
        "runs": "Number of starts.",
        "run": "Id of its current or last run.",
        "gpus": "The device of each rank of that run.",
        "shares": "The cap of each there, per cent, or `idle`; null for none.",
        "capped": "Why it has a cap, if that is since it never ran without one beside a co-runner.",
        "co_runners": "The other jobs on each of these devices.",
        "pids": "The process of each rank.",
        "statuses": "Exit status of each rank; negative for a signal, null if not known yet.",
        "iterations": "Iterations of the slowest rank in this run. For a job that is over, the "
        "last seen before its end, as for `rate`; lost when the service restarts.",
        "total": "Iterations in all, if the job reports them.",
        "rate": "Iterations a second now.",
        "solo_rate": "Iterations a second alone.",
        "slowdown": "Measured: rate alone / rate now; of a service, its p99 now / alone. For a "
        "job that is over: while it shared.",
        "predicted": "The slowdown predicted when it was placed.",
        "upper": "The upper bound of `predicted`; absent for estimates without one.",
        "predicted_by": "Origin of `predicted`, such as `measured 3 times` or `estimate ...`.",
        "memory_mib": "Memory limit of a rank, MiB, as submitted.",
        "memory_percent": "Or in per cent of what its device offers to jobs, as submitted.",
        "memory_limit_mib": "While it runs with a memory limit: that of a rank, MiB; the "
        "smallest if they differ.",
        "memory_used_mib": "The most memory that a rank was seen to use in this run, MiB.",
        "memory_held_by": "While it runs with a memory limit: [what makes it keep to "
        "it](../explanation/memory.md); `nothing` if nothing does.",
        "estimate_s": "How long its owner expects it to run alone, s; null if not said.",
        "energy_j": "The energy of its devices that it [answers for]"
        "(service-metrics.md#parts-of-a-shared-device) in this run, J.",
        "device_s": "The time of its devices that it answers for in this run, s.",
        "walltime_s": "Longest time of a run, s; null for no limit.",
        "retries": "Number of restarts after failures.",
        "requeue": "Whether it may be stopped and started again.",
        "grace_s": "Time from SIGTERM to SIGKILL, s.",
        "checkpoint_s": "Most work between its checkpoints, s, 0 if it writes one on SIGTERM; null "
        "if the policy `dovetail` may not stop it for other jobs.",
        "stops_apart_s": "Least time between two such stops, s; null for an hour.",
        "public_log": "Whether other users may read its output.",
        "output": "The file that its output is appended to, with the patterns as submitted.",
        "error": "The same for its standard error alone.",
        "log": "File of the output of the first rank of its last run, if it is on the service's "
        "machine; empty in lists of jobs.",
        "held": "The user who holds it; empty if it is not held.",
        "awaits": "Jobs that must be over before it may start.",
        "index": "Its index in an array.",
        "service": "Whether it has no end, and starts again whenever it ends.",
        "replica": "Its number among the replicas of its service; null if it was submitted alone.",
        "replicas": "How many replicas its service has that are not over.",
        "ready": "Whether it has just answered a probe; null if it has none.",
        "restarts": "Number of its starts after the first.",
        "quick_ends": "How often in a row it has ended within ten minutes of its start.",
        "again_s": "When it starts again; null unless it rests after its end.",
        "node": "The node of its first worker; null unless it holds devices.",
        "port": "Its port, `DOVETAIL_PORT` of its processes; null unless it holds devices.",
        "address": "`NODE:PORT`; empty unless it holds devices.",
        "probe": "How it is asked whether it answers, as submitted.",
        "p99_s": "The 99th percentile of its latencies in the last minute, or in the last 4 or 16 "
        "if that had too few, s.",
        "p99_alone_s": "The 99th percentile in the profile of its workload alone, s.",
        "p99_promised_s": "`p99_alone_s` times its gSLA, s.",
        "requests_per_s": "Its latencies a second in the last minute; 0: no requests.",
        "history": "Its changes of state; empty in lists of jobs.",
    },
    views.StepView: {
        "at_s": "Time.",
        "state": "The new state.",
        "why": "The reason.",
    },
    views.ServiceView: {
        "pool": "`gpu`, `cpu` or `simulated`.",
        "notice": "Limits of this pool's figures; empty for GPUs under MPS.",
        "policy": "The policy.",
        "version": "Version of Dovetail.",
        "pid": "Process id of the service.",
        "directory": "Directory of its state.",
        "started_s": "Time of its start.",
        "now_s": "Time of the answer.",
        "sequence": "Number of the last event in the journal.",
        "jobs": "Number of jobs in each state.",
        "decide_s": "Time of its last decision, s.",
        "gap": "The proven gap of that decision.",
        "dry_run": "Whether it starts nothing.",
        "trouble": "Faults of the service; empty if there are none.",
        "evidence": "How far it is with the shares that it measures itself; null if the shares of "
        "the pool need no evidence, or are not measured by the service.",
        "devices": "Its devices.",
    },
    views.DeviceView: {
        "id": "Name of the device.",
        "node": "Its node.",
        "rack": "Rack of the node, if known.",
        "model": "Its model.",
        "memory_mib": "Its memory, MiB.",
        "jobs": "Ids of the jobs on it.",
        "measuring": "The share that the service measures on it, in per cent.",
        "used_mib": "Memory in use, MiB.",
        "power_w": "Power drawn, W.",
        "energy_j": "Energy drawn since an arbitrary moment, J.",
        "metrics": "Means over the last interval, named as in a workload's profile.",
        "source": "Source of the metrics.",
        "uuid": "Its UUID in NVIDIA's tools; empty if it has none.",
        "number": "Its number in the driver's order on its node.",
        "parts": "The parts of its time and power that its jobs answer for.",
        "trouble": "Why it takes no new jobs; empty if it does.",
    },
    views.PartView: {
        "job": "The job.",
        "time": "The part of the time, a fraction.",
        "time_source": "How the part of the time is known.",
        "power_w": "The part of the power, W.",
        "power_source": "How the part of the power is known.",
    },
    views.EvidenceView: {
        "state": "`measuring`; `waiting` for an idle device; `failed`, to be tried again; "
        "`lacking` a Python, MPS or a program; `done`; `off`.",
        "text": "The same in a line.",
        "gpu": "Device on which a share is being measured.",
        "share": "That share, in per cent.",
        "library": "The library whose products are compared.",
        "since_s": "When that began.",
        "left": "Shares still to be measured.",
    },
    requests.Submissions: {"jobs": "The jobs, at most 10,000, accepted all or none."},
    requests.Accepted: {"ids": "Their ids, in the order of the request."},
    requests.DrainRequest: {
        "gpus": "Ids of the devices; empty: all.",
        "on": "true: no new jobs; false: new jobs again.",
    },
    requests.Explained: {"job": "Id of the job.", "text": "The explanation."},
    faults.Fault: {
        "kind": "One of the table above, for programs.",
        "error": "One line, for readers.",
    },
}
"""The meaning of each field. A record that extends another also has the other's fields."""

RULES: Mapping[type[Record], tuple[str, ...]] = {
    instances.Instance: (
        "Job ids differ. A job's workload, and every workload of an entry, is in `workloads`.",
        "A running job is on GPUs of the cluster, all of one model; no GPU holds more running "
        "jobs than `max_jobs_per_gpu`.",
        "A running job with `sharing` is alone on GPUs that are shared in another way.",
        "The same combination (workloads with their shares, on the same `gpu_model` and in the "
        "same `mode`) is listed once in `slowdowns`, mirrored or not.",
        "The `mode` of every entry is the `sharing` of the cluster or of one of its GPUs.",
        "Slowdowns in a file are [neither speeds nor percentages](datasets.md#a-folder-of-tables).",
    ),
    instances.Cluster: (
        "Node ids differ, GPU ids differ (including those made by the shorthand), and a share is "
        "listed once. At most 100,000 GPUs.",
        "If no GPU is under `mps`, no share is a cap.",
    ),
    instances.Assumed: ("At least one of `pair` and `sets`.",),
    instances.Node: (
        "Either `gpus`, or `gpu_count` with `gpu`.",
        "A resource of `host` is more than 0.",
    ),
    instances.Workload: ("Either `memory_mib` or `memory_percent`; with `batch`, `memory_mib`.",),
    instances.Batch: (
        "`min` is at most `size`, and an iteration takes some time.",
        "The sub-batches are `size` / 2^k, whole numbers not below `min`.",
    ),
    instances.Job: (
        "Only a running job has `gpus`, `share` and `sub_batch`; it must have `gpus`.",
        "`gpus` and `share` have one item for each worker, and the GPUs differ.",
        "`sub_batch` is one that the workload's `batch` allows.",
    ),
    SlowdownEntry: (
        "With `mode: time_sliced`, no `share` is a cap.",
        "Either `pair` or `set`. `share`, `slowdown`, `upper` and `p99` have one item for each "
        "workload.",
        "`upper` is never below `slowdown`. With `slowdown: null` there is no `upper`, `p99` "
        "or `power_w`.",
        "A workload with itself at one share has the same numbers twice.",
        "`confidence` goes with `upper`.",
    ),
    plans.Assignment: ("`share` and `co_runners` have one item for each GPU.",),
}
"""Rules between fields; a file that breaks one of these is refused on reading."""
