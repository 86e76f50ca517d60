"""Instructions of tensor cores and of asynchronous copies, with the addresses that they demand.

Layouts of fragments, descriptors and swizzles are those of the PTX ISA 9.0 (sections on ``mma``,
``wgmma``, ``ldmatrix``, ``mbarrier`` and ``cp.async.bulk``). A swizzle exchanges chunks of 16 bytes
by bits of the *address in shared memory*: a kernel that writes its operands by hand rests on where
they begin, although no declaration of PTX says so. What is asynchronous happens at a random moment
between its start and the wait for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dovetail.isolation.ptx import Statement
    from tests.isolation.interpreter import Block, Thread

WARP, WARP_GROUP = 32, 128
_SWIZZLES = {0: 16, 1: 128, 2: 64, 3: 32}
BYTES: Mapping[str, int] = {
    **dict.fromkeys(("f32", "s32", "tf32"), 4),
    **dict.fromkeys(("f16", "bf16"), 2),
    **dict.fromkeys(("e4m3", "e5m2", "s8", "u8"), 1),
}
"""Bytes of an element of a matrix."""
_OPERAND_BYTES = 32
"""What ``wgmma`` multiplies at once, of a row of its first and a column of its second operand."""
_INTEGERS = ("s8", "u8")
_FLOATS = ("f16", "bf16", "tf32", "e4m3", "e5m2")
_SMALL_FLOATS = ("e4m3", "e5m2")

_MMA = re.compile(
    r"mma\.sync\.aligned\.m16n8k(\d+)\.row\.col(\.satfinite)?\.(\w+)\.(\w+)\.(\w+)\.(\w+)"
)
_MMA_ASYNC = re.compile(
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)(\.satfinite)?\.(\w+)\.(\w+)\.(\w+)"
)
_LDMATRIX = re.compile(
    r"(?:ld|st)matrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared(?:::cta)?\.b16"
)
_MBARRIER = re.compile(
    r"mbarrier\.(?:init|inval|arrive(?:\.expect_tx)?|expect_tx|(?:try|test)_wait(?:\.parity)?)"
    r"(?:\.(?:release|acquire|relaxed))?(?:\.cta)?(?:\.shared(?:::cta)?)?\.b64"
)
_BULK = re.compile(
    r"cp\.async\.bulk(?P<tile>\.tensor\.[1-5]d)?\.shared::(?:cluster|cta)\.global(?:\.tile)?"
    r"\.mbarrier::complete_tx::bytes(?:\.L2::cache_hint)?"
)


class InterpreterError(Exception):
    """A kernel broke a rule of CUDA or used an instruction unknown to this interpreter."""


class AddressError(InterpreterError):
    """An instruction got an address that it does not accept."""


def aligned(address: int, size: int, what: str) -> int:
    """Return an address, which must be a multiple of ``size``."""
    if address % size:
        raise AddressError(f"{what} at {address}: must be a multiple of {size}")
    return address


@dataclass
class MemoryBarrier:
    """An mbarrier: arrivals and bytes that its phase still expects."""

    count: int
    pending: int
    phase: int = 0
    bytes_left: int = 0

    def settle(self) -> None:
        if self.pending == 0 and self.bytes_left == 0:
            self.phase, self.pending = self.phase + 1, self.count


@dataclass
class InFlight:
    """What a block has started and not awaited: products by warp group, and bulk copies."""

    started: dict[int, list[Callable[[], None]]] = field(default_factory=dict)
    groups: dict[int, list[list[Callable[[], None]]]] = field(default_factory=dict)
    barriers: dict[int, MemoryBarrier] = field(default_factory=dict)
    copies: list[Callable[[], None]] = field(default_factory=list)


@dataclass(frozen=True)
class TensorMap:
    """A made-up encoding of a map for bulk copies of tiles; that of the driver is secret.

    ``extents`` and ``box`` are in elements, x first; ``pitches`` are the bytes from one y to the
    next, and so on.
    """

    at: int
    element_bytes: int
    extents: tuple[int, ...]
    pitches: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int = 16

    def encoded(self) -> bytes:
        numbers = [self.at, self.element_bytes, self.swizzle_bytes, len(self.box)]
        numbers += [*self.extents, *self.pitches, *self.box]
        return np.array(numbers, np.int64).tobytes().ljust(128, b"\0")

    @classmethod
    def of(cls, data: bytes) -> TensorMap:
        at, size, swizzle, axes, *rest = np.frombuffer(data, np.int64).tolist()
        extents, pitches = rest[:axes], rest[axes : 2 * axes - 1]
        box = rest[2 * axes - 1 : 3 * axes - 1]
        return cls(at, size, tuple(extents), tuple(pitches), tuple(box), swizzle)


def swizzled(addresses: Any, width: int) -> Any:
    """Return where bytes at addresses are under a swizzle of ``width`` bytes."""
    return addresses ^ ((addresses >> 7 & (width // 16 - 1)) << 4)


@cache
def _offsets(extent: int, size: int, width: int, lead: int, step: int, transposed: bool) -> Any:
    """Return the offset of each element of a ``wgmma`` operand from its start, unswizzled."""
    mn, k = np.arange(extent)[:, None], np.arange(_OPERAND_BYTES // size)[None, :]
    if transposed and width == 16:
        return mn % 8 * 2 + mn // 8 * step + k % 8 * 16 + k // 8 * lead
    if transposed:
        across = width // 2
        return mn % across * 2 + mn // across * lead + k % 8 * width + k // 8 * step
    rows = mn % 8 * width + mn // 8 * step
    return rows + k * size % 16 + k * size // 16 * (lead if width == 16 else 16)


def operand(block: Block, descriptor: int, extent: int, transposed: bool, kind: str) -> Any:
    """Return the operand of ``wgmma`` that a descriptor names, extent x K.

    Without a swizzle, 8 rows of 16 bytes are together: ``lead`` and ``step`` are the distances of
    such pieces along K and across, and no address above 16 bytes matters.
    """
    size = BYTES[kind]
    width = _SWIZZLES[descriptor >> 62 & 3]
    start, lead, step = (((descriptor >> bit) & 0x3FFF) << 4 for bit in (0, 16, 32))
    if width > 16 and start >> 7 & (width // 16 - 1) != descriptor >> 49 & 7:
        raise AddressError(f"wgmma operand at {start}: not at the start of a swizzle of {width}")
    offsets = _offsets(extent, size, width, lead, step, transposed)
    places = swizzled(start + offsets, width)
    memory = np.frombuffer(block.shared, np.uint8)
    if places.max() + size > len(memory):
        raise AddressError(f"wgmma operand at {start}: ends beyond shared memory")
    gathered = memory[places[..., None] + np.arange(size)]
    return numbers(np.ascontiguousarray(gathered).reshape(extent, -1), kind)


def numbers(raw: Any, kind: str) -> Any:
    """Return the numbers that bytes stand for; the lowest 13 bits of ``tf32`` do not count."""
    match kind:
        case "f16":
            return raw.view(np.float16).astype(np.float64)
        case "bf16":
            return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        case "tf32":
            return (raw.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)
        case "e5m2":
            return (raw.view(np.uint8).astype(np.uint16) << 8).view(np.float16).astype(np.float64)
        case "e4m3":
            return E4M3[raw.view(np.uint8)]
        case "f32" | "s32" | "s8" | "u8":
            of = {"f32": np.float32, "s32": np.int32, "s8": np.int8, "u8": np.uint8}[kind]
            return raw.view(of).astype(np.float64)
    raise InterpreterError(f"a matrix of {kind}")


def _e4m3() -> Any:
    """Return the number of each byte: no infinities, and NaN only where all bits are set."""
    code = np.arange(256)
    exponent, part = code >> 3 & 15, (code & 7) / 8
    size = np.where(exponent == 0, part * 2.0**-6, (1 + part) * 2.0 ** (exponent - 7.0))
    size[code & 127 == 127] = np.nan
    return np.where(code > 127, -size, size)


E4M3 = _e4m3()


@cache
def _fragment(registers: int, each: int, *, by_columns: bool) -> tuple[Any, Any]:
    """Return row and column of each element: lane x register x element of the register.

    ``by_columns`` is the second operand of ``mma``, K x 8; otherwise the first, 16 x K.
    """
    lane, register, element = np.ogrid[:WARP, :registers, :each]
    far, near = (register, 0) if by_columns else (register // 2, register % 2)
    along = each * (lane % 4) + 4 * each * far + element
    across, along = np.broadcast_arrays(lane // 4 + 8 * near + 0 * element, along)
    return (along, across) if by_columns else (across, along)


@cache
def _result(registers: int, each: int) -> tuple[Any, Any]:
    """Return row and column of each element of a result of 16 rows."""
    lane, register, element = np.ogrid[:WARP, :registers, :each]
    n = register * each + element
    row, column = np.broadcast_arrays(
        lane // 4 + 8 * (n // 2 % 2), 8 * (n // 4) + 2 * (lane % 4) + n % 2
    )
    return row, column


def _packed(values: Any, kind: str, *, saturated: bool = False) -> Any:
    """Return the registers (lane x register) of elements (lane x register x element)."""
    if kind == "s32":
        whole = values.astype(np.int64)
        held = np.clip(whole, -(1 << 31), (1 << 31) - 1) if saturated else whole
        return (held & 0xFFFFFFFF).astype(np.uint32)[..., 0]
    made = np.ascontiguousarray(values.astype(np.float32 if kind == "f32" else np.float16))
    return made.view(np.uint32)[..., 0]


def _unpacked(raw: Any, kind: str) -> Any:
    held = np.ascontiguousarray(np.array(raw, np.uint64).astype(np.uint32)[..., None])
    return numbers(held.view(np.uint8), kind)


def _matrix(raw: Any, kind: str, shape: tuple[int, int], *, by_columns: bool) -> Any:
    made = np.zeros(shape)
    values = _unpacked(raw, kind)
    made[_fragment(*values.shape[1:], by_columns=by_columns)] = values
    return made


def _require(holds: object, one: Statement) -> None:
    """Refuse an instruction that this interpreter does not know in this form."""
    if not holds:
        raise InterpreterError(f"unknown form of {one.text}")


def _kinds_fit(result: str, left: str, right: str) -> bool:
    """Return whether matrices of these types are multiplied into one of that type."""
    if left in _INTEGERS:
        return right in _INTEGERS and result == "s32"
    alike = left == right or {left, right} <= {*_SMALL_FLOATS}
    wide = left in ("bf16", "tf32")
    return left in _FLOATS and alike and result in (("f32",) if wide else ("f32", "f16"))


class TensorInstructions:
    """The instructions, as a part of ``interpreter.Kernel``."""

    _register: Callable[[str], int]
    _reader: Callable[..., Callable[[Thread], int]]
    _address: Callable[[str], Callable[[Thread], int]]
    _vector: Callable[[str], list[str]]

    def _all_of_warp(self, place: int, act: Callable[[Sequence[Thread]], None]) -> Any:
        def acting(there: Sequence[Thread]) -> None:
            if len(there) != WARP:
                raise InterpreterError("an instruction of a whole warp lacks threads")
            act(there)

        def wait(t: Thread) -> None:
            t.waits = ("warp", place, 0xFFFFFFFF, acting)

        return wait

    def _ldmatrix(self, one: Statement, place: int) -> Any:
        form = _LDMATRIX.fullmatch(one.opcode)
        to = [self._register(name) for name in self._vector(one.operands[0])]
        address = self._address(one.operands[1])
        _require(form and len(to) == int(form[1]), one)

        def act(there: Sequence[Thread]) -> None:
            block = there[0].block
            for k, register in enumerate(to):
                rows = [
                    block.load(t, "shared", aligned(address(t), 16, "ldmatrix"), 16)
                    for t in there[8 * k : 8 * k + 8]
                ]
                held = np.array([[row >> 16 * n & 0xFFFF for n in range(8)] for row in rows])
                held = held.T if one.has("trans") else held
                for t in there:
                    low, high = held[t.lane // 4, 2 * (t.lane % 4) :][:2].tolist()
                    t.registers[register] = high << 16 | low

        return self._all_of_warp(place, act)

    def _stmatrix(self, one: Statement, place: int) -> Any:
        form = _LDMATRIX.fullmatch(one.opcode)
        given = [self._register(name) for name in self._vector(one.operands[1])]
        address = self._address(one.operands[0])
        _require(form and len(given) == int(form[1]), one)

        def act(there: Sequence[Thread]) -> None:
            for k, register in enumerate(given):
                held = np.zeros((8, 8), np.int64)
                for t in there:
                    raw = t.registers[register]
                    held[t.lane // 4, 2 * (t.lane % 4) :][:2] = (raw & 0xFFFF, raw >> 16 & 0xFFFF)
                held = held.T if one.has("trans") else held
                for t, row in zip(there[8 * k : 8 * k + 8], held.tolist(), strict=True):
                    value = sum(half << 16 * n for n, half in enumerate(row))
                    at = aligned(address(t), 16, "stmatrix")
                    t.block.store(t, "shared", at, 16, value)

        return self._all_of_warp(place, act)

    def _mma(self, one: Statement, place: int) -> Any:
        form = _MMA.fullmatch(one.opcode)
        _require(form, one)
        assert form is not None
        inner, saturated = int(form[1]), bool(form[2])
        of_d, of_a, of_b, of_c = form.groups()[2:]
        _require(_kinds_fit(of_d, of_a, of_b) and of_c == of_d, one)
        to = [self._register(name) for name in self._vector(one.operands[0])]
        a, b, c = (
            [self._reader(name) for name in self._vector(text)] for text in one.operands[1:4]
        )
        each = 4 // BYTES[of_a]
        _require(inner == 4 * each * len(b) and len(a) == 2 * len(b) and len(b) in (1, 2), one)
        _require(len(to) == len(c) == BYTES[of_d], one)

        def act(there: Sequence[Thread]) -> None:
            def held(readers: Sequence[Callable[[Thread], int]]) -> list[list[int]]:
                return [[read(t) & 0xFFFFFFFF for read in readers] for t in there]

            left = _matrix(held(a), of_a, (16, inner), by_columns=False)
            right = _matrix(held(b), of_b, (inner, 8), by_columns=True)
            added = _unpacked(held(c), of_c)
            place_of = _result(len(to), 4 // BYTES[of_d])
            made = _packed((left @ right)[place_of] + added, of_d, saturated=saturated)
            for t, values in zip(there, made.tolist(), strict=True):
                for register, value in zip(to, values, strict=True):
                    t.registers[register] = value

        return self._all_of_warp(place, act)

    # Warp groups.

    def _wgmma(self, one: Statement, place: int) -> Any:
        if one.opcode == "wgmma.fence.sync.aligned":
            return lambda t: None
        if one.opcode == "wgmma.commit_group.sync.aligned":

            def commit(there: Sequence[Thread]) -> None:
                flight, group = there[0].block.flight, there[0].number // WARP_GROUP
                flight.groups.setdefault(group, []).append(flight.started.pop(group, []))

            return _of_group(place, commit)
        if one.opcode == "wgmma.wait_group.sync.aligned":
            keep = int(one.operands[0], 0)

            def wait(there: Sequence[Thread]) -> None:
                block = there[0].block
                groups = block.flight.groups.get(there[0].number // WARP_GROUP, [])
                while len(groups) > keep or (groups and block.launch.rng.random() < 0.5):
                    for perform in groups.pop(0):
                        perform()

            return _of_group(place, wait)
        return self._mma_async(one, place)

    def _mma_async(self, one: Statement, place: int) -> Any:
        form = _MMA_ASYNC.fullmatch(one.opcode)
        _require(form, one)
        assert form is not None
        across, inner, saturated = int(form[1]), int(form[2]), bool(form[3])
        of_d, of_a, of_b = form.groups()[3:]
        _require(_kinds_fit(of_d, of_a, of_b) and inner * BYTES[of_a] == _OPERAND_BYTES, one)
        to = [self._register(name) for name in self._vector(one.operands[0])]
        each = 4 // BYTES[of_d]
        _require(len(to) * each * 2 == across, one)
        from_registers = one.operands[1].startswith("{")
        left = [self._reader(name) for name in self._vector(one.operands[1])]
        _require(len(left) == (4 if from_registers else 1), one)
        right, adds = self._reader(one.operands[2]), self._reader(one.operands[3], "pred")
        signs = [int(text) for text in one.operands[4:6]]
        turned = [bool(int(text)) for text in one.operands[6:]]
        may_turn = BYTES[of_a] == 2
        _require(len(signs) == (0 if of_d == "s32" else 2), one)
        _require(len(turned) == ((1 if from_registers else 2) if may_turn else 0), one)
        sign = math.prod(signs)
        turned_right = turned[-1] if turned else False
        turned_left = turned[0] if len(turned) > 1 else False

        def start(there: Sequence[Thread]) -> None:
            if len(there) != WARP_GROUP:
                raise InterpreterError("wgmma lacks threads of its warp group")
            block, first = there[0].block, there[0]
            at_right, accumulates = right(first), adds(first)
            given = [[read(t) for read in left] for t in there]

            def perform() -> None:
                b = operand(block, at_right, across, turned_right, of_b)
                if not from_registers:
                    a = operand(block, given[0][0], 64, turned_left, of_a)
                for warp in range(4):
                    of_warp = slice(WARP * warp, WARP * (warp + 1))
                    if from_registers:
                        raw = given[of_warp]
                        rows = _matrix(raw, of_a, (16, inner), by_columns=False)
                    else:
                        rows = a[16 * warp : 16 * warp + 16]
                    places = _result(len(to), each)
                    values = sign * (rows @ b.T)[places]
                    members = there[of_warp]
                    if accumulates:
                        before = [[t.registers[r] & 0xFFFFFFFF for r in to] for t in members]
                        values = values + _unpacked(before, of_d)
                    made = _packed(values, of_d, saturated=saturated)
                    for t, row in zip(members, made.tolist(), strict=True):
                        for register, value in zip(to, row, strict=True):
                            t.registers[register] = value

            group = first.number // WARP_GROUP
            block.flight.started.setdefault(group, []).append(perform)

        return _of_group(place, start)

    # Barriers in shared memory, and bulk copies.

    def _mbarrier(self, one: Statement, place: int) -> Any:
        _require(_MBARRIER.fullmatch(one.opcode), one)
        operands = [text for text in one.operands if text != "_"]
        brackets = next(k for k, text in enumerate(operands) if text.startswith("["))
        address = self._address(operands[brackets])
        given = [self._reader(text) for text in operands[brackets + 1 :]]
        to = self._register(operands[0]) if brackets else None
        waits = one.has("try_wait") or one.has("test_wait")
        by_parity, expects = one.has("parity"), one.has("expect_tx")

        def run(t: Thread) -> None:
            barriers, at = t.block.flight.barriers, aligned(address(t), 8, "mbarrier")
            at &= (1 << 40) - 1
            if one.has("init"):
                if at in barriers:
                    raise InterpreterError(f"mbarrier at {at} is initialised while it is one")
                barriers[at] = MemoryBarrier(given[0](t), given[0](t))
                return
            if at not in barriers:
                raise InterpreterError(f"mbarrier at {at} was not initialised")
            barrier = barriers[at]
            if one.has("inval"):
                del barriers[at]
            elif waits:
                _land_some(t.block)
                # What an arrival returns is the number of its phase here.
                same = barrier.phase & 1 if by_parity else barrier.phase
                if to is not None:
                    t.registers[to] = int(given[0](t) != same)
                return
            if one.has("arrive") and to is not None:
                t.registers[to] = barrier.phase
            if expects:
                barrier.bytes_left += given[0](t)
            if one.has("arrive"):
                barrier.pending -= given[0](t) if given and not expects else 1
            if barrier.pending < 0:
                raise InterpreterError(f"mbarrier at {at} counts more arrivals than it expects")
            barrier.settle()

        return run

    def _bulk(self, one: Statement, place: int) -> Any:
        """Copy one piece, or a tile, from global to shared memory, and count its bytes."""
        form = _BULK.fullmatch(one.opcode)
        _require(form, one)
        tile = bool(form and form["tile"])
        to, at_barrier = self._address(one.operands[0]), self._address(one.operands[3 - tile])
        if tile:
            of_map, coordinates = _map_and_coordinates(one.operands[1])
            read_map = self._reader(of_map)
            axes = [self._reader(text) for text in coordinates]
        else:
            source, size = self._address(one.operands[1]), self._reader(one.operands[2])

        def run(t: Thread) -> None:
            block, target = t.block, to(t) & ((1 << 40) - 1)
            barrier = block.flight.barriers[aligned(at_barrier(t) & ((1 << 40) - 1), 8, "mbarrier")]
            if tile:
                raw = block.load_bytes(t, read_map(t), 128)
                start = tuple(_signed(read(t)) for read in axes)
                pieces = _pieces(TensorMap.of(raw), start, aligned(target, 128, "bulk tensor copy"))
            else:
                count = aligned(size(t), 16, "size of a bulk copy")
                aligned(target, 16, "bulk copy")
                pieces = [(target, aligned(source(t), 16, "bulk copy from"), count)]

            def land() -> None:
                for place_to, place_from, length in pieces:
                    data = bytes(length)
                    if place_from is not None:
                        data = block.load_bytes(t, place_from, length)
                    block.shared[place_to : place_to + length] = data
                barrier.bytes_left -= sum(length for _, _, length in pieces)
                barrier.settle()

            block.flight.copies.append(land)

        return run


def _land_some(block: Block) -> None:
    """Let some of the bulk copies land, in any order."""
    rng, copies = block.launch.rng, block.flight.copies
    while copies and rng.random() < 0.5:
        copies.pop(rng.randrange(len(copies)))()


def _of_group(place: int, act: Callable[[Sequence[Thread]], None]) -> Any:
    def wait(t: Thread) -> None:
        t.waits = ("group", place, act)

    return wait


def _signed(raw: int) -> int:
    return (raw & 0xFFFFFFFF) - (1 << 32 if raw >> 31 & 1 else 0)


def _map_and_coordinates(text: str) -> tuple[str, list[str]]:
    name, _, rest = text.strip("[] ").partition(",")
    return name.strip(), [one.strip() for one in rest.strip(" {}").split(",")]


def _pieces(of: TensorMap, start: Sequence[int], target: int) -> list[tuple[int, int | None, int]]:
    """Return the pieces of 16 bytes of a tile: to, from (None where outside), bytes."""
    made: list[tuple[int, int | None, int]] = []
    row_bytes = of.box[0] * of.element_bytes
    rows = np.ndindex(*reversed(of.box[1:])) if len(of.box) > 1 else [()]
    for number, row in enumerate(rows):
        index = [begin + step for begin, step in zip(start[1:], reversed(row), strict=True)]
        inside = all(0 <= n < most for n, most in zip(index, of.extents[1:], strict=True))
        line = of.at + sum(n * pitch for n, pitch in zip(index, of.pitches, strict=True))
        for at in range(0, row_bytes, 16):
            x = start[0] + at // of.element_bytes
            there = inside and 0 <= x < of.extents[0]
            place = target + number * row_bytes + at
            if of.swizzle_bytes > 16:
                place = int(swizzled(place, of.swizzle_bytes))
            made.append((place, line + x * of.element_bytes if there else None, 16))
    return made
