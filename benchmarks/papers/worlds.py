"""The worlds of the papers' experiments, from the measured data next to the checkout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from dovetail.executor.simulation.worlds import synthetic_world, world_of
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance, Workload
from dovetail.instances.metrics import Metrics
from dovetail.papers.importers.gavel import gavel_data
from dovetail.papers.importers.lucid import complete_types, lucid_data

RELATIVES: Final = {
    "ResNet-18": "ResNet18 CIFAR-10",
    "ResNet-50": "ResNet50 ImageNet",
    "Transformer": "Transformer Multi30k",
    "LM": "LSTM Wikitext2",
    "Recommendation": "NeuMF MovieLens",
    "A3C": "PPO LunarLander",
    "CycleGAN": "DCGAN LSUN",
}
"""For each family of Gavel the model of Lucid whose utilisations stand in for those that Gavel did
not publish. The first four are the same model on the same data; of the others a relative."""


def gavel(data: Path, device: str, nodes: int, gpus_per_node: int = 8) -> Instance:
    """Return a cluster of one device with Gavel's pairs.

    Gavel published throughputs only. Policies that look at utilisations get those that Lucid
    measured of the model on an RTX 3090, at the nearest batch size; no memory is known, and the
    pairs that did not run are known as such.
    """
    table = _file(data, "gavel", "simulation_throughputs.json.gz")
    world = world_of(gavel_data(str(table)), nodes, gpus_per_node, [device])
    profiled = lucid_data(str(_file(data, "lucid"))).workloads("RTX 3090")
    return world.replace(
        workloads={
            name: workload.replace(metrics=_of_relative(name, workload, profiled))
            for name, workload in world.workloads.items()
        }
    )


def lucid(
    data: Path, nodes: int, gpus_per_node: int = 8, memory_mib: float | None = None
) -> Instance:
    """Return a cluster of RTX 3090 with Lucid's 52 types of which every pair was measured."""
    found = lucid_data(str(_file(data, "lucid")))
    complete = complete_types(found.measurements)
    return world_of(found, nodes, gpus_per_node, workloads=complete, memory_mib=memory_mib)


def named(name: str, data: Path, nodes: int, gpus_per_node: int = 8) -> Instance:
    """Return one of ``NAMES``."""
    return _WORLDS[name](data, nodes, gpus_per_node)


def _synthetic(_: Path, nodes: int, gpus_per_node: int) -> Instance:
    """Return the contention model's 32 workloads, with SM activity as GPU utilisation."""
    world = synthetic_world(32, nodes, gpus_per_node)
    return world.replace(
        workloads={
            name: w.replace(metrics=w.metrics and _as_utilisation(w.metrics))
            for name, w in world.workloads.items()
        }
    )


_WORLDS: Final[Mapping[str, Callable[[Path, int, int], Instance]]] = {
    "v100": lambda data, nodes, gpus: gavel(data, "v100", nodes, gpus),
    "p100": lambda data, nodes, gpus: gavel(data, "p100", nodes, gpus),
    "rtx3090": lucid,
    "synthetic": _synthetic,
}
NAMES: Final = tuple(_WORLDS)
"""``v100`` and ``p100``: Gavel's pairs; ``rtx3090``: Lucid's; ``synthetic``: not measured."""


def _as_utilisation(metrics: Metrics) -> Metrics:
    return metrics.replace(gpu_util=metrics.sm_active, mem_util=metrics.dram_active)


def _of_relative(name: str, workload: Workload, profiled: Mapping[str, Workload]) -> Metrics | None:
    relative = RELATIVES[workload.family or name]
    # In single precision, as Gavel ran; names end in b and the batch size.
    batches = {
        int(other.rpartition(" b")[2]): found.metrics
        for other, found in profiled.items()
        if other.startswith(relative) and not other.endswith("amp")
    }
    wanted = int(name.rpartition("batch size ")[2].rstrip(")")) if "batch size" in name else 0
    return batches[min(batches, key=lambda size: abs(size - wanted))]


def _file(data: Path, *parts: str) -> Path:
    place = data.joinpath(*parts)
    if not place.exists():
        raise InputError(
            "does not exist: fetch it (python benchmarks/fetch_data.py), or name another by --data",
            str(place),
        )
    return place
