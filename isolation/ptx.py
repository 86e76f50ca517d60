"""Reads PTX modules into functions and statements, and writes them back.

It parses only the parts that the transformations need: the extents of functions, their parameters
and directives, and their bodies as statements with label, guard, opcode and operands. All other
text is kept unchanged. PTX ISA 6.0 to 9.0 (NVIDIA, *Parallel Thread Execution ISA*).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from dovetail.instances.errors import DovetailError

_BLANK = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)+", re.DOTALL)
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_GUARD = re.compile(r"@!?\s*%?[A-Za-z_$][\w$]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_WHOLE_LINE = re.compile(r"\.(?:version|target|address_size|file|loc)\b[^\n]*")
_FUNCTION = re.compile(r"\.(entry|func)\b")
_NAME = re.compile(r"[A-Za-z_$%][\w$]*")
_VERSION = re.compile(r"^\s*\.version\s+(\d+)\.(\d+)", re.MULTILINE)
_TARGET = re.compile(r"^\s*\.target\s+(\w+)", re.MULTILINE)
_OPENING, _CLOSING = "([{", ")]}"


class PtxError(DovetailError):
    """A text is not PTX that this module can read."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a function's body.

    Attributes
    ----------
    text : str
        The original text with its semicolon; ``{`` or ``}`` for the bounds of a scope.
    label : str
        The name, if the statement is a label.
    guard : str
        The predicate with its ``@``, empty if the instruction always runs.
    opcode : str
        The opcode of an instruction or directive with its modifiers: ``ld.param.u64``, ``.reg``.
    operands : tuple of str
        The text after the opcode, split at commas outside brackets.
    depth : int
        The number of scopes around the statement, without the function's.
    """

    text: str
    label: str = ""
    guard: str = ""
    opcode: str = ""
    operands: tuple[str, ...] = ()
    depth: int = 0

    @property
    def family(self) -> str:
        """The opcode without its modifiers: ``ld``."""
        return self.opcode.partition(".")[0]

    def has(self, modifier: str) -> bool:
        """Return whether the opcode has a modifier, such as ``sync``."""
        return modifier in self.opcode.split(".")[1:]


@dataclass(frozen=True)
class Function:
    """A kernel (``.entry``) or device function (``.func``).

    Attributes
    ----------
    kind : str
        ``entry`` or ``func``.
    name : str
        Its name.
    head : str
        The text before the parameters, including the name.
    parameters : tuple of str
        Declarations, such as ``.param .u64 k_param_0``.
    directives : str
        The text after the parameters, such as ``.maxntid 128, 1, 1``.
    body : tuple of Statement
        Its statements, empty for a declaration.
    start, end : int
        Its position in the module's text.
    """

    kind: str
    name: str
    head: str
    parameters: tuple[str, ...]
    directives: str
    body: tuple[Statement, ...]
    start: int = 0
    end: int = 0

    def text(self) -> str:
        """Return the function as PTX."""
        lines = [f"{self.head}(", ",\n".join(f"\t{one}" for one in self.parameters), ")"]
        lines += [self.directives] if self.directives else []
        lines += ["{", *(_line(one) for one in self.body), "}", ""]
        return "\n".join(lines)

    def renamed(self, name: str) -> Function:
        """Return the function with another name; its parameters keep their names."""
        head = self.head[: self.head.rindex(self.name)] + name
        return replace(self, name=name, head=head)


@dataclass(frozen=True)
class Module:
    """A PTX module.

    Attributes
    ----------
    text : str
        The original text.
    version : tuple of int
        The version of the PTX ISA.
    target : str
        The architecture, such as ``sm_80``.
    functions : mapping of str to Function
        Functions with a body, by name.
    """

    text: str
    version: tuple[int, int]
    target: str
    functions: Mapping[str, Function]

    @property
    def kernels(self) -> tuple[Function, ...]:
        """Its kernels."""
        return tuple(one for one in self.functions.values() if one.kind == "entry")

    def with_kernels(self, added: Sequence[Function], declared: str = "") -> str:
        """Return the module's text with a declaration and further kernels at its end."""
        before = [self.text.rstrip("\0\n"), *([declared] if declared else [])]
        return "\n".join([*before, *(one.text() for one in added)])


def parse(text: str) -> Module:
    """Read a module.

    Parameters
    ----------
    text : str
        PTX, possibly with the zero byte at its end that CUDA requires.

    Raises
    ------
    PtxError
        When the text ends too early (with the line), or has no version or target.
    """
    text = text.rstrip("\0")
    version, target = _VERSION.search(text), _TARGET.search(text)
    if version is None or target is None:
        raise PtxError("PTX must name its .version and .target")
    found = {one.name: one for one in _functions(text) if one.body}
    return Module(text, (int(version[1]), int(version[2])), target[1], MappingProxyType(found))


def split_operands(text: str) -> tuple[str, ...]:
    """Split operands at the commas outside brackets and strings."""
    parts, depth, start = [], 0, 0
    for at in _code(text, 0, len(text)):
        depth += (text[at] in _OPENING) - (text[at] in _CLOSING)
        if text[at] == "," and not depth:
            parts.append(text[start:at].strip())
            start = at + 1
    return tuple([*parts, text[start:].strip()] if text.strip() else [])


def instruction(text: str, depth: int = 0) -> Statement:
    """Return the statement of one instruction or directive, given with its semicolon."""
    rest = _BLANK.sub(" ", text.removesuffix(";")).strip()
    guard = found[0] if (found := _GUARD.match(rest)) else ""
    opcode, _, operands = rest[len(guard) :].strip().partition(" ")
    return Statement(
        text.strip(), "", guard.replace(" ", ""), opcode, split_operands(operands), depth
    )


def label(name: str) -> Statement:
    """Return the statement of a label."""
    return Statement(f"{name}:", label=name)


def _line(statement: Statement) -> str:
    return statement.text if statement.label else f"\t{statement.text}"


def _functions(text: str) -> Iterator[Function]:
    at = 0
    while (at := _after_blank(text, at)) < len(text):
        if line := _WHOLE_LINE.match(text, at):
            at = line.end()
            continue
        end = _end_of_head(text, at)
        if end < len(text) and text[end] == "{" and _FUNCTION.search(text, at, end):
            close = _matching(text, end)
            yield _function(text, at, end, close)
            at = close + 1
        elif end < len(text) and text[end] == "{":
            at = _matching(text, end) + 1
        else:
            at = end + 1


def _end_of_head(text: str, at: int) -> int:
    """Return the position of a top-level item's body or semicolon, after its initialisers."""
    depth, assigned = 0, False
    for place in _code(text, at, len(text)):
        if text[place] == ";" and not depth:
            return place
        if text[place] == "{" and not depth and not assigned:
            return place
        depth += (text[place] in _OPENING) - (text[place] in _CLOSING)
        assigned |= text[place] == "="
    return len(text)


def _matching(text: str, at: int) -> int:
    """Return the position of the brace that closes the one at ``at``."""
    depth = 0
    for place in _code(text, at, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if not depth:
            return place
    raise PtxError(f"PTX line {_line_of(text, at)}: this brace is never closed")


def _function(text: str, start: int, open_at: int, close: int) -> Function:
    head = _BLANK.sub(" ", text[start:open_at]).strip()
    found = _FUNCTION.search(head)
    assert found is not None
    # A device function may have a return parameter in brackets before its name.
    at = found.end()
    at += len(head[at:]) - len(head[at:].lstrip())
    if head[at : at + 1] == "(":
        at = _closing(head, at) + 1
    name = _NAME.search(head, at)
    if name is None:
        raise PtxError(f"PTX line {_line_of(text, start)}: a function without a name")
    parameters, rest, end = "", head[name.end() :].strip(), name.end()
    if rest.startswith("("):
        bracket = head.index("(", end)
        closing = _closing(head, bracket)
        parameters, rest = head[bracket + 1 : closing], head[closing + 1 :].strip()
    return Function(
        kind=found[1],
        name=name[0],
        head=head[:end],
        parameters=split_operands(parameters),
        directives=rest,
        body=tuple(_statements(text, open_at + 1, close)),
        start=start,
        end=close + 1,
    )


def _closing(text: str, at: int) -> int:
    depth = 0
    for place in range(at, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if not depth:
            return place
    raise PtxError("a bracket of a function's parameters is never closed")


def _statements(text: str, at: int, end: int) -> Iterator[Statement]:
    depth = 0
    while (at := _after_blank(text, at)) < end:
        if line := _WHOLE_LINE.match(text, at):
            yield Statement(line[0], opcode=line[0].split()[0], depth=depth)
            at = line.end()
        elif text[at] in "{}":
            depth += 1 if text[at] == "{" else -1
            yield Statement(text[at], depth=depth)
            at += 1
        elif found := _LABEL.match(text, at):
            yield Statement(f"{found[1]}:", label=found[1], depth=depth)
            at = found.end()
        else:
            close = _semicolon(text, at, end)
            yield instruction(text[at : close + 1], depth)
            at = close + 1


def _semicolon(text: str, at: int, end: int) -> int:
    for place in _code(text, at, end):
        if text[place] == ";":
            return place
    raise PtxError(f"PTX line {_line_of(text, at)}: this statement has no end")


def _code(text: str, at: int, end: int) -> Iterator[int]:
    """Yield the positions of characters outside blanks, comments and strings."""
    while at < end:
        if blank := _BLANK.match(text, at):
            at = blank.end()
        elif text[at] == '"' and (string := _STRING.match(text, at)):
            at = string.end()
        else:
            yield at
            at += 1


def _after_blank(text: str, at: int) -> int:
    return blank.end() if (blank := _BLANK.match(text, at)) else at


def _line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
