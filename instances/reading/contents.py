"""The content of files: bytes and texts, plain or ``.gz``, and JSON and YAML as plain data.

Every mistake of a user is an `InputError`. A text is written with a line for each job. Of PyYAML
only the parser is used, not its loader: that reads version 1.1 (in which ``1.1e9`` is a text,
``no`` is false and ``1:30`` is ninety), lets a later key replace an earlier one, and follows
aliases, a few lines of which can expand to more data than fits in memory.
"""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import re
import secrets
import stat
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TextIO, cast

import yaml

from dovetail.instances._record import field_path, shown
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.reading.json_text import Lines, is_block, json_line

FilePath = str | os.PathLike[str]

LIBRARY = "library:"
"""What precedes the name of something shipped where the path of a file may stand."""

MOST_BYTES = 512 * 2**20
"""The largest accepted input, decompressed: a small ``.gz`` may hold any amount."""

_CHUNK_BYTES = 2**20

_GZIP_MAGIC = b"\x1f\x8b"

_GZIP_WBITS = 31
"""What tells zlib to write a gzip file, with the largest window."""

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MOST_MARKS = 16_000_000
"""Commas, colons and opening brackets of a JSON text, or events of a YAML text: a value of two
bytes takes sixty in memory."""

_MOST_NESTED = 100
_TOO_DEEP = "must not be nested so deeply"
_TOO_LONG = "must not have a number with thousands of digits"
_TOO_MANY = f"must have at most {MOST_MARKS} values, keys and brackets, got more"

_CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_BLANKS = re.compile(r"[ \t\n\r]*")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_DECIMAL = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")

_PLAIN_TEXT = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_WORDS_OF_YAML = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n"))
_ESCAPED_IN_YAML = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def read_bytes(path: FilePath) -> bytes:
    """Read the bytes of a file of at most `MOST_BYTES`, decompressed if it is a gzip file.

    Raises
    ------
    InputError
        When it cannot be read or is larger.
    """
    with opened(path) as file:
        return whole(file)


@contextmanager
def opened(path: FilePath) -> Iterator[BinaryIO]:
    """Open a file at whose bytes one may look twice, decompressed if it is a gzip file.

    Raises
    ------
    InputError
        When it cannot be read, also while the caller reads it.
    """
    name = os.fspath(path)
    try:
        with _faults(), ExitStack() as stack:
            file = stack.enter_context(_seekable(name))
            packed = name.lower().endswith(".gz") or file.read(2) == _GZIP_MAGIC
            file.seek(0)
            yield cast("BinaryIO", gzip.GzipFile(fileobj=file)) if packed else file
    except InputError as error:
        raise error if error.source else error.at(source_name(name)) from None


def read_text(path: FilePath) -> str:
    """Read the UTF-8 text of a file, like `read_bytes`.

    Raises
    ------
    InputError
        When it cannot be read, is larger or is not UTF-8.
    """
    try:
        return decoded(read_bytes(path))
    except InputError as error:
        raise error.at(source_name(path)) from None


def write_text(path: FilePath, text: str) -> None:
    """Write a text to a file, like `write_bytes`.

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
    """Write bytes to a file (``-``: standard output), compressed if the name ends in ``.gz``.

    A regular file is written atomically: next to its target, then moved there.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    _write(path, [data])


def write_parts(path: FilePath, parts: Iterable[str]) -> None:
    """Write the parts of a text to a file, like `write_bytes`; one is in memory at a time.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    _write(path, map(str.encode, parts))


def _write(path: FilePath, parts: Iterable[bytes]) -> None:
    name = os.fspath(path)
    try:
        _write_bytes(name, _packed(parts) if name.lower().endswith(".gz") else parts)
    except (OSError, ValueError) as error:
        raise _unwritten(path, error) from None


def _unwritten(path: FilePath, error: OSError | ValueError) -> InputError:
    source = "standard output" if os.fspath(path) == "-" else source_name(path)
    return InputError(f"cannot be written: {_reason(error)}", source=source)


def decoded(data: bytes) -> str:
    """Return the text of bytes in UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"must be UTF-8 text, got another byte at {error.start}") from None


@contextmanager
def _faults() -> Iterator[None]:
    """Turn what may happen while a file is read into one line."""
    try:
        yield
    except (gzip.BadGzipFile, zlib.error):
        raise InputError("must be a gzip file, got something else or a damaged one") from None
    except EOFError:
        raise InputError("must be a whole gzip file, got one cut short") from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {_reason(error)}") from None


def _seekable(name: str) -> BinaryIO:
    """Open a file; what can be read only once is read."""
    if name == "-":
        return io.BytesIO(whole(_binary(sys.stdin)))
    file = Path(name).open("rb")  # noqa: SIM115 (the caller closes it)
    if file.seekable():
        return file
    with file:
        return io.BytesIO(whole(file))


def _binary(stream: TextIO | None) -> BinaryIO:
    if stream is None:
        raise OSError(errno.EBADF, "it is closed")
    return stream.buffer


def whole(file: BinaryIO) -> bytes:
    """Return the content of an open file; more than `MOST_BYTES` is refused."""
    content = io.BytesIO()
    while chunk := file.read(_CHUNK_BYTES):
        content.write(chunk)
        if content.tell() > MOST_BYTES:
            raise InputError(f"must hold at most {MOST_BYTES // 2**20} MiB, got more")
    return content.getvalue()


def _packed(parts: Iterable[bytes]) -> Iterator[bytes]:
    # No time stamp: the same content gives the same file.
    packing = zlib.compressobj(zlib.Z_BEST_COMPRESSION, wbits=_GZIP_WBITS)
    yield from map(packing.compress, parts)
    yield packing.flush()


def _write_bytes(name: str, parts: Iterable[bytes]) -> None:
    if name == "-":
        file = _binary(sys.stdout)
        # Earlier output must come first.
        sys.stdout.flush()
        file.writelines(parts)
        file.flush()
    elif os.path.exists(name) and not os.path.isfile(name):
        # A device or a pipe is written to; moving a file there would replace it.
        with Path(name).open("wb") as file:
            file.writelines(parts)
    else:
        _replace_file(Path(os.path.realpath(name)), parts)


def _replace_file(target: Path, parts: Iterable[bytes]) -> None:
    temporary = target.with_name(f".dovetail-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.writelines(parts)
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


def parse_json(text: str) -> object:
    """Return the data of a JSON text.

    Raises
    ------
    InputError
        When it is not JSON, has too many values, or has a key twice in one mapping.
    """
    mappings = _Mappings()
    with _json_faults(text):
        data = json.loads(text, object_pairs_hook=mappings.joined)
    mappings.refuse_repeats(data)
    return data


def json_items(text: str) -> Iterator[object]:
    """Yield the items of a JSON list one after the other; the list itself is never in memory.

    Raises
    ------
    InputError
        As `parse_json` does, or when the text is not a list.
    """
    mappings = _Mappings()
    decoder = json.JSONDecoder(object_pairs_hook=mappings.joined)
    with _json_faults(text):
        at = _after_blanks(text, 0)
        if not text.startswith("[", at):
            raise InputError("must be a JSON list")
        at = _after_blanks(text, at + 1)
        more, k = not text.startswith("]", at), 0
        while more:
            item, at = decoder.raw_decode(text, at)
            mappings.refuse_repeats(item, f"[{k}]")
            yield item
            k += 1
            at = _after_blanks(text, at)
            more = text.startswith(",", at)
            at = _after_blanks(text, at + 1) if more else at
        if not text.startswith("]", at):
            raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
        at = _after_blanks(text, at + 1)
        if at < len(text):
            raise json.JSONDecodeError("Extra data", text, at)


def _after_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at


@contextmanager
def _json_faults(text: str) -> Iterator[None]:
    """Turn the parser's errors into one `InputError`; first check the size of the text."""
    if sum(map(text.count, ",:[{")) > MOST_MARKS:
        raise InputError(_TOO_MANY)
    try:
        yield
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise _not_valid("JSON", place, error.msg) from None
    except RecursionError:
        raise InputError(_TOO_DEEP) from None
    except ValueError:
        # Python reads no integer of thousands of digits, as that takes quadratic time.
        raise InputError(_TOO_LONG) from None


def parse_yaml(text: str) -> object:
    """Return the data of a YAML text of one document, read by the core schema of YAML 1.2.

    Raises
    ------
    InputError
        When it is not YAML, has a key twice in one mapping, or uses anchors, aliases or tags.
    """
    reader = _YamlReader(text)
    with _yaml_faults():
        data = reader.document()
    reader.mappings.refuse_repeats(data)
    return data


def yaml_documents(text: str) -> Iterator[object]:
    """Yield the data of each document of a YAML text, like `parse_yaml`; empty ones are None.

    Raises
    ------
    InputError
        As `parse_yaml` does.
    """
    reader = _YamlReader(text)
    with _yaml_faults():
        for data in reader.documents():
            reader.mappings.refuse_repeats(data)
            yield data


@contextmanager
def _yaml_faults() -> Iterator[None]:
    """Turn the parser's errors into one `InputError`."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        place, problem = _place(error.problem_mark), str(error.problem)
        # libyaml 0.2.6 and later has its own limit, which its scanner reaches while looking ahead.
        if "nesting depth" in problem:
            raise InputError(f"{place}: {_TOO_DEEP}") from None
        raise _not_valid("YAML", place, problem) from None
    except (yaml.reader.ReaderError, ValueError) as error:
        raise InputError(f"is not valid YAML: {getattr(error, 'reason', error)}") from None


def _not_valid(language: str, place: str, problem: str) -> InputError:
    problem = problem[:1].lower() + problem[1:]
    return InputError(f"is not valid {language} at {place}: {problem}")


class _Mappings:
    """Joins keys and values into mappings and remembers mappings with a repeated key."""

    def __init__(self) -> None:
        self._repeats: list[tuple[dict[str, object], str]] = []

    def joined(self, pairs: list[tuple[str, Any]]) -> dict[str, object]:
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            times = Counter(key for key, _ in pairs)
            self._repeats.append((mapping, times.most_common(1)[0][0]))
        return mapping

    def refuse_repeats(self, data: object, where: str = "") -> None:
        if not self._repeats:
            return
        keys = {id(mapping): key for mapping, key in self._repeats}
        for path, value in _values(data, where):
            if id(value) in keys:
                raise InputError("this key is given twice", field_path(path, keys[id(value)]))


def _values(data: object, where: str) -> Iterator[tuple[str, object]]:
    """Yield every mapping and list in ``data`` with its path, the outer ones first."""
    left = [(where, data)]
    while left:
        path, value = left.pop()
        yield path, value
        if isinstance(value, dict):
            left += [(field_path(path, key), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            left += [(f"{path}[{k}]", inner) for k, inner in enumerate(value)]


KUBERNETES = (
    "is a manifest of Kubernetes: dovetail import usage makes an instance of pods and nodes, or "
    "write a workload with its memory and a job for each pod"
)


def is_manifest(data: object) -> bool:
    """Return whether plain data are a Kubernetes object."""
    return isinstance(data, dict) and "apiVersion" in data and "kind" in data


class _YamlReader:
    """Builds plain data from the events of PyYAML's parser."""

    def __init__(self, text: str) -> None:
        self.mappings = _Mappings()
        self._events = yaml.parse(text, Loader=LOADER)
        self._left = MOST_MARKS

    def documents(self) -> Iterator[object]:
        self._next()
        while not isinstance(self._next(), yaml.StreamEndEvent):
            yield self._value(self._next(), 0)
            self._next()

    def document(self) -> object:
        self._next()
        start = self._next()
        if isinstance(start, yaml.StreamEndEvent):
            raise InputError("is empty")
        data = self._value(self._next(), 0)
        self._next()
        after = self._next()
        if not isinstance(after, yaml.StreamEndEvent):
            several = "must hold one document, got another"
            raise _refused(after, KUBERNETES if is_manifest(data) else several)
        return data

    def _next(self) -> yaml.Event:
        self._left -= 1
        if self._left < 0:
            raise InputError(_TOO_MANY)
        return next(self._events)

    def _value(self, event: yaml.Event, depth: int) -> object:
        self._refuse_extras(event)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if depth == _MOST_NESTED:
            raise _refused(event, _TOO_DEEP)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._list(depth)
        return self._mapping(depth)

    def _list(self, depth: int) -> list[object]:
        items = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append(self._value(event, depth + 1))
        return items

    def _mapping(self, depth: int) -> dict[str, object]:
        pairs = []
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            pairs.append((self._key(event), self._value(self._next(), depth + 1)))
        return self.mappings.joined(pairs)

    def _key(self, event: yaml.Event) -> str:
        self._refuse_extras(event)
        if not isinstance(event, yaml.ScalarEvent):
            raise _refused(event, "a key must be text")
        return str(event.value)

    def _scalar(self, event: yaml.ScalarEvent) -> object:
        try:
            return _plain_scalar(event.value) if event.implicit[0] else event.value
        except ValueError:
            raise _refused(event, _TOO_LONG) from None

    @staticmethod
    def _refuse_extras(event: yaml.Event) -> None:
        if getattr(event, "anchor", None) is not None:
            raise _refused(event, "anchors and aliases are not accepted, write values out")
        if tag := getattr(event, "tag", None):
            raise _refused(event, f"tags are not accepted, got {shown(tag)}")


def _refused(event: yaml.Event, rule: str) -> InputError:
    return InputError(f"{_place(event.start_mark)}: {rule}")


class _YamlMark(Protocol):
    line: int
    column: int


def _place(mark: _YamlMark | None) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark else "an unknown place"


def _plain_scalar(text: str) -> object:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    if _OTHER_BASE.fullmatch(text):
        return int(text, 0)
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def yaml_parts(data: object) -> Iterator[str]:
    """Yield parts of plain data as YAML, with each job, node, entry and assignment on its own line.

    The data may have `Lines`. Readers of YAML 1.1 and 1.2 get the same data.
    """
    block = _yaml_block(data, 0) if is_block(data, 0) else [yaml_line(data)]
    return (f"{part}\n" for part in block)


def _yaml_block(value: dict[str, object] | list[object], depth: int) -> Iterator[str]:
    margin = "  " * depth
    if isinstance(value, list):
        yield from (f"{margin}- {yaml_line(item)}" for item in value)
        return
    for key, inner in value.items():
        if is_block(inner, depth + 1):
            yield f"{margin}{_yaml_text(key)}:"
            yield from _yaml_block(inner, depth + 1)
        elif isinstance(inner, Lines):
            yield f"{margin}{_yaml_text(key)}:"
            for some in inner.texts(yaml_line):
                yield "\n".join(f"{margin}  - {line}" for line in some)
        else:
            yield f"{margin}{_yaml_text(key)}: {yaml_line(inner)}"


def yaml_line(value: object) -> str:
    """Return plain data as YAML on one line."""
    match value:
        case dict():
            members = (f"{_yaml_text(k)}: {yaml_line(v)}" for k, v in value.items())
            return f"{{{', '.join(members)}}}"
        case list():
            return f"[{', '.join(map(yaml_line, value))}]"
        case str():
            return _yaml_text(value)
        case float():
            return _yaml_number(value)
    return json_line(value)


def _yaml_text(text: str) -> str:
    if _PLAIN_TEXT.fullmatch(text) and text.lower() not in _WORDS_OF_YAML:
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    escaped = _ESCAPED_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)
    return f'"{escaped}"'


def _yaml_number(value: float) -> str:
    text = json_line(value)
    # In YAML 1.1, 1e-05 is a text and 1.0e-05 a number.
    return text if "." in text else text.replace("e", ".0e")
