"""Reading and writing the formats: JSON or YAML, plain or ``.gz``, files or ``-``.

YAML is read by version 1.2's core schema, so that it says what the same JSON says: ``1.1e9``
is a number, ``yes`` and ``2026-01-31`` are texts, the keys of mappings are always texts.
Whatever a user can do wrong is one `InputError`.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import secrets
import stat
import sys
import zlib
from pathlib import Path
from typing import IO, BinaryIO, TextIO, TypeVar

from dovetail.instances._json import json_text
from dovetail.instances._record import Record, shown
from dovetail.instances._syntax import parse_json, parse_yaml, yaml_text
from dovetail.instances.errors import InputError, require_type, source_name
from dovetail.instances.instance import INSTANCE_FORMAT, Instance
from dovetail.instances.plan import PLAN_FORMAT, Plan

FilePath = str | os.PathLike[str]

MOST_BYTES = 512 * 2**20
"""The largest input accepted, unpacked: a small ``.gz`` may hold any amount."""

_R = TypeVar("_R", bound=Record)
_CHUNK_BYTES = 2**20
_YAML_ENDINGS = (".yaml", ".yml")
_GZIP_MAGIC = b"\x1f\x8b"
_KINDS = {INSTANCE_FORMAT: "an instance", PLAN_FORMAT: "a plan"}


def read_instance(path: FilePath) -> Instance:
    """Read an instance from a file.

    Parameters
    ----------
    path : str or path
        JSON for ``.json``, YAML for ``.yaml`` and ``.yml``, whichever it looks like for other
        names; ``-`` is standard input. With ``.gz`` behind the name it is unpacked.

    Raises
    ------
    InputError
        When it cannot be read or breaks a rule of the format.
    """
    return _read(Instance, INSTANCE_FORMAT, path)


def read_plan(path: FilePath) -> Plan:
    """Read a plan from a file, as `read_instance` reads an instance.

    Raises
    ------
    InputError
        When it cannot be read or breaks a rule of the format.
    """
    return _read(Plan, PLAN_FORMAT, path)


def write_instance(instance: Instance, path: FilePath) -> None:
    """Write an instance to a file that `read_instance` reads back as an equal one.

    Parameters
    ----------
    instance : Instance
        What to write.
    path : str or path
        YAML for ``.yaml`` and ``.yml``, JSON for other names; ``-`` is standard output. With
        ``.gz`` behind the name it is packed. The file appears whole or not at all.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    require_type("instance", instance, Instance)
    write_data(instance.to_data(), path)


def write_plan(plan: Plan, path: FilePath) -> None:
    """Write a plan to a file, as `write_instance` writes an instance.

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
    name = os.fspath(path)
    try:
        return _parsed(read_text(name), _ending(name))
    except InputError as error:
        raise error.at(source_name(name)) from None


def read_bytes(path: FilePath) -> bytes:
    """Read the bytes of a file of at most `MOST_BYTES`, unpacked if it is a gzip file.

    Raises
    ------
    InputError
        When it cannot be read or is larger.
    """
    name = os.fspath(path)
    try:
        return _unpacked_bytes(name)
    except InputError as error:
        raise error.at(source_name(name)) from None


def read_text(path: FilePath) -> str:
    """Read the UTF-8 text of a file, as `read_bytes` reads its bytes.

    Raises
    ------
    InputError
        When it cannot be read, is larger or is not UTF-8.
    """
    try:
        return _decoded(read_bytes(path))
    except InputError as error:
        raise error.at(source_name(path)) from None


def write_data(data: object, path: FilePath) -> None:
    """Write plain data to a file, as `write_instance` does.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    as_text = yaml_text if _ending(os.fspath(path)) in _YAML_ENDINGS else json_text
    write_text(path, as_text(data))


def write_text(path: FilePath, text: str) -> None:
    """Write a text to a file, as `write_bytes` writes bytes.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    try:
        data = text.encode()
    except ValueError as error:
        raise _unwritten(path, error) from None
    write_bytes(path, data)


def write_bytes(path: FilePath, data: bytes) -> None:
    """Write bytes to a file (``-``: standard output), packed if the name ends in ``.gz``.

    A regular file appears whole or not at all: it is written next to its place and moved there.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    name = os.fspath(path)
    try:
        _write_bytes(name, _packed(data, name))
    except (OSError, ValueError) as error:
        raise _unwritten(path, error) from None


def _unwritten(path: FilePath, error: OSError | ValueError) -> InputError:
    source = "standard output" if os.fspath(path) == "-" else source_name(path)
    return InputError(f"cannot be written: {_reason(error)}", source=source)


def _read(record: type[_R], stamp: str, path: FilePath) -> _R:
    data = read_data(path)
    source = source_name(path)
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


def _parsed(text: str, ending: str) -> object:
    if not text.strip():
        raise InputError("is empty")
    if ending in _YAML_ENDINGS:
        return parse_yaml(text)
    if ending == ".json" or text.lstrip()[0] in "{[":
        return parse_json(text)
    return parse_yaml(text)


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"must be UTF-8 text, got another byte at {error.start}") from None


def _unpacked_bytes(name: str) -> bytes:
    try:
        raw = _raw_bytes(name)
        if name.lower().endswith(".gz") or raw.startswith(_GZIP_MAGIC):
            return _whole(gzip.GzipFile(fileobj=io.BytesIO(raw)))
    except (gzip.BadGzipFile, zlib.error):
        raise InputError("must be a gzip file, got something else or a damaged one") from None
    except EOFError:
        raise InputError("must be a whole gzip file, got one cut short") from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {_reason(error)}") from None
    return raw


def _raw_bytes(name: str) -> bytes:
    if name == "-":
        return _whole(_binary(sys.stdin))
    with open(name, "rb") as file:
        return _whole(file)


def _binary(stream: TextIO | None) -> BinaryIO:
    if stream is None:
        raise OSError(errno.EBADF, "it is closed")
    return stream.buffer


def _whole(file: IO[bytes] | gzip.GzipFile) -> bytes:
    """Return the content of an open file, refusing more than `MOST_BYTES`."""
    content = io.BytesIO()
    while chunk := file.read(_CHUNK_BYTES):
        content.write(chunk)
        if content.tell() > MOST_BYTES:
            raise InputError(f"must hold at most {MOST_BYTES // 2**20} MiB, got more")
    return content.getvalue()


def _packed(data: bytes, name: str) -> bytes:
    # No time stamp: the same content gives the same file.
    return gzip.compress(data, mtime=0) if name.lower().endswith(".gz") else data


def _write_bytes(name: str, data: bytes) -> None:
    if name == "-":
        file = _binary(sys.stdout)
        # What was printed before must come out before.
        sys.stdout.flush()
        file.write(data)
        file.flush()
    elif os.path.exists(name) and not os.path.isfile(name):
        # A device or a pipe is written to; moving a file there would replace it.
        Path(name).write_bytes(data)
    else:
        _replace_file(Path(os.path.realpath(name)), data)


def _replace_file(target: Path, data: bytes) -> None:
    temporary = target.with_name(f".dovetail-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _reason(error: OSError | ValueError) -> str:
    reason = getattr(error, "strerror", None) or str(error)
    return reason[:1].lower() + reason[1:]
