"""Plain data as readable JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TypeGuard

json_line = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def json_text(data: object) -> str:
    """Return plain data as JSON, with each job, node, entry and assignment on its own line."""
    return _json_block(data, 0) + "\n"


def is_block(value: object, depth: int) -> TypeGuard[dict[str, object] | list[object]]:
    """Return whether each member of a value gets its own line."""
    if not isinstance(value, dict | list) or not value:
        return False
    return depth < 2 or (depth == 2 and isinstance(value, list) and isinstance(value[0], dict))


def _json_block(value: object, depth: int) -> str:
    if not is_block(value, depth):
        return json_line(value)
    if isinstance(value, list):
        return _json_lines("[]", map(json_line, value), depth)
    members = (f"{json_line(k)}: {_json_block(v, depth + 1)}" for k, v in value.items())
    return _json_lines("{}", members, depth)


def _json_lines(brackets: str, members: Iterable[str], depth: int) -> str:
    margin = "  " * depth
    lines = f",\n{margin}  ".join(members)
    return f"{brackets[0]}\n{margin}  {lines}\n{margin}{brackets[1]}"
