"""What a pod is a part of: its kind of work, its user, its group, and whether it serves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from dovetail.advising.readers.kubernetes.manifests import KubeObject, Manifest

_WORK_LABELS: Final = (
    "ray.io/originated-from-cr-name",
    "ray.io/cluster",
    "training.kubeflow.org/job-name",
    "leaderworkerset.sigs.k8s.io/name",
    "jobset.sigs.k8s.io/jobset-name",
    "volcano.sh/job-name",
    "serving.kserve.io/inferenceservice",
)
"""Labels that name the kind of work above the pod's owner."""

_USER_LABELS: Final = ("hub.jupyter.org/username", "run.ai/user", "user", "owner")
_GROUP_ANNOTATIONS: Final = ("scheduling.k8s.io/group-name", "pod-group-name")
_GROUP_LABELS: Final = (
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "kueue.x-k8s.io/pod-group-name",
    "leaderworkerset.sigs.k8s.io/group-key",
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
)
"""What names the group of pods that start together: of Volcano and kube-batch, of KAI, of the
coscheduling plugin, of Kueue, and of controllers whose pods work together."""

_ONE_BY_ONE: Final = frozenset({"ReplicaSet", "DaemonSet", "Deployment"})
"""Owners whose pods work alone: a group that a scheduler made for them is none."""

_SERVING_LABELS: Final = ("serving.kserve.io/inferenceservice", "serving.knative.dev/service")
_LATENCY_CLASSES: Final = frozenset({"LSE", "LSR", "LS"})
"""Classes of Koordinator's label ``koordinator.sh/qosClass`` for pods that answer requests."""

_CRON_STAMP: Final = re.compile(r"-[0-9]{8,}$")


class PodWork(NamedTuple):
    """What a pod is a part of.

    Attributes
    ----------
    name, user : str
        The kind of work, and its owner.
    group : str or None
        The group of pods that start together.
    alone : bool
        Whether the pods of its owner work alone, so that a group counts only if it is one by its
        own record.
    service : bool
        Whether it answers requests.
    owners : tuple of str
        Names of what it may belong to, to find jobs without pods.
    """

    name: str
    user: str
    group: str | None
    alone: bool
    service: bool
    owners: tuple[str, ...]


def work_of(pod: KubeObject) -> PodWork:
    """Return what a pod is a part of."""
    metadata = pod.manifest.part("metadata")
    labels, annotations = metadata.part("labels"), metadata.part("annotations")
    owner = _controller(metadata)
    kind = owner.text("kind") if owner else None
    named = _first(labels, _WORK_LABELS)
    above = _above(owner, labels) or metadata.text("generateName") or pod.name
    owners = [each.text("name") for each in metadata.parts("ownerReferences")]
    owners += [above, *(labels.text(name) for name in _WORK_LABELS)]
    group = _first(annotations, _GROUP_ANNOTATIONS) or _first(labels, _GROUP_LABELS)
    return PodWork(
        named or above.rstrip("-"),
        _first(labels, _USER_LABELS) or _first(annotations, _USER_LABELS) or pod.namespace,
        group and f"{pod.namespace}/{group}",
        kind in _ONE_BY_ONE,
        _serves(pod.manifest.part("spec"), labels, kind),
        tuple(dict.fromkeys(name for name in owners if name)),
    )


def _first(texts: Manifest, names: tuple[str, ...]) -> str | None:
    return next((text for name in names if (text := texts.text(name)) is not None), None)


def _controller(metadata: Manifest) -> Manifest | None:
    owners = metadata.parts("ownerReferences")
    return next((each for each in owners if each.flag("controller")), owners[0] if owners else None)


def _above(owner: Manifest | None, labels: Manifest) -> str | None:
    """Return the name of a pod's owner, of a Deployment or CronJob if one made it."""
    name = owner.text("name") if owner else None
    if owner is None or name is None:
        return None
    kind = owner.text("kind")
    if kind == "ReplicaSet":
        stamp = labels.text("pod-template-hash")
        return name.removesuffix(f"-{stamp}") if stamp else name
    return _CRON_STAMP.sub("", name) if kind == "Job" else name


def _serves(spec: Manifest, labels: Manifest, kind: str | None) -> bool:
    """Return whether a pod answers requests; notebooks of Kubeflow have ports and do not."""
    if _first(labels, _SERVING_LABELS) is not None:
        return True
    if labels.text("koordinator.sh/qosClass") in _LATENCY_CLASSES:
        return True
    if spec.text("priorityClassName") == "inference":
        return True
    has_ports = any(each.parts("ports") for each in spec.parts("containers"))
    is_long = kind in ("ReplicaSet", "StatefulSet", "Deployment")
    return is_long and has_ports and labels.text("notebook-name") is None


def least_members(groups: list[KubeObject]) -> Mapping[str, int]:
    """Return how many pods of each group must start together, by ``NAMESPACE/NAME``."""
    found = {}
    for group in groups:
        least = group.manifest.part("spec").count("minMember")
        found[group.key] = 1 if least is None else least
    return found
