"""Worlds whose workloads have profiles."""

from __future__ import annotations

from dovetail.instances.instance import Instance


def profiled(workloads, nodes=1, gpus=1, slowdown=2.0, memory_mib=16000.0, **cluster):
    """Return ``nodes`` x ``gpus`` V100; every pair runs, at the same slowdown or as listed.

    ``workloads`` are fields by name; without ``memory_mib`` it is 1,000. ``slowdown`` is a number
    or a mapping from (workload, other) to the slowdowns of both, 2 for pairs it lacks.
    """
    names = list(workloads)
    pairs = [(a, b) for k, a in enumerate(names) for b in names[k:]]
    known = slowdown if isinstance(slowdown, dict) else dict.fromkeys(pairs, (slowdown, slowdown))
    gpu = {"model": "V100", "memory_mib": memory_mib}
    return Instance.from_data(
        {
            "format": "dovetail-instance/1",
            "name": "profiled",
            "cluster": {
                "nodes": [{"id": f"n{k}", "gpu_count": gpus, "gpu": gpu} for k in range(nodes)],
                **cluster,
            },
            "workloads": {name: {"memory_mib": 1000.0, **workloads[name]} for name in names},
            "jobs": [],
            "slowdowns": [
                {"pair": [a, b], "slowdown": list(known.get((a, b), (2.0, 2.0)))} for a, b in pairs
            ],
        }
    )


def util(fraction):
    """Return the fields of a workload of this GPU utilisation."""
    return {"metrics": {"gpu_util": fraction}}


def companions(history):
    """Return for each job that finished the others it was ever on a GPU with, by number."""
    stays = [stay for stay in history.stays if stay.ending != "out_of_memory"]
    return {
        a.job: {
            b.job
            for b in stays
            if b.job != a.job
            and set(a.gpus) & set(b.gpus)
            and a.start_s < b.end_s
            and b.start_s < a.end_s
        }
        for a in stays
    }
