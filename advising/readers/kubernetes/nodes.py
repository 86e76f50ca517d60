"""The GPUs of nodes: from labels of GPU feature discovery, capacities and annotations."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from dovetail.advising.readers.kubernetes.manifests import KubeObject, Manifest
from dovetail.advising.readers.kubernetes.requests import GPU, MIG, MODES, SHARED

_LABEL: Final = "nvidia.com/gpu."
_STRATEGY: Final = _LABEL + "sharing-strategy"
_RACK: Final = "rack"
_HAMI: Final = "hami.io/node-nvidia-register"
_VOLCANO: Final = "volcano.sh/node-vgpu-register"


class NodeGpus(NamedTuple):
    """The GPUs of one kind on a node.

    Attributes
    ----------
    kind : str
        ``gpu``, or ``mig-PROFILE`` for instances of MIG.
    gpus : int
        How many there are.
    model : str or None
        Their model.
    card_mib : float
        The memory of each, NaN if unknown.
    replicas : int
        How many jobs the device plugin lets share each; 1 if it does not.
    sharing : str or None
        How jobs share each, as in an instance; None if nothing says so.
    """

    kind: str
    gpus: int
    model: str | None
    card_mib: float
    replicas: int = 1
    sharing: str | None = None


class NodeRecord(NamedTuple):
    """A node.

    Attributes
    ----------
    gpus : mapping of str to NodeGpus
        Its GPUs by kind.
    rack : str or None
        The rack that a label names.
    closed : bool
        Whether it is cordoned or not ready.
    tainted : bool
        Whether it has taints that pods must tolerate, apart from that of all nodes with GPUs.
    """

    gpus: dict[str, NodeGpus]
    rack: str | None
    closed: bool
    tainted: bool


def node_record(node: KubeObject) -> NodeRecord:
    """Return the GPUs of a node.

    Raises
    ------
    InputError
        When a number is out of range.
    """
    manifest = node.manifest
    labels = manifest.part("metadata", "labels")
    spec, status = manifest.part("spec"), manifest.part("status")
    has = status.part("allocatable" if "allocatable" in status.data else "capacity")
    found = [*_whole(manifest, labels, has), *_instances(labels, has)]
    taints = spec.parts("taints")
    return NodeRecord(
        {each.kind: each for each in found if each.gpus},
        next((labels.text(name) for name in labels.data if name.endswith(_RACK)), None),
        spec.flag("unschedulable") or _is_down(status),
        any(taint.text("key") not in _USUAL_TAINTS for taint in taints if _keeps_off(taint)),
    )


_USUAL_TAINTS: Final = (GPU, "node.kubernetes.io/unschedulable", "node.kubernetes.io/not-ready")


def _keeps_off(taint: Manifest) -> bool:
    return taint.text("effect") in ("NoSchedule", "NoExecute")


def _is_down(status: Manifest) -> bool:
    ready = (each for each in status.parts("conditions") if each.text("type") == "Ready")
    return any(each.text("status") != "True" for each in ready)


def _whole(node: Manifest, labels: Manifest, has: Manifest) -> Iterator[NodeGpus]:
    """Yield the cards of a node, or the instances of MIG that are called GPUs (strategy single)."""
    model = labels.text(_LABEL + "product")
    card_mib = labels.number(_LABEL + "memory")
    annotations = node.part("metadata", "annotations")
    for name in (_HAMI, _VOLCANO):
        text = annotations.text(name)
        if text is not None:
            cards = _registered(annotations, name, text)
            if cards:
                yield _of_cards(cards, model, card_mib)
                return
    offered = _volcano(has)
    if offered is not None:
        yield NodeGpus("gpu", offered[0], model, offered[1] if math.isnan(card_mib) else card_mib)
        return
    replicas = max(labels.count(_LABEL + "replicas") or 1, 1)
    units = (has.count(GPU) or 0) + (has.count(GPU + SHARED) or 0)
    if model is not None and model.endswith("-SHARED"):
        model = model.removesuffix("-SHARED")
    sharing = MODES.get(labels.text(_STRATEGY))
    yield NodeGpus("gpu", -(-units // replicas), model, card_mib, replicas, sharing)


def _volcano(has: Manifest) -> tuple[int, float] | None:
    """Return cards and the memory of each as Volcano's device plugin offers them."""
    cards, memory_mib = has.count("volcano.sh/gpu-number"), has.number("volcano.sh/gpu-memory")
    return (cards, memory_mib / cards) if cards else None


class _Card(NamedTuple):
    model: str | None
    memory_mib: float
    mode: str | None = None


def _of_cards(cards: list[_Card], model: str | None, card_mib: float) -> NodeGpus:
    """Return cards that a device plugin registers; of unequal ones, the smallest memory."""
    least_mib = min(card.memory_mib for card in cards)
    if math.isnan(card_mib):
        card_mib = least_mib
    modes = {MODES.get(card.mode) for card in cards}
    sharing = modes.pop() if len(modes) == 1 else None
    return NodeGpus("gpu", len(cards), model or cards[0].model, card_mib, sharing=sharing)


def _registered(annotations: Manifest, name: str, text: str) -> list[_Card]:
    """Return the healthy cards of a register: JSON, or ``ID,COUNT,MIB,...`` with ``:`` behind each.

    Raises
    ------
    InputError
        When it is neither.
    """
    try:
        if text.lstrip().startswith("["):
            return [
                _Card(each.get("type"), float(each["devmem"]), each.get("mode"))
                for each in json.loads(text)
                if each.get("health", True)
            ]
        rows = [each.split(",") for each in text.split(":") if each.strip()]
        return [_Card(_word(row, name), float(row[2])) for row in rows if "false" not in row]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise annotations.broken(name, "must be a register of GPUs") from None


def _word(row: list[str], name: str) -> str | None:
    """Return the model in a row of a register: HAMi's has one number more in front of it."""
    at = 4 if name == _HAMI else 3
    return row[at] if len(row) > at else None


def _instances(labels: Manifest, has: Manifest) -> Iterator[NodeGpus]:
    """Yield the instances of MIG of a node (strategy mixed)."""
    product = labels.text(_LABEL + "product")
    for name in has.data:
        if name.startswith(MIG):
            kind = name.removeprefix("nvidia.com/").removesuffix(SHARED)
            model = labels.text(f"{name}.product")
            if model is None:
                model = f"{product or 'NVIDIA'}-{kind.upper().replace('MIG-', 'MIG-')}"
            yield NodeGpus(kind, has.count(name) or 0, model, labels.number(f"{name}.memory"))
