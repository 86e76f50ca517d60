"""The GPUs that a pod asks for, in the words of each scheduler and device plugin."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from dovetail.advising.readers.kubernetes.manifests import Manifest

GPU: Final = "nvidia.com/gpu"
MIG: Final = "nvidia.com/mig-"
SHARED: Final = ".shared"

_HAMI: Final = "nvidia.com/"
_VOLCANO: Final = "volcano.sh/"
_VOLCANO_MEMORY: Final = "volcano.sh/gpu-memory"
_VOLCANO_NUMBER: Final = "volcano.sh/gpu-number"
_VOLCANO_PARTS: Final = "volcano.sh/vgpu-number"
_KNOWN_PARTS: Final = frozenset(
    f"{prefix}{word}"
    for prefix in (f"{_HAMI}gpu", f"{_VOLCANO}vgpu-")
    for word in ("mem", "memory", "mem-percentage", "memory-percentage", "cores")
)

_ALL_SMS: Final = 100.0

MODES: Final[Mapping[str | None, str]] = {
    "mps": "mps",
    "sm-sharing": "mps",
    "time-slicing": "time_sliced",
    "hami-core": "time_sliced",
}
"""Ways to share a GPU in the words of NVIDIA's device plugin, of KAI and of HAMi. HAMi's own limits
do not make kernels of several processes run at once: they take turns."""

_MODE_ANNOTATIONS: Final = ("kai.scheduler/gpu-compute-sharing-mode", "nvidia.com/vgpu-mode")
"""KAI keeps pods with different modes apart, and HAMi takes GPUs of the mode only."""


class GpuRequest(NamedTuple):
    """The GPUs that a pod asks for.

    Attributes
    ----------
    gpus : int
        How many GPUs it has a part of; 0 if none.
    kind : str
        ``gpu``, or ``mig-PROFILE`` for instances of MIG.
    fraction, memory_mib, sm_share : float
        The part, the memory and the part of the SMs of each GPU, NaN if it does not ask for one.
    ticket : bool
        Whether it asks for replicas of GPUs, of which a node's label says how many there are.
    unread : str
        A resource that is a GPU by its name, but of a kind that is not read; empty if none.
    sharing : str or None
        The only way in which it shares a GPU, as in an instance; None for any.
    """

    gpus: int = 0
    kind: str = "gpu"
    fraction: float = math.nan
    memory_mib: float = math.nan
    sm_share: float = math.nan
    ticket: bool = False
    unread: str = ""
    sharing: str | None = None


def request_of(spec: Manifest, annotations: Manifest) -> GpuRequest:
    """Return what a pod with this specification and these annotations asks for.

    Numbers of GPUs count as Kubernetes counts them: the sum of the containers, or what an init
    container needs before they start if that is more; sidecars run beside both.

    Raises
    ------
    InputError
        When a number of GPUs, a fraction or a memory is out of range.
    """
    asked = _asked(spec, annotations)
    named = (annotations.text(name) for name in _MODE_ANNOTATIONS)
    return asked._replace(sharing=next((MODES[each] for each in named if each in MODES), None))


def _asked(spec: Manifest, annotations: Manifest) -> GpuRequest:
    containers = [_resources(each) for each in spec.parts("containers")]
    early = [(_resources(each), _is_sidecar(each)) for each in spec.parts("initContainers")]
    all_resources = [*containers, *(each for each, _ in early)]
    names = {name for each in all_resources for name in each.data}
    numbers = {name: _number(name, containers, early) for name in names if _counts(name)}
    counted = {name: count for name, count in numbers.items() if count}
    if len(counted) > 1:
        return GpuRequest(unread=" and ".join(sorted(counted)))
    if counted:
        return _of_resource(*next(iter(counted.items())), all_resources)
    if any("gpumem" in name or "gpucores" in name for name in names):
        return _of_resource(GPU, 1, all_resources)  # HAMi gives one GPU if the number is missing
    memory_mib = _largest(_VOLCANO_MEMORY, all_resources)
    if memory_mib > 0:
        return GpuRequest(1, memory_mib=memory_mib)
    if spec.text("schedulerName") != "default-scheduler":
        asked = _of_kai(annotations)
        if asked.gpus:
            return asked
    return GpuRequest(unread=next((name for name in sorted(names) if _is_unread(name)), ""))


def _resources(container: Manifest) -> Manifest:
    """Return the requests of a container, with its limits in their place if it has both."""
    resources = container.part("resources")
    requests, limits = resources.part("requests"), resources.part("limits")
    if not limits.data:
        return requests
    return Manifest({**requests.data, **limits.data}, limits.path)


def _is_sidecar(container: Manifest) -> bool:
    return container.text("restartPolicy") == "Always"


def _counts(name: str) -> bool:
    return name in (GPU, GPU + SHARED, _VOLCANO_NUMBER, _VOLCANO_PARTS) or name.startswith(MIG)


def _is_unread(name: str) -> bool:
    """Return whether a resource is a GPU by its name."""
    return name not in _KNOWN_PARTS and "gpu" in name.lower()


def _number(name: str, containers: list[Manifest], early: list[tuple[Manifest, bool]]) -> int:
    beside = most = 0
    for resources, sidecar in early:
        count = resources.count(name) or 0
        if sidecar:
            beside += count
        else:
            most = max(most, beside + count)
    together = sum(each.count(name) or 0 for each in containers) + beside
    return max(most, together)


def _of_resource(name: str, count: int, resources: list[Manifest]) -> GpuRequest:
    kind = name.removeprefix(_HAMI).removesuffix(SHARED) if name.startswith(MIG) else "gpu"
    ticket = name.endswith(SHARED)
    if name == GPU:
        parts = _HAMI + "gpu"
        words = ("mem", "mem-percentage")
    elif name == _VOLCANO_PARTS:
        parts = _VOLCANO + "vgpu-"
        words = ("memory", "memory-percentage")
    else:
        return GpuRequest(count, kind, ticket=ticket)
    memory_mib = _largest(parts + words[0], resources)
    percentage = _largest(parts + words[1], resources, _ALL_SMS)
    cores = _largest(parts + "cores", resources, _ALL_SMS)
    return GpuRequest(
        count,
        fraction=percentage / 100 if percentage > 0 and not memory_mib > 0 else math.nan,
        memory_mib=memory_mib if memory_mib > 0 else math.nan,
        sm_share=cores / 100 if cores > 0 else math.nan,
    )


def _largest(name: str, resources: list[Manifest], most: float = math.inf) -> float:
    return max((each.number(name, most=most) for each in resources if name in each.data), default=0)


def _of_kai(annotations: Manifest) -> GpuRequest:
    """Return a part of a GPU that the annotations of KAI ask for."""
    fraction = annotations.number("gpu-fraction", most=1.0)
    memory_mib = annotations.number("gpu-memory")
    if not (fraction > 0 or memory_mib > 0):
        return GpuRequest()
    if fraction > 0 and memory_mib > 0:
        rule = "must not be given beside gpu-memory"
        raise annotations.broken("gpu-fraction", rule)
    devices = annotations.count("gpu-fraction-num-devices")
    return GpuRequest(
        1 if devices is None else devices,
        fraction=fraction if fraction > 0 else math.nan,
        memory_mib=memory_mib if memory_mib > 0 else math.nan,
    )


def devices_of(annotations: Mapping[str, object]) -> list[str]:
    """Return the GPUs that HAMi or Volcano have assigned to a pod, empty if none are named."""
    for name in ("hami.io/vgpu-devices-allocated", "volcano.sh/vgpu-ids-new"):
        text = annotations.get(name)
        if isinstance(text, str):
            devices = (each for part in text.split(";") for each in part.split(":"))
            return [each.split(",")[0].strip() for each in devices if each.strip()]
    text = annotations.get("volcano.sh/gpu-index")
    return [] if text is None else [each.strip() for each in str(text).split(",") if each.strip()]


def claimed(pod: Manifest, claims: Mapping[str, Manifest], namespace: str) -> GpuRequest:
    """Return the GPUs that a pod claims as devices (dynamic resource allocation).

    Parameters
    ----------
    pod : Manifest
        The pod.
    claims : mapping of str to Manifest
        Claims and templates of claims by ``NAMESPACE/NAME``.
    namespace : str
        The namespace of the pod.
    """
    wanted = pod.part("spec").parts("resourceClaims")
    if not wanted:
        return GpuRequest()
    made = {
        each.text("name"): each.text("resourceClaimName")
        for each in pod.part("status").parts("resourceClaimStatuses")
    }
    gpus = 0
    for each in wanted:
        names = (
            made.get(each.text("name")),
            each.text("resourceClaimName"),
            each.text("resourceClaimTemplateName"),
        )
        keys = (f"{namespace}/{name}" for name in names if name)
        found = next((claims[key] for key in keys if key in claims), None)
        if found is None:
            return GpuRequest(unread="claims of devices that the file does not hold")
        gpus += _devices(found)
    return GpuRequest(gpus)


def _devices(claim: Manifest) -> int:
    """Return how many whole GPUs a claim or a template of claims asks for."""
    spec = claim.part("spec")
    devices = (spec.part("spec") if "spec" in spec.data else spec).part("devices")
    gpus = 0
    for request in devices.parts("requests"):
        exact = request.part("exactly") if "exactly" in request.data else request
        if exact.text("deviceClassName") == "gpu.nvidia.com":
            count = exact.count("count")
            gpus += 1 if count is None else count
    return gpus
