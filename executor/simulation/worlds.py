"""Worlds to simulate in: instances with a cluster, workloads and their true slowdowns.

The jobs of a world are not read. Its slowdowns are measured or come from the synthetic contention
model of ``instances.generate``, which policies never see. Two workloads without an entry, or with
``slowdown: null``, may not share.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dovetail.instances._record import listed, shown
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.files import read_dataset
from dovetail.instances.datasets.repository import is_repository
from dovetail.instances.errors import InputError
from dovetail.instances.files import read_instance
from dovetail.instances.generate import MODELS, generate
from dovetail.instances.instance import Cluster, GpuModel, Instance, Node, Workload
from dovetail.instances.reading.contents import FilePath
from dovetail.instances.slowdowns.columns import Slowdowns
from dovetail.instances.slowdowns.shares import share_code

_SPLITS: Final = (10, 20, 30, 40, 50, 60, 70, 80, 90)
_NODE_GPUS: Final = 8
"""GPUs per node in ``generate``, whose nodes use the models in turn."""


def read_source(path: FilePath) -> Instance | DataSet:
    """Return the source of a world, for ``world_of``.

    Parameters
    ----------
    path : str or path
        A data set (a folder or a repository) or an instance (any other file).

    Raises
    ------
    InputError
        If it cannot be read or breaks a rule of its format.
    """
    if Path(path).is_dir() or is_repository(path):
        return read_dataset(path)
    return read_instance(path)


def synthetic_world(
    workloads: int,
    nodes: int,
    gpus_per_node: int = 8,
    gpu_models: Sequence[str] = ("V100",),
    *,
    splits: bool = False,
    seed: int = 0,
) -> Instance:
    """Return a world made by the synthetic contention model.

    Parameters
    ----------
    workloads : int
        Number of different workloads, with metrics, throughput by share, memory and power.
    nodes, gpus_per_node : int
        Size of the cluster; the nodes use the models in turn.
    gpu_models : sequence of str
        Keys of ``instances.generate.MODELS``; the first has speed 1.
    splits : bool
        Whether jobs may also share at caps of 10 to 90 % of the SMs.
    seed : int
        Seed of the model.

    Raises
    ------
    InputError
        If an argument is out of range.
    """
    made = generate(
        1,
        seed=seed,
        gpus=_NODE_GPUS * len(gpu_models),
        workloads=workloads,
        shares=_SPLITS if splits else (),
        gpu_models=gpu_models,
    )
    named = made.replace(name=f"synthetic-{workloads}-seed-{seed}")
    return world_of(named, nodes, gpus_per_node, gpu_models)


def world_of(
    source: DataSet | Instance,
    nodes: int | None = None,
    gpus_per_node: int = 8,
    gpu_models: Sequence[str] | None = None,
    *,
    workloads: Sequence[str] | None = None,
    memory_mib: float | None = None,
) -> Instance:
    """Return a world with the workloads and the slowdowns of a data set or an instance.

    Parameters
    ----------
    source : DataSet or Instance
        Source of the slowdowns. For a data set they are averages, as in ``DataSet.instance``, and
        the speed of a workload on a model is its solo throughput there over its solo throughput on
        the first of ``gpu_models``.
    nodes : int, optional
        Nodes of the cluster. By default an instance keeps its own nodes, and a data set gets one
        for each GPU model.
    gpus_per_node : int
        GPUs of each node.
    gpu_models : sequence of str, optional
        Models of the source, which the nodes use in turn; by default all models of the instance, or
        the first model of the data set.
    workloads : sequence of str, optional
        Workloads to include; by default all that are profiled on every model.
    memory_mib : float, optional
        Memory of the GPUs of a data set; by default the model's in ``instances.generate.MODELS``.

    Returns
    -------
    Instance
        The world, without jobs.

    Raises
    ------
    InputError
        If a model or a workload is not in the source, a number is out of range, or the memory of a
        GPU model is needed but unknown.
    """
    whole = source if isinstance(source, Instance) else _of_data(source, gpu_models, memory_mib)
    taken = _only(whole, workloads)
    if nodes is None and isinstance(source, Instance) and gpu_models is None:
        return taken
    kinds = _kinds(taken)
    chosen = tuple(gpu_models or kinds)
    for name in chosen:
        if name not in kinds:
            raise InputError(f"must be one of {listed(kinds)}, got {shown(name)}", "gpu_models")
    count = len(chosen) if nodes is None else nodes
    cluster = _cluster(taken.cluster, [kinds[name] for name in chosen], count, gpus_per_node)
    return taken.replace(cluster=cluster)


def _cluster(rules: Cluster, kinds: Sequence[GpuModel], nodes: int, gpus_per_node: int) -> Cluster:
    for name, count in (("nodes", nodes), ("gpus_per_node", gpus_per_node)):
        if count < 1:
            raise InputError(f"must be >= 1, got {count}", name)
    made = [
        Node(id=f"n{k}", gpu_count=gpus_per_node, gpu=kinds[k % len(kinds)]) for k in range(nodes)
    ]
    return rules.replace(nodes=tuple(made))


def _kinds(instance: Instance) -> dict[str, GpuModel]:
    """Return the GPU models of an instance by name, in the order of the file."""
    found: dict[str, GpuModel] = {}
    for place in instance.places.values():
        gpu = place.gpu
        known = GpuModel(**gpu.model_dump(exclude={"id"}))
        found.setdefault(gpu.model, known)
    return found


def _only(instance: Instance, names: Sequence[str] | None) -> Instance:
    """Return the instance without jobs, with only these workloads and their entries."""
    taken = tuple(instance.workloads) if names is None else tuple(names)
    for k, name in enumerate(taken):
        if name not in instance.workloads:
            known = listed(instance.workloads)
            raise InputError(f"must be one of {known}, got {shown(name)}", f"workloads[{k}]")
    entries = instance.slowdowns.among(taken)
    kept = {name: instance.workloads[name] for name in taken}
    return instance.replace(jobs=(), workloads=kept, slowdowns=entries)


def _of_data(data: DataSet, gpu_models: Sequence[str] | None, memory_mib: float | None) -> Instance:
    """Return a data set as an instance with one GPU of each model."""
    models = tuple(gpu_models or data.gpu_models[:1])
    found = [_on_model(data, model, memory_mib) for model in models]
    first = found[0]
    names = [name for name in first.workloads if len(models) == 1 or _ran_on_all(name, found)]
    cluster = first.cluster.replace(
        max_jobs_per_gpu=max(one.cluster.max_jobs_per_gpu for one in found),
        shares=tuple(sorted({s for one in found for s in one.cluster.shares}, key=share_code)),
        nodes=tuple(one.cluster.nodes[0].replace(id=f"n{k}") for k, one in enumerate(found)),
    )
    return Instance(
        name="-".join([data.name, *models]),
        cluster=cluster,
        workloads={name: _on_models(name, models, found) for name in names},
        jobs=(),
        slowdowns=Slowdowns.joined([one.slowdowns.among(names) for one in found]),
    )


def _on_model(data: DataSet, model: str, memory_mib: float | None) -> Instance:
    known = {name.upper(): gpu.memory_mib for name, (gpu, _) in MODELS.items()}
    memory = known.get(model.upper().removeprefix("NVIDIA ")) if memory_mib is None else memory_mib
    return data.instance(model, 1, memory_mib=memory)


def _ran_on_all(name: str, found: Sequence[Instance]) -> bool:
    known = (one.workloads.get(name) for one in found)
    return all(workload is not None and 100 in workload.throughput for workload in known)


def _on_models(name: str, models: Sequence[str], found: Sequence[Instance]) -> Workload:
    """Return a workload as on the first model, with its speed on each relative to the first."""
    on = [one.workloads[name] for one in found]
    if len(on) == 1:
        return on[0]
    reference = on[0].throughput[100]
    return on[0].replace(
        memory_mib=max(workload.memory_mib or 0.0 for workload in on),
        speed={m: w.throughput[100] / reference for m, w in zip(models, on, strict=True)},
    )
