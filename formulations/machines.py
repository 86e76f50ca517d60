"""A cluster as arrays: its GPUs numbered in the order of the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np

from dovetail.formulations.rules import room_mib
from dovetail.instances.instance import Cluster


class Machines:
    """A cluster with its GPUs numbered in the order of the file.

    Attributes
    ----------
    rules : Cluster
        The record: jobs per GPU, shares, reserves.
    gpu_ids, node_ids : tuple of str
        Names of the G GPUs and N nodes.
    node, rack, model : list of int
        The index of each GPU's node, rack and model.
    models : tuple of str
        Names of the GPU models.
    memory_mib : list of float
        Memory of each GPU without the reserved part.
    most_jobs : list of int
        How many jobs may be on each GPU.
    node_gpus : list of list of int
        The GPUs of each node; the list may be empty.
    rack_of_node : (N,) int
        The index of the rack of each node; nodes without a rack form one together.
    """

    def __init__(self, rules: Cluster) -> None:
        self.rules = rules
        devices = [(n, node, gpu) for n, node in enumerate(rules.nodes) for gpu in node.devices]
        racks: dict[str | None, int] = {}
        self.node_ids = tuple(node.id for node in rules.nodes)
        self.gpu_ids = tuple(gpu.id for _, _, gpu in devices)
        self.models = tuple(dict.fromkeys(gpu.model for _, _, gpu in devices))
        self.node = [n for n, _, _ in devices]
        of_node = [racks.setdefault(node.rack, len(racks)) for node in rules.nodes]
        self.rack_of_node = np.array(of_node, dtype=np.int64)
        self.rack = [of_node[n] for n in self.node]
        self.model = [self.models.index(gpu.model) for _, _, gpu in devices]
        self.memory_mib = [gpu.memory_mib - rules.reserve_mib for _, _, gpu in devices]
        most = rules.most_jobs()
        self.most_jobs = [most[gpu.model] for _, _, gpu in devices]
        self.node_gpus: list[list[int]] = [[] for _ in rules.nodes]
        for gpu, node in enumerate(self.node):
            self.node_gpus[node].append(gpu)

    @property
    def fewest_jobs(self) -> int:
        """The number of jobs that every GPU may hold."""
        return min(self.most_jobs, default=self.rules.max_jobs_per_gpu)

    def __len__(self) -> int:
        return len(self.gpu_ids)

    @cached_property
    def number(self) -> Mapping[str, int]:
        """The number of each GPU by its id."""
        return {gpu: k for k, gpu in enumerate(self.gpu_ids)}

    def names(self, gpus: Iterable[int]) -> tuple[str, ...]:
        """Return the ids of GPUs."""
        return tuple([self.gpu_ids[gpu] for gpu in gpus])

    @cached_property
    def gpu_type(self) -> list[int]:
        """The index in ``gpu_types`` of each GPU."""
        index = {each: k for k, each in enumerate(self.gpu_types)}
        found = zip(self.model, self.memory_mib, strict=True)
        return [index[self.models[model], memory] for model, memory in found]

    @cached_property
    def gpu_types(self) -> tuple[tuple[str, float], ...]:
        """The distinct models and memories of GPUs."""
        found = zip(self.model, self.memory_mib, strict=True)
        return tuple(dict.fromkeys((self.models[model], memory) for model, memory in found))

    @cached_property
    def gpu_room_mib(self) -> list[float]:
        """The most memory that jobs may need on each GPU, in MiB."""
        return list(map(room_mib, self.memory_mib))

    @cached_property
    def memory_by_model(self) -> list[tuple[float, float]]:
        """The least and the most memory that jobs may need on a GPU of each model, in MiB."""
        held: list[list[float]] = [[] for _ in self.models]
        for model, memory in zip(self.model, self.memory_mib, strict=True):
            held[model].append(memory)
        return [(room_mib(min(memory)), room_mib(max(memory))) for memory in held]
