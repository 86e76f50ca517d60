"""Plain data as readable JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple, TypeGuard

json_line = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class Lines(NamedTuple):
    """In plain data, a long list whose items become text as they are written.

    Attributes
    ----------
    texts : callable
        Given what makes one line of plain data, yields the lines of items, some at a time.
    """

    texts: Callable[[Callable[[object], str]], Iterator[list[str]]]


def json_text(data: object) -> str:
    """Return plain data as JSON, with each job, node, entry and assignment on its own line."""
    return "".join(json_parts(data))


def json_parts(data: object) -> Iterator[str]:
    """Yield the parts of the text of `json_text`; the data may have `Lines`."""
    yield from _json_block(data, 0)
    yield "\n"


def is_block(value: object, depth: int) -> TypeGuard[dict[str, object] | list[object]]:
    """Return whether each member of a value gets its own line."""
    if not isinstance(value, dict | list) or not value:
        return False
    return depth < 2 or (depth == 2 and isinstance(value, list) and isinstance(value[0], dict))


def _json_block(value: object, depth: int) -> Iterator[str]:
    margin = "  " * depth
    between = f",\n{margin}  "
    if isinstance(value, Lines):
        yield from _json_lines(
            "[]", ((between.join(some),) for some in value.texts(json_line)), margin
        )
    elif not is_block(value, depth):
        yield json_line(value)
    elif isinstance(value, list):
        yield from _json_lines("[]", ((json_line(item),) for item in value), margin)
    else:
        members = (
            chain((f"{json_line(k)}: ",), _json_block(v, depth + 1)) for k, v in value.items()
        )
        yield from _json_lines("{}", members, margin)


def _json_lines(brackets: str, members: Iterable[Iterable[str]], margin: str) -> Iterator[str]:
    before = f"{brackets[0]}\n{margin}  "
    for member in members:
        yield before
        yield from member
        before = f",\n{margin}  "
    yield f"\n{margin}{brackets[1]}"
