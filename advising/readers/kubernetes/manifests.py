"""Kubernetes objects from files: lists, several documents, and snapshots of KAI."""

from __future__ import annotations

import io
import lzma
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.instances._record import field_path, shown
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.reading.contents import (
    decoded,
    parse_json,
    read_bytes,
    whole,
    yaml_documents,
)

ZIP_MAGIC: Final = "PK\x03\x04"
SNAPSHOT: Final = "snapshot.json"
"""The file within a snapshot that KAI's plugin writes (its docs/plugins/snapshot.md)."""

_SNAPSHOT_LISTS: Final = {
    "pods": "Pod",
    "nodes": "Node",
    "podGroups": "PodGroup",
    "resourceClaims": "ResourceClaim",
}
"""The lists of a snapshot and the kind of their objects, which do not name it themselves."""

_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([eE][0-9]{1,3})?([a-zA-Z]{0,2})")
_SUFFIXES: Final = {
    "": 1.0,
    "m": 1e-3,
    **{unit: 1000.0 ** (k + 1) for k, unit in enumerate("kMGTP")},
    **{f"{unit}i": 1024.0 ** (k + 1) for k, unit in enumerate("KMGTP")},
}


_UNREAD: Final = (
    *("managedFields", "env", "envFrom", "command", "args", "lifecycle", "securityContext"),
    *("volumes", "volumeMounts", "volumeDevices", "volumesAttached", "volumesInUse"),
    *("livenessProbe", "readinessProbe", "startupProbe", "tolerations", "affinity"),
    *(
        "topologySpreadConstraints",
        "imagePullSecrets",
        "hostAliases",
        "dnsConfig",
        "readinessGates",
    ),
    *("images", "addresses", "nodeInfo", "podIPs", "hostIPs", "lastState", "initContainerStatuses"),
)
"""Keys below which nothing is read: most lines of what kubectl prints."""

_UNREAD_BELOW: Final = tuple(
    re.compile(
        rf"(?m)^(( *){dash}(?:{'|'.join(_UNREAD)}):[ ]*\n)((?:\2{within}(?: +[^ \n]|- ).*\n)+)"
    )
    for dash, within in (("", ""), ("- ", "  "))
)
"""What stands below such a key: lines further in, or items of a list; also if the key is the first
of an item itself."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A mapping of a Kubernetes object, and its path in the file.

    Whatever is missing or null is empty; a value of another type is an ``InputError``.
    """

    data: Mapping[str, object]
    path: str

    def part(self, *keys: str) -> Manifest:
        """Return the mapping below keys."""
        found = self
        for key in keys:
            value = found.data.get(key)
            path = field_path(found.path, key)
            found = _manifest({} if value is None else value, path)
        return found

    def parts(self, key: str) -> list[Manifest]:
        """Return the mappings of a list."""
        value = self.data.get(key)
        path = field_path(self.path, key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise InputError(f"must be a list, got {shown(value)}", path)
        return [_manifest(each, f"{path}[{k}]") for k, each in enumerate(value)]

    def text(self, key: str) -> str | None:
        """Return a text; a number is one, too."""
        value = self.data.get(key)
        if isinstance(value, bool):
            return "true" if value else "false"
        if value is None or value == "":
            return None
        if not isinstance(value, str | int | float):
            raise self.broken(key, "must be text")
        return str(value)

    def flag(self, key: str) -> bool:
        """Return whether a truth value is set."""
        return self.text(key) == "true"

    def number(self, key: str, least: float = 0.0, most: float = math.inf) -> float:
        """Return a quantity as Kubernetes writes it (``2``, ``500m``, ``4Gi``); NaN if missing."""
        text = self.text(key)
        if text is None:
            return math.nan
        found = _QUANTITY.fullmatch(text)
        number = math.nan
        if found is not None and found[3] in _SUFFIXES:
            number = float(found[1] + (found[2] or "")) * _SUFFIXES[found[3]]
        if not (least <= number <= most and math.isfinite(number)):
            limits = f">= {least:g}" if math.isinf(most) else f"from {least:g} to {most:g}"
            raise self.broken(key, f"must be a number {limits}")
        return number

    def count(self, key: str) -> int | None:
        """Return a whole number, None if missing."""
        number = self.number(key)
        if math.isnan(number):
            return None
        if number != int(number) or number > _MOST:
            raise self.broken(key, f"must be a whole number from 0 to {_MOST}")
        return int(number)

    def moment_s(self, key: str) -> float:
        """Return a time as seconds since 1970, NaN if missing."""
        text = self.text(key)
        if text is None:
            return math.nan
        try:
            moment = datetime.fromisoformat(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise self.broken(key, "must be a time such as 2026-11-29T08:30:00Z") from None

    def broken(self, key: str, rule: str) -> InputError:
        """Return the error that a value breaks a rule."""
        return InputError(f"{rule}, got {shown(self.data.get(key))}", field_path(self.path, key))


_MOST: Final = 1_000_000
"""The largest number of GPUs, pods or replicas."""


class KubeObject(NamedTuple):
    """An object with its names.

    Attributes
    ----------
    namespace, name : str
        As in its metadata; ``default`` if the namespace is missing.
    manifest : Manifest
        The object.
    """

    namespace: str
    name: str
    manifest: Manifest

    @property
    def key(self) -> str:
        """``NAMESPACE/NAME``."""
        return f"{self.namespace}/{self.name}"


Objects = dict[str, list[KubeObject]]
"""Objects by kind. A ``Job`` of Volcano is a ``VolcanoJob``."""


def read_objects(path: Path) -> Objects:
    """Return the objects of a file.

    Raises
    ------
    InputError
        When it cannot be read or is no YAML, JSON or snapshot with Kubernetes objects.
    """
    try:
        return _by_kind(_documents(read_bytes(path)))
    except InputError as error:
        raise (error if error.source else error.at(source_name(path))) from None


def _documents(content: bytes) -> Iterator[object]:
    if content.startswith(ZIP_MAGIC.encode()):
        content = _unzipped(content)
    text = decoded(content)
    if text.lstrip().startswith("{"):
        yield parse_json(text)
    else:
        yield from _yaml(text)


def _yaml(text: str) -> list[object]:
    """Return the documents of a YAML text, without what is never read.

    Texts over several lines may look like a key. If one loses its end by that, quotes no longer
    match and the text is read whole; so it is for every other fault, to report the true one.
    """
    try:
        return list(yaml_documents(_shortened(text)))
    except InputError:
        return list(yaml_documents(text))


def _shortened(text: str) -> str:
    """Return a text with blank lines in place of what stands below unread keys."""
    for pattern in _UNREAD_BELOW:
        text = pattern.sub(lambda found: found[1] + "\n" * found[3].count("\n"), text)
    return text


def _unzipped(content: bytes) -> bytes:
    """Return the snapshot in a ZIP file; what unpacks to more than any file may hold is refused."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive, archive.open(SNAPSHOT) as file:
            return whole(file)  # type: ignore[arg-type]
    except KeyError:
        raise InputError(f"must be a ZIP file with {SNAPSHOT}, got one without") from None
    except _ZIP_FAULTS:
        raise InputError("must be a ZIP file, got something else or a damaged one") from None


_ZIP_FAULTS: Final = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, OSError, RuntimeError, ValueError),
)
"""What reading a damaged archive raises."""


def _by_kind(documents: Iterator[object]) -> Objects:
    found: Objects = {}
    for k, data in enumerate(documents):
        if data is None:
            continue
        root = _manifest(data, "" if k == 0 else f"document {k + 1}")
        for kind, manifest in _objects(root):
            of_kind = found.setdefault(kind, [])
            of_kind.append(_named(manifest, len(of_kind)))
    _refuse_repeats(found)
    return found


def _objects(root: Manifest) -> Iterator[tuple[str, Manifest]]:
    """Yield kind and manifest of an object, of the items of a list, or of a snapshot's objects."""
    if "rawObjects" in root.data:
        raw = root.part("rawObjects")
        for key, listed in _SNAPSHOT_LISTS.items():
            yield from ((listed, each) for each in raw.parts(key))
        return
    kind = root.text("kind")
    if kind is None:
        raise InputError("must have a kind (a Kubernetes object or a list of them)", root.path)
    if "items" not in root.data:
        yield (_kind(root, kind), root)
        return
    for item in root.parts("items"):
        named = item.text("kind") or kind.removesuffix("List")
        yield (_kind(item, named), item)


def _kind(manifest: Manifest, kind: str) -> str:
    group = manifest.text("apiVersion") or ""
    return "VolcanoJob" if kind == "Job" and group.startswith("batch.volcano.sh/") else kind


def _named(manifest: Manifest, number: int) -> KubeObject:
    metadata = manifest.part("metadata")
    namespace = metadata.text("namespace") or "default"
    name = metadata.text("name")
    if name is None:
        stem = metadata.text("generateName")
        if stem is None:
            raise InputError("must have a name", field_path(metadata.path, "name"))
        name = f"{stem}{number}"
    return KubeObject(namespace, name, manifest)


def _refuse_repeats(found: Objects) -> None:
    for kind in ("Pod", "Node"):
        seen = set()
        for each in found.get(kind, ()):
            if each.key in seen:
                path = field_path(field_path(each.manifest.path, "metadata"), "name")
                rule = f"must differ from that of every other {kind}"
                raise InputError(f"{rule}, got {shown(each.name)} twice", path)
            seen.add(each.key)


def _manifest(value: object, path: str) -> Manifest:
    if not isinstance(value, dict):
        raise InputError(f"must be a mapping, got {shown(value)}", path)
    return Manifest(value, path)
