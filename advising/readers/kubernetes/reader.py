"""Pods and nodes of Kubernetes as usage: ``kubectl get pods,nodes -A -o yaml``, KAI's snapshot."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from dovetail.advising.reader import Reader
from dovetail.advising.readers._mig import mig_instance
from dovetail.advising.readers.kubernetes.jobs import JOB_COLUMNS, is_uneven, job_row, jobs_of
from dovetail.advising.readers.kubernetes.manifests import (
    SNAPSHOT,
    ZIP_MAGIC,
    Objects,
    read_objects,
)
from dovetail.advising.readers.kubernetes.nodes import NodeRecord, node_record
from dovetail.advising.readers.kubernetes.pods import GpuPod, PodReader
from dovetail.advising.readers.kubernetes.workloads import least_members
from dovetail.advising.usage import NODE_COLUMNS, Omission, UsageRecords
from dovetail.instances.errors import InputError, source_name
from dovetail.toolkit.wording import number

_API_VERSION: Final = re.compile(r"""(?m)^[\s{"'-]*apiVersion["']?\s*:""")


def _recognises(_name: str, start: str) -> bool:
    if start.startswith(ZIP_MAGIC):
        return SNAPSHOT in start[:100]
    if start.lstrip().startswith("{"):
        return '"rawObjects"' in start or '"schedulerParams"' in start or '"apiVersion"' in start
    return _API_VERSION.search(start) is not None


def _read(path: Path) -> UsageRecords:
    try:
        return _usage(read_objects(path))
    except InputError as error:
        raise (error if error.source else error.at(source_name(path))) from None


def _usage(objects: Objects) -> UsageRecords:
    import pandas as pd

    nodes = {each.name: node_record(each) for each in objects.get("Node", ())}
    reader = PodReader(objects, nodes)
    pods = list(reader.pods())
    jobs = list(jobs_of(pods, least_members(objects.get("PodGroup", []))))
    return UsageRecords.of(
        pd.DataFrame([job_row(*job) for job in jobs], columns=list(JOB_COLUMNS)),
        pd.DataFrame(list(_node_rows(nodes)), columns=list(NODE_COLUMNS)),
        left_out=[Omission(count, "pods", why) for why, count in reader.left_out.items()],
        notes=[*_notes_on_pods(pods, nodes, jobs), *_notes_on_nodes(nodes)],
    )


def _node_rows(nodes: Mapping[str, NodeRecord]) -> Iterator[tuple[object, ...]]:
    for name, node in nodes.items():
        for each in node.gpus.values():
            own = (each.model, each.gpus, each.card_mib)
            yield (name, *own, node.rack, node.closed, each.sharing)


def _notes_on_pods(
    pods: Sequence[GpuPod],
    nodes: Mapping[str, NodeRecord],
    jobs: Sequence[tuple[str, list[GpuPod]]],
) -> Iterator[str]:
    instances = sum(mig_instance(pod.model or pod.request.kind) is not None for pod in pods)
    if instances:
        yield (
            "Instances of MIG, which count as the parts of a GPU that their names say, are used "
            f"by {number(instances, 'pod')}."
        )
    tickets = sum(pod.request.ticket or _is_replica(pod, nodes) for pod in pods)
    if tickets:
        yield (
            f"Replicas of GPUs are used by {number(tickets, 'pod')}: each counts as an equal part, "
            "but under time-slicing it limits neither memory nor SMs."
        )
    uneven = sum(is_uneven(members) for _, members in jobs)
    if uneven:
        yield (
            f"In {number(uneven, 'group')} of pods, the pods have different numbers of GPUs: for "
            "what must be on one node, their greatest common divisor counts."
        )
    shares = sum(not math.isnan(pod.request.sm_share) for pod in pods)
    if shares:
        yield f"A part of the SMs is requested by {number(shares, 'pod')}."


def _is_replica(pod: GpuPod, nodes: Mapping[str, NodeRecord]) -> bool:
    node = nodes.get(pod.node) if pod.node else None
    gpus = node.gpus.get(pod.request.kind) if node else None
    return gpus is not None and gpus.replicas > 1


def _notes_on_nodes(nodes: Mapping[str, NodeRecord]) -> Iterator[str]:
    with_gpus = [each for each in nodes.values() if each.gpus]
    closed = sum(each.closed for each in with_gpus)
    if closed:
        yield f"No pod may start on {number(closed, 'node')} with GPUs, cordoned or not ready."
    tainted = sum(each.tainted for each in with_gpus)
    if tainted:
        yield (
            f"Taints keep pods off {number(tainted, 'node')} with GPUs: which pods tolerate them "
            "was not read."
        )


KUBERNETES: Final = Reader(
    "kubectl get pods,nodes -A -o yaml (or json), or a snapshot of KAI", _recognises, _read
)
