"""Small random instances in which every constraint of the round problem occurs.

``instances(shape)`` is a hypothesis strategy, ``random_instance(draw, shape)`` the same from a
seeded generator. A ``Shape`` says what may occur.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations_with_replacement
from random import Random
from typing import Any

from hypothesis import strategies as st

from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance
from dovetail.instances.requirements import require_fields
from dovetail.instances.slowdowns.shares import share_code

Data = dict[str, Any]
SHARES = (30, 50, 70)


@dataclass(frozen=True)
class Shape:
    """Features of a random instance; each ``bool`` permits one."""

    jobs: int = 5
    gpus: int = 4
    workloads: int = 3
    gangs: bool = True
    whole: bool = True
    shares: bool = True
    models: bool = True
    memory: bool = True
    running: bool = True
    batches: bool = True
    sets: bool = True
    latency: bool = True
    remaining: bool = True
    power: bool = True
    nodes: bool = False
    """Gangs whose workers stay together on nodes, and gangs of four."""
    gains: bool = False
    """Jobs that speed each other up among the combinations."""
    hosts: bool = False
    """Hosts that may fall short, and workloads that ask for them."""
    drained: bool = False
    """Nodes without GPUs."""
    unready: bool = False
    """Workloads that are not isolated where others are."""
    wide: bool = False
    """Weights over twelve orders of magnitude in place of ordinary ones."""
    widest: bool = False
    """Weights over twenty-one orders of magnitude."""
    assumed: bool = False
    """Slowdowns that the owner declares, in place of some entries; not with ``energy``."""
    percent: bool = False
    """Memory of workloads in per cent of the GPU's."""
    mechanisms: bool = False
    """GPUs under MPS beside time-sliced ones, entries of both, and jobs that share by one only."""


INTERCHANGEABLE = Shape(gangs=False, models=False, memory=False, running=False, sets=False)
"""One-GPU jobs on GPUs that are all alike and free: the round problem as a pure matching."""


def instances(shape: Shape | None = None) -> st.SearchStrategy[Instance]:
    """Return a strategy of instances of the given shape."""
    shape = shape or Shape()
    return st.randoms(use_true_random=False).map(lambda draw: random_instance(draw, shape))


def random_instance(draw: Random, shape: Shape | None = None) -> Instance:
    """Return an instance of the given shape.

    With ``power`` every objective can be computed: jobs that run together without a known
    power are made pending.
    """
    shape = shape or Shape()
    cluster = _cluster(draw, shape)
    names = [f"w{k}" for k in range(draw.randint(1, shape.workloads))]
    models = sorted({gpu["model"] for node in cluster["nodes"] for gpu in node["gpus"]})
    data = {
        "name": "random",
        "cluster": cluster,
        "workloads": {name: _workload(draw, shape, models) for name in names},
        "slowdowns": _entries(draw, shape, cluster, names, models),
    }
    if shape.hosts:
        _add_hosts(draw, data)
    if shape.drained:
        _add_drained(draw, cluster)
    data["jobs"] = _jobs(draw, shape, data)
    if shape.shares and draw.random() < 0.3:
        data = _with_idle(data)
        if shape.unready:
            _make_unready(draw, data)
    instance = Instance.from_data(data)
    instance = with_mechanisms(draw, instance) if shape.mechanisms else instance
    instance = with_known_power(instance) if shape.power else instance
    instance = with_percent(draw, instance) if shape.percent else instance
    return with_assumed(draw, instance) if shape.assumed else instance


def with_mechanisms(draw: Random, instance: Instance) -> Instance:
    """Return the instance with two ways to share a GPU, each with entries of its own."""
    data = instance.to_data()
    cluster = data["cluster"]
    gpus = [gpu for node in cluster["nodes"] for gpu in node.get("gpus", ())]
    default = draw.choice(["mps", "time_sliced"])
    cluster["sharing"] = default
    for gpu in gpus:
        if (own := draw.choice([None, "mps", "time_sliced"])) is not None:
            gpu["sharing"] = own
    present = {gpu.get("sharing", default) for gpu in gpus}
    if "mps" not in {*present, default}:
        cluster["shares"] = [share for share in cluster.get("shares", []) if share == "idle"]
    slower = [draw.choice([0.8, 0.95, 1.1, 1.6]) for _ in data.get("slowdowns", ())]
    data["slowdowns"] = [
        _of_mode(row, mode, slower[k])
        for k, row in enumerate(data.get("slowdowns", ()))
        for mode in ("mps", "time_sliced")
        if mode in {*present, default} and draw.random() < 0.8
        if mode == "mps" or not any(isinstance(share, int) for share in row.get("share", ()))
    ]
    alone = _alone_on(data)
    for job in data["jobs"]:
        needs = draw.choice([None, None, None, "mps", "time_sliced"])
        there = {gpu.get("sharing", default) for gpu in gpus if gpu["id"] in job.get("gpus", ())}
        if needs is not None and (there <= {needs} or job["id"] in alone):
            job["sharing"] = needs
    return Instance.from_data(data)


def _of_mode(row: Data, mode: str, slower: float) -> Data:
    """Return an entry of a mode; time slicing has figures of its own."""
    if mode == "mps":
        return row | {"mode": mode}
    figures = ("slowdown", "upper", "p99")
    changed = {name: [round(v * slower, 3) for v in row[name]] for name in figures if row.get(name)}
    return row | changed | {"mode": mode}


def _alone_on(data: Data) -> set[str]:
    """Return the running jobs that share no GPU."""
    held = Counter(gpu for job in data["jobs"] for gpu in job.get("gpus", ()))
    return {job["id"] for job in data["jobs"] if all(held[g] == 1 for g in job.get("gpus", ()))}


def with_percent(draw: Random, instance: Instance) -> Instance:
    """Return the instance with the memory of some workloads in per cent of the GPU's."""
    percent = [12.5, 100 / 3, 40, 50, 60, 100]
    changed = {
        name: workload.replace(memory_mib=None, memory_percent=draw.choice(percent))
        for name, workload in instance.workloads.items()
        if workload.batch is None and draw.random() < 0.6
    }
    return instance.replace(workloads={**instance.workloads, **changed})


def with_assumed(draw: Random, instance: Instance) -> Instance:
    """Return the instance with declared slowdowns, fewer entries and sometimes larger sets."""
    most = max(instance.cluster.max_jobs_per_gpu, draw.choice([2, 3, 4]))
    pair, sets = draw.choice([1.0, 1.07, 1.3]), "product"
    assumed = draw.choice([{"pair": pair}, {"sets": sets}, *[{"pair": pair, "sets": sets}] * 4])
    left = draw.choice([0.0, 0.4, 0.8])
    kept = [k for k in range(len(instance.slowdowns)) if draw.random() < left]
    return instance.replace(
        cluster=instance.cluster.replace(max_jobs_per_gpu=most, assumed=assumed),
        slowdowns=[instance.slowdowns[k] for k in kept],
    )


def _add_hosts(draw: Random, data: Data) -> None:
    """Give some nodes and workloads figures of processors, memory or PCIe."""
    for node in data["cluster"]["nodes"]:
        if draw.random() < 0.8:
            node["host"] = {"cpu_cores": draw.choice([4, 8, 12])}
            if draw.random() < 0.4:
                node["host"]["pcie_bytes_s"] = draw.choice([1e9, 2e9])
    for workload in data["workloads"].values():
        if draw.random() < 0.7:
            workload["host"] = {"cpu_cores": draw.choice([1, 2, 3, 4, 6, 9])}
        if draw.random() < 0.4:
            workload["metrics"] = {"pcie_rx_bytes_s": draw.choice([0.2e9, 0.6e9, 1.1e9])}


def _add_drained(draw: Random, cluster: Data) -> None:
    for k in range(draw.choice([0, 1, 1, 2])):
        node = {"id": f"drained{k}", "gpus": []} | ({"rack": "r0"} if draw.random() < 0.3 else {})
        cluster["nodes"].insert(draw.randint(0, len(cluster["nodes"])), node)


def _with_idle(data: Data) -> Data:
    """Return the data with the share ``idle`` in place of a cap."""
    entries = [row for row in data["slowdowns"] if set(row["share"]) != {SHARES[0]}]
    workloads = {name: row | {"isolation": "blocks"} for name, row in data["workloads"].items()}
    cluster = data["cluster"] | {"shares": _idle_for_cap(data["cluster"]["shares"])}
    seated = [
        row | {"share": _idle_for_cap(row["share"])} if "share" in row else row
        for row in (*entries, *data["jobs"])
    ]
    slowdowns, jobs = seated[: len(entries)], seated[len(entries) :]
    return data | {
        "cluster": cluster,
        "workloads": workloads,
        "slowdowns": slowdowns,
        "jobs": jobs,
    }


def _make_unready(draw: Random, data: Data) -> None:
    """Take the isolation, and the entries with it, from some workloads."""
    unready = {name for name in data["workloads"] if draw.random() < 0.5}
    for name in unready:
        del data["workloads"][name]["isolation"]
    data["slowdowns"] = [
        row
        for row in data["slowdowns"]
        if not any(
            share == "idle" and name in unready
            for name, share in zip(row.get("pair") or row["set"], row["share"], strict=True)
        )
    ]


def _idle_for_cap(shares: list[int | None]) -> list[object]:
    return ["idle" if share == SHARES[0] else share for share in shares]


def with_known_power(instance: Instance) -> Instance:
    """Return the instance with its jobs pending if some run together without a known power."""
    try:
        require_fields(instance, "energy")
    except InputError:
        return instance.with_jobs(job.waiting for job in instance.jobs)
    return instance


def _cluster(draw: Random, shape: Shape) -> Data:
    gpus = [_gpu(draw, shape, k) for k in range(draw.randint(1, shape.gpus))]
    # Of some GPU models fewer jobs are taken, as told by what is drawn already.
    most = (None, 1, 2)[len(gpus) % 3] if shape.sets and shape.models else None
    gpus = [gpu | ({"max_jobs": most} if most and gpu["model"] == "B" else {}) for gpu in gpus]
    cut = draw.randint(0, len(gpus))
    cost = (None, {"A": 1.0, "B": 2.5}, {"A": 3.1, "B": 0.7})[(len(gpus) + cut) % 3]
    gpus = [gpu | ({"cost_per_hour": cost[gpu["model"]]} if cost else {}) for gpu in gpus]
    racks = [draw.choice([None, "r0", "r1"]) for _ in range(2)]
    nodes = [
        {"id": f"n{k}", "gpus": part} | ({"rack": rack} if rack else {})
        for k, (part, rack) in enumerate(zip((gpus[:cut], gpus[cut:]), racks, strict=True))
        if part
    ]
    return {
        "max_jobs_per_gpu": draw.choice([1, 2, 2, 2, 3]) if shape.sets else 2,
        "shares": draw.sample(SHARES, draw.randint(0, 3)) if shape.shares else [],
        "share_sum": draw.choice([100, 100, 120, 80]),
        "start_capped": shape.shares and draw.random() < 0.4,
        "gang_sharing": "whole" if shape.whole and draw.random() < 0.3 else "partial",
        "reserve_mib": draw.choice([0, 500]) if shape.memory else 0,
        "per_process_mib": draw.choice([0, 300]) if shape.memory else 0,
        "nodes": nodes,
    }


def _gpu(draw: Random, shape: Shape, k: int) -> Data:
    model = draw.choice(["A", "A", "B"]) if shape.models else "A"
    memory = draw.choice([8000, 16000]) if shape.memory else 16000
    return {"id": f"g{k}", "model": model, "memory_mib": memory}


def _workload(draw: Random, shape: Shape, models: list[str]) -> Data:
    workload: Data = {"memory_mib": draw.choice([1000, 3000, 5000, 7000]) if shape.memory else 1}
    if draw.random() < 0.7:
        shares = draw.sample(SHARES, draw.randint(1, 3))
        throughput = {share: round(draw.uniform(40, 100), 1) for share in shares}
        workload["throughput"] = {100: 100.0, **throughput}
    if shape.models:
        workload["speed"] = {model: round(draw.uniform(0.3, 1.2), 2) for model in models}
    if shape.power:
        workload["power_w"] = draw.randint(80, 250)
    if shape.batches and draw.random() < 0.4:
        workload["batch"] = _batch(draw)
    return workload


def _batch(draw: Random) -> Data:
    return {
        "size": draw.choice([48, 64]),
        "min": draw.choice([8, 16, 32]),
        "fixed_mib": draw.choice([500, 1000]),
        "mib_per_sample": draw.choice([20, 60]),
        "step_s": {"fixed": draw.choice([0.0, 0.004]), "per_sample": 0.003},
        "comm_s": draw.choice([0.0, 0.01, 0.1]),
        "overlap": draw.choice([1.0, 1.0, 2.0, 6.0]),
    }


def _entries(
    draw: Random, shape: Shape, cluster: Data, names: list[str], models: list[str]
) -> list[Data]:
    """Return entries, each combination at most once for a model and once for all of them."""
    found: dict[object, Data] = {}
    for size in range(2, cluster["max_jobs_per_gpu"] + 1):
        for members in combinations_with_replacement(names, size):
            for _ in range(draw.randint(1, 5)):
                shares = [draw.choice([None, *cluster["shares"]]) for _ in members]
                model = draw.choice([None, None, *models]) if shape.models else None
                order = zip(members, shares, strict=True)
                key = model, tuple(sorted((name, share_code(share)) for name, share in order))
                found.setdefault(key, _entry(draw, shape, list(members), shares, model))
    return list(found.values())


def _entry(
    draw: Random, shape: Shape, members: list[str], shares: list[int | None], model: str | None
) -> Data:
    least = draw.choice([0.5, 0.95]) if shape.gains else 0.95
    figures = {
        member: round(draw.uniform(least, 2.2), 3) for member in zip(members, shares, strict=True)
    }
    order = draw.sample(range(len(members)), len(members))
    members, shares = [members[k] for k in order], [shares[k] for k in order]
    entry: Data = {"pair" if len(members) == 2 else "set": members, "share": shares}
    if model is not None:
        entry["gpu_model"] = model
    if draw.random() < 0.1:
        return {**entry, "slowdown": None}
    slowdown = [figures[member] for member in zip(members, shares, strict=True)]
    entry["slowdown"] = slowdown
    if draw.random() < 0.4:
        entry["upper"] = [round(value * 1.1, 3) for value in slowdown]
    if shape.latency and draw.random() < 0.4:
        entry["p99"] = [round(value * 1.3, 3) for value in slowdown]
    if shape.power:
        entry["power_w"] = draw.randint(120, 400)
    return entry


def _jobs(draw: Random, shape: Shape, data: Data) -> list[Data]:
    jobs = []
    held: dict[str, int] = {}
    for k in range(draw.randint(1, shape.jobs)):
        job = _job(draw, shape, k, list(data["workloads"]))
        if shape.running and draw.random() < 0.3:
            job |= _running(draw, data, job, held)
        jobs.append(job)
    return jobs


def _job(draw: Random, shape: Shape, k: int, names: list[str]) -> Data:
    sizes = [1, 1, 1, 2, 2, 3, *[4] * shape.nodes]
    job: Data = {
        "id": f"j{k}",
        "workload": draw.choice(names),
        "workers": draw.choice(sizes) if shape.gangs else 1,
        "weight": _weight(draw, shape),
    }
    if shape.nodes and job["workers"] > 1 and draw.random() < 0.6:
        sizes = [n for n in range(1, job["workers"] + 1) if job["workers"] % n == 0]
        job[draw.choice(["workers_per_node", "workers_together"])] = draw.choice(sizes)
    if shape.remaining:
        job["remaining_s"] = draw.randint(300, 9000)
    if draw.random() < 0.7:
        job["gsla"] = round(draw.uniform(1.0, 2.5), 2)
    if shape.latency and draw.random() < 0.3:
        job["priority"] = "latency"
    return job


def _weight(draw: Random, shape: Shape) -> float:
    if shape.widest:
        return float(f"{10 ** draw.uniform(-12, 9):.4g}")
    if not shape.wide:
        return draw.choice([0.0, 0.5, 0.5, 1.0, 1.0, 1.0, 2.0, 2.0])
    digits = draw.choice([1, 3, 17])
    return float(f"{10 ** draw.uniform(-6, 6):.{digits}g}") if draw.random() < 0.9 else 0.0


def _running(draw: Random, data: Data, job: Data, held: dict[str, int]) -> Data:
    """Return where the job runs, with no regard to memory, entries or its gSLA."""
    cluster = data["cluster"]
    gpus = [gpu for node in cluster["nodes"] for gpu in node["gpus"]]
    model = draw.choice(gpus)["model"]
    room = cluster["max_jobs_per_gpu"]
    rooms = {g["id"]: min(room, g.get("max_jobs", room)) for g in gpus if g["model"] == model}
    free = [gpu for gpu, room in rooms.items() if held.get(gpu, 0) < room]
    if len(free) < job["workers"]:
        return {}
    chosen = draw.sample(free, job["workers"])
    for gpu in chosen:
        held[gpu] = held.get(gpu, 0) + 1
    place = {"state": "running", "gpus": chosen}
    if draw.random() < 0.7:
        place["share"] = [draw.choice([None, 40, *cluster["shares"]]) for _ in chosen]
    if "batch" in data["workloads"][job["workload"]] and draw.random() < 0.5:
        batch = data["workloads"][job["workload"]]["batch"]
        half = batch["size"] // 2
        place["sub_batch"] = half if half >= batch["min"] else batch["size"]
    return place
