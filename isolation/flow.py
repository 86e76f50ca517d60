"""Control flow analysis: the paths of the threads of a block through a kernel.

A branch is *uniform* if all threads of a block take it alike, *warp-uniform* if all threads of each
warp do, and otherwise *divergent*. Its level follows from the sources of its predicate: parameters
and block indices are equal in a block, the warp number is equal in a warp, and thread indices and
values loaded from memory may all differ. Threads that part at a branch meet again at its immediate
postdominator; the code between is the branch's *region*. The levels err on the side of divergence.

This analysis assumes that warps consist of 32 consecutive ``%tid.x``: blocks have one dimension, or
an x dimension that is a multiple of 32.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from itertools import pairwise

from dovetail.isolation.ptx import Function, Statement

_NAME = re.compile(r"%?[A-Za-z_$][\w$]*(?:\.[xyzw])?")
_DECLARED = re.compile(r"[A-Za-z_$][\w$]*")
_NO_RESULT = frozenset({"st", "bar", "barrier", "red", "bra", "brx", "ret", "exit", "membar"})
_OF_BLOCK = re.compile(r"%(?:ctaid|nctaid|ntid|nwarpid|dynamic_smem_size)\b")
_WARP = 32


class Level(IntEnum):
    """The set of threads for which a value is equal: a block, a warp, or a single thread."""

    UNIFORM = 0
    WARP = 1
    DIVERGENT = 2


@dataclass
class _BasicBlock:
    """A basic block: the range of its statements, and its successors; -1 is the end."""

    start: int
    end: int
    next: list[int] = field(default_factory=list)


class Flow:
    """The control flow of a kernel's body.

    Parameters
    ----------
    function : Function
        The kernel.
    """

    def __init__(self, function: Function) -> None:
        self._body = function.body
        # Inline assembly names registers without a percent sign, in its own scopes; registers of
        # the same name are treated as one.
        self._plain = frozenset(
            name
            for one in function.body
            if one.opcode == ".reg"
            for text in one.operands
            for name in _DECLARED.findall(text.split()[-1])
            if "%" not in text
        )
        self._blocks = _basic_blocks(function.body)
        self._after = _postdominators([block.next for block in self._blocks])

    def in_region_of(self, level: Level) -> set[int]:
        """Return the statements in the region of a branch of at least this level."""
        found: set[int] = set()
        for block, of_branch in self._branches.items():
            if of_branch >= level:
                for inside in self._region(block):
                    found.update(range(self._blocks[inside].start, self._blocks[inside].end))
        return found

    @cached_property
    def _branches(self) -> dict[int, Level]:
        """The level of the branch at the end of each block with several successors."""
        level: dict[str, Level] = {}
        sets = [self._results(one) for one in self._body]
        several = _set_often(self._body, sets)
        tid = _copies_of_tid(self._body, sets, several)
        forks = [k for k, block in enumerate(self._blocks) if len(block.next) > 1]
        block_of = {
            s: k for k, block in enumerate(self._blocks) for s in range(block.start, block.end)
        }
        regions = {k: set(self._region(k)) for k in forks}
        while True:
            before = dict(level)
            of_fork = {k: self._level_of_fork(k, level) for k in forks}
            for place, statement in enumerate(self._body):
                if not sets[place]:
                    continue
                given = self._result_level(statement, level, tid)
                for name in sets[place]:
                    here = block_of[place]
                    # A register that is set on several paths has, after they meet, the value from
                    # the path that was taken.
                    parted = [of_fork[k] for k in forks if name in several and here in regions[k]]
                    level[name] = max([level.get(name, Level.UNIFORM), given, *parted])
            if level == before:
                return of_fork

    def _level_of_fork(self, block: int, level: dict[str, Level]) -> Level:
        last = self._body[self._blocks[block].end - 1]
        read = [last.guard, *(last.operands[:1] if last.family == "brx" else ())]
        return max((_level(name, level) for name in self._read(read)), default=Level.UNIFORM)

    def _result_level(self, statement: Statement, level: dict[str, Level], tid: set[str]) -> Level:
        """Return the level of a statement's result."""
        if statement.family == "ld" and not any(map(statement.has, ("param", "const", "nc"))):
            return Level.DIVERGENT
        if statement.family in ("atom", "shfl", "match", "activemask", "call", "elect"):
            return Level.DIVERGENT
        if statement.family in ("vote", "redux"):
            return Level.WARP
        read = self._read([*statement.operands[1:], statement.guard])
        sources = max((_level(name, level) for name in read), default=Level.UNIFORM)
        if sources == Level.DIVERGENT and _is_of_warp(statement, tid):
            return Level.WARP
        return sources

    def _results(self, statement: Statement) -> list[str]:
        """Return the registers that a statement sets."""
        if not statement.operands or statement.opcode.startswith("."):
            return []
        if statement.family in _NO_RESULT and not statement.has("red"):
            return []
        return list(self._read(statement.operands[:1]))

    def _read(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield the registers named by operands."""
        for text in texts:
            for name in _NAME.findall(text):
                if name[0] == "%" or name in self._plain:
                    yield name

    def _region(self, block: int) -> set[int]:
        """Return the blocks between a branch and where its paths meet, with its own in a loop."""
        meet = self._after[block]
        found: set[int] = set()
        left = [k for k in self._blocks[block].next if k not in (meet, -1)]
        while left:
            k = left.pop()
            if k not in found:
                found.add(k)
                left += [n for n in self._blocks[k].next if n not in (meet, -1)]
        return found


def _basic_blocks(body: Sequence[Statement]) -> list[_BasicBlock]:
    """Return the basic blocks of a body; a guarded return separates threads like a branch."""
    targets = _branch_targets(body)
    starts = {0}
    for place, one in enumerate(body):
        if one.label:
            starts.add(place)
        if one.family in ("bra", "brx", "ret", "exit", "trap"):
            starts.add(place + 1)
    ordered = sorted(start for start in starts if start < len(body))
    blocks = [
        _BasicBlock(start, end)
        for start, end in zip(ordered, [*ordered[1:], len(body)], strict=True)
    ]
    at_label = {body[s].label: k for k, b in enumerate(blocks) for s in (b.start,) if body[s].label}
    for k, block in enumerate(blocks):
        last = body[block.end - 1] if block.end > block.start else None
        following = k + 1 if k + 1 < len(blocks) else -1
        jumps: list[int] = []
        if last is not None and last.family == "bra":
            jumps = [at_label[last.operands[0]]]
        elif last is not None and last.family == "brx":
            jumps = [at_label[name] for name in targets[last.operands[1]]]
        elif last is not None and last.family in ("ret", "exit", "trap"):
            jumps = [-1]
        falls = not jumps or bool(last and last.guard)
        block.next = list(dict.fromkeys([*jumps, *([following] if falls else [])]))
    return blocks


def _branch_targets(body: Sequence[Statement]) -> dict[str, tuple[str, ...]]:
    """Return the labels in each list of branch targets."""
    return {
        before.label: one.operands
        for before, one in pairwise(body)
        if one.opcode == ".branchtargets"
    }


def _postdominators(following: Sequence[Sequence[int]]) -> list[int]:
    """Return the immediate postdominator of each block; -1 is the end."""
    count = len(following)
    everything = (1 << (count + 1)) - 1  # the last bit is the end
    after = [everything] * count
    changed = True
    while changed:
        changed = False
        for k in range(count - 1, -1, -1):
            common = everything
            for n in following[k]:
                common &= (1 << count) if n == -1 else after[n]
            new = common | (1 << k)
            changed |= new != after[k]
            after[k] = new
    sizes = [one.bit_count() for one in after]
    return [_nearest(after[k] & ~(1 << k), sizes, count) for k in range(count)]


def _nearest(candidates: int, sizes: Sequence[int], count: int) -> int:
    """Return the nested postdominator that itself has the most postdominators."""
    inside = [k for k in range(count) if candidates >> k & 1]
    return max(inside, key=lambda k: sizes[k], default=-1)


def _set_often(body: Sequence[Statement], sets: Sequence[Sequence[str]]) -> set[str]:
    """Return the registers set by several statements, or by one that may not run."""
    once: set[str] = set()
    often: set[str] = set()
    for statement, names in zip(body, sets, strict=True):
        often.update(name for name in names if name in once or statement.guard)
        once.update(names)
    return often


def _copies_of_tid(
    body: Sequence[Statement], sets: Sequence[Sequence[str]], several: set[str]
) -> set[str]:
    copies = {"%tid.x"}
    for one, names in zip(body, sets, strict=True):
        if one.family in ("mov", "cvt") and one.operands[1:] and one.operands[1] in copies:
            copies.update(name for name in names if name not in several)
    return copies


def _level(name: str, level: dict[str, Level]) -> Level:
    if _OF_BLOCK.match(name):
        return Level.UNIFORM
    if name.startswith("%warpid"):
        return Level.WARP
    if re.match(r"%(?:tid|laneid|lanemask|clock|globaltimer|pm)", name):
        return Level.DIVERGENT
    return level.get(name, Level.UNIFORM)


def _is_of_warp(statement: Statement, tid: set[str]) -> bool:
    """Return whether a result computed from ``%tid.x`` depends only on its warp."""
    if len(statement.operands) < 3 or statement.operands[1] not in tid:
        return False
    number = _integer(statement.operands[2])
    if number is None:
        return False
    match statement.family:
        case "shr":
            return number >= 5
        case "and":
            return number % _WARP == 0
        case "setp":
            relation = statement.opcode.split(".")[1]
            below = {"lt": number, "ge": number, "le": number + 1, "gt": number + 1}
            below |= {"lo": number, "hs": number, "ls": number + 1, "hi": number + 1}
            return below.get(relation, 1) % _WARP == 0
    return False


def _integer(text: str) -> int | None:
    try:
        return int(text.rstrip("U"), 0)
    except ValueError:
        return None
