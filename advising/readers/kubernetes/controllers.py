"""Jobs and services of controllers whose pods do not exist yet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, NamedTuple

from dovetail.advising.readers.kubernetes.manifests import KubeObject, Manifest, Objects
from dovetail.advising.readers.kubernetes.workloads import PodWork, work_of
from dovetail.instances._record import field_path
from dovetail.instances.errors import InputError

MOST_PODS: Final = 100_000
"""The most pods that the controllers of a file may ask for."""

_Replicas = tuple[int, Manifest]


class PodTemplate(NamedTuple):
    """A pod that a controller would make.

    Attributes
    ----------
    pod : KubeObject
        The pod.
    work : PodWork
        What it is a part of.
    reason : str or None
        Why it does not exist.
    """

    pod: KubeObject
    work: PodWork
    reason: str | None


def templates(objects: Objects, owners: Collection[str]) -> Iterator[PodTemplate]:
    """Yield the pods of controllers that own none in the file and have not ended.

    Parameters
    ----------
    objects : Objects
        The objects of the file.
    owners : collection of str
        What the pods of the file belong to, as ``NAMESPACE/NAME``.

    Raises
    ------
    InputError
        When there would be more than ``MOST_PODS``.
    """
    left = MOST_PODS
    for kind, controller in _CONTROLLERS.items():
        for each in objects.get(kind, ()):
            if each.key in owners or _owned(each) or _has_ended(each.manifest.part("status")):
                continue
            spec = each.manifest.part("spec")
            groups, group = controller.groups(spec), controller.group(spec)
            left -= groups * sum(count for count, _ in group)
            if left < 0:
                rule = f"must ask for at most {MOST_PODS} pods together with others"
                raise InputError(rule, field_path(each.manifest.path, "spec"))
            yield from _pods(each, kind, [group] * groups, controller.together)


def _pods(
    owner: KubeObject, kind: str, groups: list[list[_Replicas]], together: bool
) -> Iterator[PodTemplate]:
    spec = owner.manifest.part("spec")
    suspended = spec.flag("suspend") or spec.part("runPolicy").flag("suspend")
    reason = f"{kind} is suspended" if suspended else None
    number = 0
    for k, group in enumerate(groups):
        key = owner.key if len(groups) == 1 else f"{owner.key}-{k}"
        for template in (template for count, template in group for _ in range(count)):
            pod = KubeObject(owner.namespace, f"{owner.name}-{number}", template)
            work = work_of(pod)
            service = work.service or (kind in _SERVICES and _has_ports(template))
            joins = key if together else work.group
            yield PodTemplate(
                pod, work._replace(name=owner.name, group=joins, service=service), reason
            )
            number += 1


def _has_ports(template: Manifest) -> bool:
    return any(each.parts("ports") for each in template.part("spec").parts("containers"))


def _owned(each: KubeObject) -> bool:
    """Return whether another controller made it, which counts in its place."""
    return bool(each.manifest.part("metadata").parts("ownerReferences"))


def _has_ended(status: Manifest) -> bool:
    words = (status.text("jobStatus"), status.text("jobDeploymentStatus"))
    if not {"SUCCEEDED", "FAILED", "STOPPED", "Complete", "Failed"}.isdisjoint(words):
        return True
    if status.part("state").text("phase") in ("Completed", "Failed", "Aborted", "Terminated"):
        return True
    ends = ("Complete", "Completed", "Succeeded", "Failed")
    return any(
        each.text("type") in ends and each.text("status") == "True" for each in _conditions(status)
    )


def _conditions(status: Manifest) -> list[Manifest]:
    return status.parts("conditions") if isinstance(status.data.get("conditions"), list) else []


def _count(manifest: Manifest, key: str, usual: int = 1) -> int:
    count = manifest.count(key)
    return usual if count is None else count


def _plain(spec: Manifest) -> list[_Replicas]:
    return [(_count(spec, "replicas"), spec.part("template"))]


def _job(spec: Manifest) -> list[_Replicas]:
    return [(_count(spec, "parallelism"), spec.part("template"))]


def _kubeflow(spec: Manifest) -> list[_Replicas]:
    return [
        (_count(each, "replicas"), each.part("template"))
        for key in spec.data
        if key.endswith("ReplicaSpecs")
        for each in (spec.part(key, role) for role in spec.part(key).data)
    ]


def _ray_cluster(spec: Manifest) -> list[_Replicas]:
    workers = [
        (_count(group, "replicas") * _count(group, "numOfHosts"), group.part("template"))
        for group in spec.parts("workerGroupSpecs")
    ]
    head = spec.part("headGroupSpec")
    return [(1, head.part("template")), *workers] if head.data else workers


def _ray_job(spec: Manifest) -> list[_Replicas]:
    return _ray_cluster(spec.part("rayClusterSpec"))


def _job_set(spec: Manifest) -> list[_Replicas]:
    return [
        (_count(each, "replicas") * count, template)
        for each in spec.parts("replicatedJobs")
        for count, template in _job(each.part("template", "spec"))
    ]


def _leader_workers(spec: Manifest) -> list[_Replicas]:
    inner = spec.part("leaderWorkerTemplate")
    worker = inner.part("workerTemplate")
    leader = inner.part("leaderTemplate") if "leaderTemplate" in inner.data else worker
    return [(1, leader), (max(_count(inner, "size") - 1, 0), worker)]


def _volcano_job(spec: Manifest) -> list[_Replicas]:
    return [(_count(each, "replicas"), each.part("template")) for each in spec.parts("tasks")]


def _one(_spec: Manifest) -> int:
    return 1


class _Controller(NamedTuple):
    """How many pods of which templates are in a group, whether they work together, and groups."""

    group: Callable[[Manifest], list[_Replicas]]
    together: bool
    groups: Callable[[Manifest], int] = _one


_CONTROLLERS: Final[Mapping[str, _Controller]] = {
    **dict.fromkeys(("PyTorchJob", "MPIJob", "TFJob", "JAXJob"), _Controller(_kubeflow, True)),
    "RayJob": _Controller(_ray_job, True),
    "RayCluster": _Controller(_ray_cluster, True),
    "VolcanoJob": _Controller(_volcano_job, True),
    "JobSet": _Controller(_job_set, True),
    "LeaderWorkerSet": _Controller(_leader_workers, True, lambda spec: _count(spec, "replicas")),
    "Job": _Controller(_job, False),
    **dict.fromkeys(("Deployment", "StatefulSet"), _Controller(_plain, False)),
}
_SERVICES: Final = frozenset({"Deployment", "StatefulSet"})
