"""Every fault that a JSON Schema knows, made in valid data, with the line that reports it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

Data = dict[str, Any]
Path = tuple[str | int, ...]

GONE = object()
"""In place of a value that is to be taken out."""

PRINTABLE = "must be one line of printable characters, not all blank"


def faults(schema: Data, data: Data) -> Iterator[tuple[Data, str]]:
    """Yield copies of the data with one fault each, and the message for it."""
    for path, kind, value in _values(schema, data, schema, ()):
        for inner, wrong, rule in _wrong(kind, value):
            place = (*path, *inner)
            if place and path != ("format",):
                yield _changed(data, place, wrong), f"{_shown(place)}: {rule}"


def _values(schema: Data, value: Any, whole: Data, path: Path) -> Iterator[tuple[Path, Data, Any]]:
    """Yield path, schema and value of every node of the data."""
    kind = _resolved(schema, whole)
    yield path, kind, value
    if isinstance(value, dict):
        others = [*kind.get("patternProperties", {}).values(), kind.get("additionalProperties")]
        for key, inner in value.items():
            if isinstance(found := kind.get("properties", {}).get(key, others[0]), dict):
                yield from _values(found, inner, whole, (*path, key))
    elif isinstance(value, list):
        for k, inner in enumerate(value):
            found = [*kind.get("prefixItems", ()), *[kind.get("items")] * len(value)][k]
            yield from _values(found, inner, whole, (*path, k))


def _resolved(schema: Data, whole: Data) -> Data:
    """Return a schema without a reference, or an alternative that is null or a constant."""
    if "$ref" in schema:
        return _resolved(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    kinds = [_resolved(one, whole) for one in schema.get("anyOf", ())]
    some = [kind for kind in kinds if kind.get("type") != "null" and "const" not in kind]
    nullable = any(kind.get("type") == "null" for kind in kinds)
    words = {"words": " or ".join(["", *(kind["const"] for kind in kinds if "const" in kind)])}
    return {**words, **some[0], "nullable": nullable} if len(some) == 1 else schema


def _wrong(kind: Data, value: Any) -> Iterator[tuple[Path, Any, str]]:
    """Yield faults of a value of this kind: path, faulty value and rule."""
    match kind.get("type"):
        case "integer" | "number" as name:
            yield from _wrong_numbers(kind, name)
        case "boolean":
            yield from (((), one, f"must be true or false, got {one!r}") for one in ("yes", 1))
        case "string" if "enum" in kind:
            *most, last = map(repr, kind["enum"])
            yield (), "odd", f"must be {', '.join(most)} or {last}, got 'odd'"
        case "string":
            yield (), 5, "must be text, got 5"
            if "maxLength" in kind:
                yield (), "", "must not be empty, got ''"
                yield (), "\t", rf"{PRINTABLE}, got '\t'"
                long = "n" * (kind["maxLength"] + 1)
                rule = f"must have at most {kind['maxLength']} characters"
                yield (), long, f"{rule}, got '{'n' * 60}'..."
        case "array":
            yield (), "odd", "must be a list, got 'odd'"
        case "object" if "properties" in kind:
            yield (), 7, "must be a mapping of field names to values, got 7"
            known = list(kind["properties"])
            more = f", ... ({len(known) - 20} more)" if len(known) > 20 else ""
            yield ("zz",), 1, f"unknown field, known are: {', '.join(known[:20])}{more}"
            for key in kind.get("required", ()):
                if key in value and key != "format":
                    yield (key,), GONE, "this field is required"
        case "object":
            yield (), 7, "must be a mapping of names to values, got 7"


def _wrong_numbers(kind: Data, name: str) -> Iterator[tuple[Path, Any, str]]:
    rule = "must be a whole number" if name == "integer" else "must be a number"
    shape = "d" if isinstance(kind.get("maximum"), int) else "g"
    for wrong, shown in ((True, "true"), ("1", "'1'"), ([], "an empty list")):
        others = kind.get("words", "") if isinstance(wrong, str) else ""
        yield (), wrong, f"{rule}{others}, got {shown}"
    if not kind.get("nullable"):
        yield (), None, f"{rule}, got null"
    if name == "integer":
        yield (), 1.5, f"{rule}, got 1.5"
    else:
        yield (), math.nan, "must be a finite number, got nan"
        yield (), -math.inf, "must be a finite number, got -inf"
    if "minimum" in kind:
        low = kind["minimum"] - 1 if float(kind["minimum"]).is_integer() else kind["minimum"] / 2
        yield (), low, f"must be >= {kind['minimum']:g}, got {low:g}"
    if "maximum" in kind:
        most = kind["maximum"]
        yield (), 100 * most, f"must be <= {most:{shape}}, got {100 * most:{shape}}"
        if name == "integer":
            yield (), 10**400, f"must be <= {most}, got a huge number"


def _shown(path: Path) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")


def _changed(data: Data, path: Path, value: Any) -> Data:
    data = deepcopy(data)
    place: Any = data
    for part in path[:-1]:
        place = place[part]
    if value is GONE:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return data
