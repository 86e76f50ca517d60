"""Pods that hold GPUs, ask for them, or have held them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from dovetail.advising.readers._mig import mig_instance
from dovetail.advising.readers.kubernetes.controllers import templates
from dovetail.advising.readers.kubernetes.manifests import KubeObject, Manifest, Objects
from dovetail.advising.readers.kubernetes.nodes import NodeRecord
from dovetail.advising.readers.kubernetes.requests import (
    GpuRequest,
    claimed,
    devices_of,
    request_of,
)
from dovetail.advising.readers.kubernetes.workloads import PodWork, work_of

_RESERVATIONS: Final = frozenset({"kai-resource-reservation", "runai-reservation"})
"""Namespaces of pods by which KAI holds a GPU for those that share it."""

_SCALING: Final = frozenset({"kai-scale-adjust", "runai-scale-adjust"})
_GPU_GROUP: Final = "runai-gpu-group"
_RESERVED: Final = "run.ai/reserve_for_gpu_index"
_ENDED: Final = frozenset({"Succeeded", "Failed"})

NO_GPU: Final = "ask for no GPU"
RESERVE: Final = "hold GPUs for pods that share them (KAI)"
UNUSED: Final = "ended or are deleted before they had a GPU"


@dataclass(frozen=True, slots=True)
class GpuPod:
    """A pod with GPUs.

    Attributes
    ----------
    key : str
        ``NAMESPACE/NAME``.
    request : GpuRequest
        What it asks for; a replica of a GPU is a part of it.
    work : PodWork
        What it is a part of.
    state : str
        As in ``UsageRecords``.
    reason : str or None
        Why it waits.
    node, model : str or None
        Its node, and the GPU model there or that it asks for.
    card_mib : float
        The memory of one of its GPUs.
    devices : tuple of str
        Its GPUs, each an empty text if the records do not name it.
    submit_s, start_s, end_s : float
        As in ``UsageRecords``.
    """

    key: str
    request: GpuRequest
    work: PodWork
    state: str
    reason: str | None
    node: str | None
    model: str | None
    card_mib: float
    devices: tuple[str, ...]
    submit_s: float
    start_s: float
    end_s: float


class PodReader:
    """Reads the pods of a file, and counts those that it leaves out.

    Parameters
    ----------
    objects : Objects
        The objects of the file.
    nodes : mapping of str to NodeRecord
        The nodes of the file by name.

    Attributes
    ----------
    left_out : Counter of str
        How many pods were left out, by the reason.
    """

    def __init__(self, objects: Objects, nodes: Mapping[str, NodeRecord]) -> None:
        self.left_out: Counter[str] = Counter()
        self._objects = objects
        self._nodes = nodes
        kinds = ("ResourceClaim", "ResourceClaimTemplate")
        claims = (each for kind in kinds for each in objects.get(kind, ()))
        self._claims = {each.key: each.manifest for each in claims}
        pods = objects.get("Pod", ())
        self._reserved = dict(_reserved(each) for each in pods if each.namespace in _RESERVATIONS)

    def pods(self) -> Iterator[GpuPod]:
        """Yield the pods with GPUs, and those that controllers without pods would make."""
        owners: set[str] = set()
        for pod in self._objects.get("Pod", ()):
            work = work_of(pod)
            owners.update(f"{pod.namespace}/{name}" for name in work.owners)
            found = self._pod(pod, work)
            if found is not None:
                yield found
        for template in templates(self._objects, owners):
            found = self._pod(template.pod, template.work, template.reason)
            if found is not None:
                yield found

    def _pod(self, pod: KubeObject, work: PodWork, reason: str | None = None) -> GpuPod | None:
        if pod.namespace in _RESERVATIONS | _SCALING:
            self.left_out[RESERVE] += 1
            return None
        metadata = pod.manifest.part("metadata")
        spec, status = pod.manifest.part("spec"), pod.manifest.part("status")
        request = request_of(spec, metadata.part("annotations"))
        if not request.gpus and not request.unread:
            request = claimed(pod.manifest, self._claims, pod.namespace)
        if not request.gpus:
            why = f"ask for GPUs by resources that are not read ({request.unread})"
            self.left_out[why if request.unread else NO_GPU] += 1
            return None
        node = spec.text("nodeName")
        state = _state(status, node)
        started = status.moment_s("startTime")
        is_deleted = metadata.text("deletionTimestamp") is not None
        if (state == "ended" and math.isnan(started)) or (state == "waiting" and is_deleted):
            self.left_out[UNUSED] += 1
            return None
        return self._of(pod, work, request, state, node, reason or _why(status, state))

    def _of(
        self,
        pod: KubeObject,
        work: PodWork,
        request: GpuRequest,
        state: str,
        node: str | None,
        reason: str | None,
    ) -> GpuPod:
        metadata = pod.manifest.part("metadata")
        spec, status = pod.manifest.part("spec"), pod.manifest.part("status")
        record = self._nodes.get(node) if node else None
        gpus = record.gpus.get(request.kind) if record else None
        if gpus is not None and gpus.replicas > 1:
            request = request._replace(fraction=1 / gpus.replicas)
        wanted = spec.part("nodeSelector").text("nvidia.com/gpu.product")
        model = gpus.model if gpus is not None else wanted or self._model(request.kind)
        # Of the strategy single, only the model tells instances of MIG.
        mig = mig_instance(model or "") or mig_instance(request.kind)
        if mig is not None:
            request = request._replace(fraction=mig.fraction)
        return GpuPod(
            pod.key,
            request,
            work,
            state,
            reason,
            node,
            model,
            gpus.card_mib if gpus is not None else math.nan,
            self._devices(metadata, request.gpus),
            metadata.moment_s("creationTimestamp"),
            status.moment_s("startTime"),
            _end_s(status) if state == "ended" else math.nan,
        )

    def _model(self, kind: str) -> str | None:
        """Return the model of instances of MIG, on whichever node they are."""
        if kind == "gpu":
            return None
        models = {each.gpus[kind].model for each in self._nodes.values() if kind in each.gpus}
        return models.pop() if len(models) == 1 else f"NVIDIA {kind.upper()}"

    def _devices(self, metadata: Manifest, gpus: int) -> tuple[str, ...]:
        named = devices_of(metadata.part("annotations").data)
        if not named:
            labels = metadata.part("labels")
            groups = [
                labels.text(name)
                for name in labels.data
                if name == _GPU_GROUP or name.startswith(f"{_GPU_GROUP}/")
            ]
            named = [self._reserved.get(group) or group for group in groups if group]
        return tuple(named) if len(named) == gpus else ("",) * gpus


def _reserved(pod: KubeObject) -> tuple[str | None, str | None]:
    """Return the group of a reserved GPU, and the GPU."""
    metadata = pod.manifest.part("metadata")
    return metadata.part("labels").text(_GPU_GROUP), metadata.part("annotations").text(_RESERVED)


def _state(status: Manifest, node: str | None) -> str:
    """Return the state of a pod: one that has a node holds its GPUs, also while it starts."""
    if status.text("phase") in _ENDED:
        return "ended"
    return "waiting" if node is None else "running"


def _why(status: Manifest, state: str) -> str | None:
    if state != "waiting":
        return None
    for condition in status.parts("conditions"):
        if condition.text("type") == "PodScheduled" and condition.text("status") != "True":
            words = (condition.text("reason"), condition.text("message"))
            return ": ".join(word for word in words if word) or None
    return None


def _end_s(status: Manifest) -> float:
    """Return when the last container ended, NaN if none says when it did."""
    ends = (
        each.part("state", "terminated").moment_s("finishedAt")
        for each in status.parts("containerStatuses")
    )
    return max((end for end in ends if not math.isnan(end)), default=math.nan)
