"""Changes to the jobs of a YAML text that leave the rest of it, including comments, unchanged.

A round trip through a YAML library would keep the values, but it moves the comments after a
removed item and rewraps long lines. Here the parser gives the position of each value, and only
these ranges are changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import yaml

from dovetail.instances.reading import contents


class _Edit(NamedTuple):
    """A replacement of a part of the text."""

    start: int
    end: int
    text: str = ""


class _YamlValue(NamedTuple):
    """A value and its position.

    Attributes
    ----------
    start, end, column : int
        Its start and end, without spaces and comments after it.
    flow : bool
        Whether it is in brackets: its members may be on one line.
    text : str
        The text of a scalar.
    keys, members : list of _YamlValue
        The content of a mapping, or of a list, which has no keys.
    """

    start: int
    end: int
    column: int
    flow: bool = True
    text: str = ""
    keys: Sequence[_YamlValue] = ()
    members: Sequence[_YamlValue] = ()


Event = Any
"""An event of PyYAML's parser; the library's type stubs lack most fields."""

Events = Iterator[Event]


def _ends(event: Event) -> bool:
    return isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent)


Changes = Mapping[str, Mapping[str, object] | None]
"""The new fields by job id: None as a field removes it, None as the value removes the job."""


def edited_jobs(text: str, changes: Changes) -> str:
    """Return the text of an instance with changed jobs.

    Parameters
    ----------
    text : str
        YAML that was read as an instance, so it has no anchors or tags.
    changes : mapping
        See `Changes`. Other jobs are unchanged.
    """
    key, jobs = _jobs(text)
    pieces, behind = [], 0
    for edit in sorted(_edits(text, key, jobs, changes)):
        pieces += [text[behind : edit.start], edit.text]
        behind = edit.end
    return "".join([*pieces, text[behind:]])


def _jobs(text: str) -> tuple[_YamlValue, _YamlValue]:
    """Return the key and the value of the jobs; a file may have millions of other values."""
    events: Events = iter(yaml.parse(text, Loader=contents.LOADER))
    while not isinstance(next(events), yaml.MappingStartEvent):
        pass
    while (key := _node(text, events, next(events))).text != "jobs":
        depth = 0
        while True:
            event = next(events)
            depth += isinstance(event, yaml.CollectionStartEvent) - _ends(event)
            if depth == 0:
                break
    return key, _node(text, events, next(events))


def _node(text: str, events: Events, event: Event) -> _YamlValue:
    """Return the value that begins with an event of the parser."""
    start, end, column = event.start_mark.index, event.end_mark.index, event.start_mark.column
    if isinstance(event, yaml.ScalarEvent):
        while end > start and text[end - 1].isspace():  # after a scalar of several lines
            end -= 1
        return _YamlValue(start, end, column, text=event.value)
    keys: list[_YamlValue] = []
    members: list[_YamlValue] = []
    inner: Event = next(events)
    while not _ends(inner):
        if isinstance(event, yaml.MappingStartEvent):
            keys.append(_node(text, events, inner))
            inner = next(events)
        members.append(_node(text, events, inner))
        inner = next(events)
    # The mark at the end of a block is after the comments that follow it.
    end = inner.end_mark.index if event.flow_style else members[-1].end
    return _YamlValue(start, end, column, bool(event.flow_style), "", keys, members)


def _edits(text: str, key: _YamlValue, jobs: _YamlValue, changes: Changes) -> Iterator[_Edit]:
    wanted = [changes.get(_id(job), {}) for job in jobs.members]
    gone = [fields is None for fields in wanted]
    parts = jobs.members if jobs.flow else [_with_dash(text, jobs, job) for job in jobs.members]
    if all(gone):
        yield from _emptied(text, key, jobs, parts)
    else:
        yield from _removed(text, parts, gone, jobs.flow)
    for job, fields in zip(jobs.members, wanted, strict=True):
        if fields:
            yield from _changed(text, job, fields)


def _id(job: _YamlValue) -> str:
    return next(m.text for k, m in zip(job.keys, job.members, strict=True) if k.text == "id")


def _with_dash(text: str, jobs: _YamlValue, job: _YamlValue) -> _YamlValue:
    """Return an item of a block with the dash before it, which is on its line or one before."""
    start = _line_start(text, job.start)
    while text[start : start + jobs.column].strip() or text[start + jobs.column] != "-":
        start = _line_start(text, start - 1)
    return job._replace(start=start + jobs.column)


def _emptied(
    text: str, key: _YamlValue, jobs: _YamlValue, parts: Sequence[_YamlValue]
) -> Iterator[_Edit]:
    """Yield the edits that empty the list."""
    if jobs.flow:
        yield _Edit(jobs.start, jobs.end, "[]")
        return
    behind = text.index(":", key.end) + 1
    yield _Edit(behind, behind, " []")
    yield from (_lines(text, part) for part in parts)


def _changed(text: str, job: _YamlValue, fields: Mapping[str, object]) -> Iterator[_Edit]:
    """Yield the edits of a job's fields: values replaced, fields removed, fields added."""
    parts = [k._replace(end=m.end) for k, m in zip(job.keys, job.members, strict=True)]
    gone = [k.text in fields and fields[k.text] is None for k in job.keys]
    yield from _removed(text, parts, gone, job.flow)
    there = {k.text: member for k, member in zip(job.keys, job.members, strict=True)}
    added = []
    for name, value in fields.items():
        if value is None:
            continue
        line = contents.yaml_line(value)
        if name not in there:
            added.append(f"{name}: {line}")
        else:
            start, end = there[name].start, there[name].end
            yield _Edit(start, end, " " * (start == end) + line)
    if not added:
        return
    end = max(part.end for part, removed in zip(parts, gone, strict=True) if not removed)
    if job.flow:
        yield _Edit(end, end, "".join(f", {field}" for field in added))
    else:
        end = _line_end(text, end)
        yield _Edit(end, end, "".join(f"\n{' ' * job.column}{field}" for field in added))


def _removed(
    text: str, parts: Sequence[_YamlValue], gone: Sequence[bool], flow: bool
) -> Iterator[_Edit]:
    """Yield the edits that remove members; at least one member stays."""
    kept = [k for k, removed in enumerate(gone) if not removed]
    for before, after in pairwise([-1, *kept, len(parts)]):
        run = parts[before + 1 : after]
        if not run:
            continue
        if not flow and _begins_line(text, run[0]):
            yield from (_lines(text, part) for part in run)
        elif after < len(parts):
            yield _Edit(run[0].start, parts[after].start)
        else:
            yield _Edit(parts[before].end, run[-1].end)


def _lines(text: str, part: _YamlValue) -> _Edit:
    """Return the edit that removes the lines of a member of a block, with the comment after it."""
    return _Edit(_line_start(text, part.start), min(_line_end(text, part.end) + 1, len(text)))


def _begins_line(text: str, part: _YamlValue) -> bool:
    return not text[_line_start(text, part.start) : part.start].strip()


def _line_start(text: str, place: int) -> int:
    return text.rfind("\n", 0, place) + 1


def _line_end(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end
