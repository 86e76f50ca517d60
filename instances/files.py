"""Reading and writing the formats: JSON or YAML, plain or ``.gz``, files or ``-``.

YAML is read by the core schema of version 1.2, so that it means the same as the equal JSON:
``1.1e9`` is a number, ``yes`` and ``2026-01-31`` are texts, the keys of mappings are always texts.
Every mistake of a user is an `InputError`.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TypeVar

from dovetail.instances._record import Record, shown
from dovetail.instances.errors import InputError, require_type, source_name
from dovetail.instances.instance import INSTANCE_FORMAT, Instance
from dovetail.instances.plan import PLAN_FORMAT, Plan
from dovetail.instances.reading.contents import (
    KUBERNETES,
    FilePath,
    decoded,
    is_manifest,
    opened,
    parse_json,
    parse_yaml,
    read_text,
    whole,
    write_parts,
    yaml_parts,
)
from dovetail.instances.reading.json_text import Lines, json_parts
from dovetail.instances.reading.streaming import read_streamed
from dovetail.instances.slowdowns.gathering import require_entries
from dovetail.instances.slowdowns.lines import entry_lines

_R = TypeVar("_R", bound=Record)
_YAML_ENDINGS = (".yaml", ".yml")
_KINDS = {INSTANCE_FORMAT: "an instance", PLAN_FORMAT: "a plan"}


def read_instance(path: FilePath) -> Instance:
    """Read an instance from a file.

    Parameters
    ----------
    path : str or path
        JSON for ``.json``, YAML for ``.yaml`` and ``.yml``, detected from the content for other
        names; ``-`` is standard input. With a further ``.gz`` it is decompressed.

    Raises
    ------
    InputError
        When it cannot be read, breaks a rule of the format, or has speeds or percentages as
        slowdowns.
    """
    if _ending(os.fspath(path)) in _YAML_ENDINGS:
        return parse_instance(read_text(path), path)
    content = b""
    with opened(path) as file:
        data = read_streamed(file)
        if data is None:
            file.seek(0)
            content = whole(file)
    return parse_instance(_text(content, path), path) if data is None else _plausible(data, path)


def parse_instance(text: str, path: FilePath) -> Instance:
    """Return the instance in the text of a file, like `read_instance`.

    Raises
    ------
    InputError
        As `read_instance`.
    """
    return _plausible(_parsed(text, path), path)


def _plausible(data: object, path: FilePath) -> Instance:
    instance = _record(Instance, INSTANCE_FORMAT, data, path)
    require_entries(instance.slowdowns, source_name(path))
    return instance


def _text(content: bytes, path: FilePath) -> str:
    try:
        return decoded(content)
    except InputError as error:
        raise error.at(source_name(path)) from None


def read_plan(path: FilePath) -> Plan:
    """Read a plan from a file, like `read_instance`.

    Raises
    ------
    InputError
        When it cannot be read or breaks a rule of the format.
    """
    return _record(Plan, PLAN_FORMAT, read_data(path), path)


def write_instance(instance: Instance, path: FilePath) -> None:
    """Write an instance to a file; `read_instance` reads back an equal one.

    Parameters
    ----------
    instance : Instance
        The instance to write.
    path : str or path
        YAML for ``.yaml`` and ``.yml``, JSON for other names; ``-`` is standard output. With a
        further ``.gz`` it is compressed. The file is written atomically.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    require_type("instance", instance, Instance)
    data = instance.model_copy(update={"slowdowns": ()}).to_data()
    if len(instance.slowdowns):
        data["slowdowns"] = Lines(partial(entry_lines, instance.slowdowns))
    write_data(data, path)


def write_plan(plan: Plan, path: FilePath) -> None:
    """Write a plan to a file, like `write_instance`.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    require_type("plan", plan, Plan)
    write_data(plan.to_data(), path)


def read_data(path: FilePath) -> object:
    """Read plain data (mappings, lists, texts, numbers, true, false, null) from a file.

    Raises
    ------
    InputError
        When it cannot be read, is empty, is neither JSON nor YAML, or has a key twice.
    """
    return _parsed(read_text(path), path)


def _parsed(text: str, path: FilePath) -> object:
    try:
        if not text.strip():
            raise InputError("is empty")
        return parse_yaml(text) if is_yaml(text, path) else parse_json(text)
    except InputError as error:
        raise error.at(source_name(path)) from None


def write_data(data: object, path: FilePath) -> None:
    """Write plain data to a file, like `write_instance`.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    parts = yaml_parts if _ending(os.fspath(path)) in _YAML_ENDINGS else json_parts
    write_parts(path, parts(data))


def _record(record: type[_R], stamp: str, data: object, path: FilePath) -> _R:
    source = source_name(path)
    if is_manifest(data):
        raise InputError(KUBERNETES, "", source)
    if isinstance(data, dict) and data.get("format") != stamp:
        raise InputError(_wrong_format(data, stamp), "format", source)
    return record.from_data(data, source)


def _wrong_format(data: dict[str, object], stamp: str) -> str:
    if "format" not in data:
        return f"this field is required, must be {stamp!r}"
    given = data["format"]
    kind = _KINDS.get(given) if isinstance(given, str) else None
    hint = f" (this is {kind}, not {_KINDS[stamp]})" if kind else ""
    return f"must be {stamp!r}, got {shown(given)}{hint}"


def _ending(name: str) -> str:
    return Path(name.lower().removesuffix(".gz")).suffix


def is_yaml(text: str, path: FilePath) -> bool:
    """Return whether a non-blank text is read as YAML, by its file name or else its content."""
    ending = _ending(os.fspath(path))
    return ending in _YAML_ENDINGS or (ending != ".json" and text.lstrip()[0] not in "{[")
