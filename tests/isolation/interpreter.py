"""An interpreter of PTX, for tests: no GPU, no timing, any order of threads that CUDA allows.

Threads run in random order and for random stretches, several blocks at once. Barriers and
warp-wide instructions wait for exactly the threads that CUDA says they wait for: those that have
not ended. A block whose threads wait at different barriers, or for each other, is an error, and so
is an address that is not aligned as its instruction demands.
"""

from __future__ import annotations

import math
import operator
import random
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dovetail.isolation.ptx import Function, Module, Statement, split_operands
from tests.isolation.instructions import WITHOUT_EFFECT, require_known
from tests.isolation.tensor_cores import (
    WARP,
    WARP_GROUP,
    InFlight,
    InterpreterError,
    TensorInstructions,
    aligned,
)

SHARED_AT = 1 << 40
LOCAL_AT = 1 << 44
PARAMETERS_AT = 1 << 48

_VARIABLE = re.compile(
    r"(?<!extern )\.(shared|local)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d*)\])?"
)
_DYNAMIC = re.compile(r"\.extern\s+\.shared\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)\[\]")
_COPY = re.compile(r"cp\.async\.c[ag]\.shared(::cta)?\.global(\.L2::\w+)*")
_DYNAMIC_STEP = 16
"""Each name of dynamic shared memory begins at a multiple of this, and of its own alignment."""
_DECLARED = re.compile(r"(?<![.\w%$])([%A-Za-z_$][\w$]*)(?:<(\d+)>)?")
_BITS = {"pred": 1, "f16x2": 32, "bf16x2": 32, "bf16": 16}
_SPACES = ("param", "shared", "global", "local", "const")


class StuckError(InterpreterError):
    """Threads wait for each other for ever."""


class DivergedError(StuckError):
    """The threads of a block wait at different barriers."""


@cache
def bits_of(kind: str) -> int:
    """Return the width of a PTX type."""
    return _BITS.get(kind) or int(re.sub(r"\D", "", kind))


def signed(value: int, bits: int) -> int:
    """Return the number that the low bits stand for in two's complement."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def to_float(raw: int, kind: str) -> float:
    """Return the number whose bits are given."""
    if kind == "f32":
        return struct.unpack("<f", struct.pack("<I", raw & 0xFFFFFFFF))[0]
    if kind == "f64":
        return struct.unpack("<d", struct.pack("<Q", raw & 0xFFFFFFFFFFFFFFFF))[0]
    if kind == "bf16":
        return struct.unpack("<f", struct.pack("<I", (raw & 0xFFFF) << 16))[0]
    return struct.unpack("<e", struct.pack("<H", raw & 0xFFFF))[0]


def from_float(number: float, kind: str) -> int:
    """Return the bits of a number, rounded to the type."""
    if kind == "bf16":
        raw = from_float(number, "f32")
        if math.isnan(number):
            return 0x7FC0
        return (raw + 0x7FFF + (raw >> 16 & 1)) >> 16 & 0xFFFF
    code, whole = {"f32": ("<f", "<I"), "f64": ("<d", "<Q"), "f16": ("<e", "<H")}[kind]
    try:
        packed = struct.pack(code, number)
    except OverflowError:
        packed = struct.pack(code, math.copysign(math.inf, number))
    return struct.unpack(whole, packed)[0]


@dataclass
class Thread:
    """A thread: its registers, and the event that it waits for."""

    block: Block
    tid: tuple[int, int, int]
    number: int
    registers: list[int]
    pc: int = 0
    ended: bool = False
    waits: tuple[Any, ...] | None = None
    local: bytearray = field(default_factory=bytearray)
    copies: list[list[tuple[int, bytes]]] = field(default_factory=lambda: [[]])

    @property
    def lane(self) -> int:
        return self.number % WARP


def _left_by_others(size: int, rng: random.Random) -> bytearray:
    """Return shared memory as it may begin: with small numbers, as other blocks leave them."""
    words = -(-size // 4)
    small = int.from_bytes(rng.randbytes(4 * words)) & int.from_bytes(b"\3\0\0\0" * words)
    return bytearray(small.to_bytes(4 * words))[:size]


class Block:
    """A block in flight."""

    def __init__(self, kernel: Kernel, launch: Launch, index: tuple[int, int, int]) -> None:
        self.kernel, self.launch, self.index = kernel, launch, index
        self.shared = _left_by_others(kernel.shared_size + launch.dynamic_shared, launch.rng)
        self.flight = InFlight()
        x, y, z = launch.block
        tids = [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]
        self.threads = [
            Thread(self, tid, n, [0] * kernel.register_count) for n, tid in enumerate(tids)
        ]
        for thread in self.threads:
            kernel.preset(thread)
        self.runnable = list(self.threads)
        self._alive, self._at_barrier = len(self.threads), 0

    @property
    def ended(self) -> bool:
        return all(thread.ended for thread in self.threads)

    def step(self, rng: random.Random, most: int) -> int:
        """Run one thread for a while; return the number of instructions."""
        place = rng.randrange(len(self.runnable))
        thread = self.runnable[place]
        code, done = self.kernel.code, 0
        end = len(code)
        while done < most and thread.waits is None and not thread.ended:
            if thread.pc >= end:
                thread.ended = True
                break
            operation = code[thread.pc]
            thread.pc += 1
            operation(thread)
            done += 1
        if thread.ended or thread.waits is not None:
            self.runnable[place] = self.runnable[-1]
            self.runnable.pop()
            self._release(thread)
        return max(done, 1)

    def _release(self, thread: Thread) -> None:
        """Resume the threads that waited for this thread only."""
        kind = thread.waits[0] if thread.waits else "end"
        if kind in ("warp", "end"):
            first = thread.number // WARP * WARP
            members = self.threads[first : first + WARP]
            if thread.waits:
                waiting = {thread.waits[:3]}
            else:
                waiting = {one.waits[:3] for one in members if one.waits and one.waits[0] == "warp"}
            for key in waiting:
                there = []
                for lane, one in enumerate(members):
                    if key[2] >> lane & 1 and not one.ended:
                        if one.waits is None or one.waits[:3] != key:
                            break
                        there.append(one)
                else:
                    if there:
                        there[0].waits[3](there)  # type: ignore[index]
                        self._go_on(there)
        if kind in ("group", "end"):
            first = thread.number // WARP_GROUP * WARP_GROUP
            members = [one for one in self.threads[first : first + WARP_GROUP] if not one.ended]
            places = {
                one.waits[1] if one.waits and one.waits[0] == "group" else -1 for one in members
            }
            if len(places) == 1 and -1 not in places:
                members[0].waits[2](members)  # type: ignore[index]
                self._go_on(members)
        self._alive -= kind == "end"
        self._at_barrier += kind == "barrier"
        if self._alive and self._at_barrier == self._alive:
            live = [one for one in self.threads if not one.ended]
            places = {one.waits[1] for one in live if one.waits}
            if len(places) > 1:
                raise DivergedError(f"barriers at statements {sorted(places)} at the same time")
            live[0].waits[2](live)  # type: ignore[index]
            self._at_barrier = 0
            self._go_on(live)
        if self._alive and not self.runnable:
            waits = next(one.waits for one in self.threads if not one.ended)
            raise StuckError(f"{self._alive} threads wait, e.g. {waits}")

    def _go_on(self, threads: Sequence[Thread]) -> None:
        for one in threads:
            one.waits = None
        self.runnable += threads

    # Memory, by address.

    def space_of(self, thread: Thread, space: str, address: int) -> tuple[bytearray, int]:
        """Return the memory of an address, and where in it that is."""
        if space == "shared" or (space == "" and SHARED_AT <= address < LOCAL_AT):
            return self.shared, address - SHARED_AT if address >= SHARED_AT else address
        if space == "local" or (space == "" and address >= LOCAL_AT):
            at = address - LOCAL_AT if address >= LOCAL_AT else address
            if len(thread.local) < self.kernel.local_size:
                thread.local = bytearray(self.kernel.local_size)
            return thread.local, at
        return self.launch.memory, address

    def load(self, thread: Thread, space: str, address: int, size: int) -> int:
        memory, at = (
            (self.launch.parameters, address)
            if space == "param"
            else self.space_of(thread, space, address)
        )
        if not 0 <= at <= len(memory) - size:
            raise InterpreterError(f"reads {size} bytes of {space or 'memory'} at {at}")
        return int.from_bytes(memory[at : at + size], "little")

    def load_bytes(self, thread: Thread, address: int, size: int) -> bytes:
        """Return bytes at a generic address, or of a parameter that is passed by value."""
        if address >= PARAMETERS_AT:
            at = address - PARAMETERS_AT
            return bytes(self.launch.parameters[at : at + size])
        return self.load(thread, "", address, size).to_bytes(size, "little")

    def store(self, thread: Thread, space: str, address: int, size: int, value: int) -> None:
        memory, at = self.space_of(thread, space, address)
        if not 0 <= at <= len(memory) - size:
            raise InterpreterError(f"writes {size} bytes of {space or 'memory'} at {at}")
        memory[at : at + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")


@dataclass
class Launch:
    """Arguments that a launch gives to its blocks."""

    memory: bytearray
    parameters: bytearray
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared: int
    rng: random.Random


Operation = Callable[[Thread], None]
Reader = Callable[[Thread], int]


class Kernel(TensorInstructions):
    """A kernel, ready to run.

    Parameters
    ----------
    module : Module
        Of the kernel, for its variables in shared memory.
    function : Function
        The kernel.
    """

    def __init__(self, module: Module, function: Function) -> None:
        self.name = function.name
        self._registers: dict[str, int] = {}
        self.symbols: dict[str, int] = {}
        self.shared_size = self.local_size = 0
        outside = module.text
        for one in module.functions.values():
            outside = outside.replace(module.text[one.start : one.end], "")
        self._place_variables(module, function, outside)
        declared = [
            (".pred" in one.text, found)
            for one in function.body
            if one.opcode == ".reg"
            for text in one.operands
            for found in _DECLARED.findall(text)
        ]
        self._plain = {name for _, (name, count) in declared if not count}
        self._numbered = {name for _, (name, count) in declared if count}
        self._predicates = {name for of_predicates, (name, _) in declared if of_predicates}
        self.parameter_at, self.parameter_size, self._parameter_bytes = _layout(function.parameters)
        statements = [one for one in function.body if one.opcode not in (".loc", ".reg")]
        statements = [one for one in statements if one.text not in "{}"]
        self._labels: dict[str, int] = {}
        self._targets: dict[str, tuple[str, ...]] = {}
        instructions: list[Statement] = []
        for before, one in zip([None, *statements], statements, strict=False):
            if one.label:
                if one.label in self._labels:
                    raise InterpreterError(f"two labels {one.label}")
                self._labels[one.label] = len(instructions)
            elif one.opcode == ".branchtargets" and before is not None:
                self._targets[before.label] = one.operands
            elif not one.opcode.startswith("."):
                instructions.append(one)
        self.code: list[Operation] = []
        self._special = _SPECIAL_NAMES
        for place, one in enumerate(instructions):
            self.code.append(self._guarded(one, self._operation(one, place)))

    @property
    def register_count(self) -> int:
        return len(self._registers)

    def preset(self, thread: Thread) -> None:
        """Set the special registers of a thread."""
        block = thread.block
        for name, place in self._registers.items():
            if name in self._special:
                thread.registers[place] = self._special[name](thread, block)

    def parameters(self, arguments: Sequence[int | bytes]) -> bytearray:
        """Return the parameter memory of a launch."""
        if len(arguments) != len(self.parameter_at):
            raise InterpreterError(f"{self.name} takes {len(self.parameter_at)} parameters")
        memory = bytearray(self._parameter_bytes)
        for (at, size), value in zip(
            ((self.parameter_at[n], self.parameter_size[n]) for n in self.parameter_at),
            arguments,
            strict=True,
        ):
            raw = value if isinstance(value, bytes) else (value & ((1 << 8 * size) - 1))
            memory[at : at + size] = raw if isinstance(raw, bytes) else raw.to_bytes(size, "little")
        return memory

    # Names.

    def _place_variables(self, module: Module, function: Function, outside: str) -> None:
        """Place variables as ptxas 12.8 to 13.0 does.

        In shared memory come first the kernel's variables that it uses, in the order of their
        declarations, then those of the module that it uses, then its unused ones. The names that
        the module declares for dynamic memory follow, used or not, in their order: each at the
        next address that its alignment allows, and so at that of the one before if it does.
        """
        texts = [one.text for one in function.body if one.opcode in (".shared", ".local")]
        bodies = [function.body, *(f.body for f in module.functions.values() if f.kind == "func")]
        used = {
            name
            for body in bodies
            for one in body
            if not one.opcode.startswith(".")
            for name in re.findall(r"[\w$]+", one.text)
        }
        own = [found for text in texts for found in _VARIABLE.findall(text)]
        of_module = [found for found in _VARIABLE.findall(outside) if found[3] in used]
        inside = [found for found in own if found[3] in used]
        for found in [*inside, *of_module, *(found for found in own if found not in inside)]:
            self._place_variable(*found)
        for align, kind, name in _DYNAMIC.findall(outside):
            step = max(_DYNAMIC_STEP, int(align or bits_of(kind) // 8))
            self.shared_size = -(-self.shared_size // step) * step
            self.symbols[name] = SHARED_AT + self.shared_size

    def _place_variable(self, space: str, align: str, kind: str, name: str, count: str) -> None:
        size = bits_of(kind) // 8 * int(count or 1)
        step = int(align or bits_of(kind) // 8)
        if space == "shared":
            self.shared_size = -(-self.shared_size // step) * step
            self.symbols[name] = SHARED_AT + self.shared_size
            self.shared_size += size
        else:
            self.local_size = -(-self.local_size // step) * step
            self.symbols[name] = LOCAL_AT + self.local_size
            self.local_size += size

    def _register(self, name: str) -> int:
        numbered = name.rstrip("0123456789") in self._numbered
        if not (numbered or name in self._plain or name in self._special or name == "_"):
            raise InterpreterError(f"unknown register {name}")
        return self._registers.setdefault(name, len(self._registers))

    def _is_predicate(self, name: str) -> bool:
        return name in self._predicates or name.rstrip("0123456789") in self._predicates

    def _reader(self, operand: str, kind: str = "b64") -> Reader:
        """Return a function that reads an operand as raw bits."""
        if operand.startswith("!"):
            inner = self._reader(operand[1:], kind)
            return lambda t: 1 - inner(t)
        if operand.startswith("%") or operand in self._plain:
            place = self._register(operand)
            return lambda t: t.registers[place]
        value = self._constant(operand, kind)
        return lambda _: value

    def _constant(self, operand: str, kind: str) -> int:
        if operand in self.symbols:
            return self.symbols[operand]
        if operand in self.parameter_at:
            return self.parameter_at[operand]
        if match := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", operand):
            raw = int(match[1], 16)
            return raw if kind != "f64" else from_float(to_float(raw, "f32"), "f64")
        if match := re.fullmatch(r"0[dD]([0-9a-fA-F]{16})", operand):
            raw = int(match[1], 16)
            return raw if kind != "f32" else from_float(to_float(raw, "f64"), "f32")
        try:
            return int(operand.rstrip("U"), 0)
        except ValueError:
            raise InterpreterError(f"unknown operand {operand!r}") from None

    def _address(self, operand: str) -> Reader:
        base, _, offset = operand.strip("[]").replace(" ", "").partition("+")
        shift = int(offset, 0) if offset else 0
        if not base.startswith("%") and base not in self._plain:
            value = self._constant(base, "b64") + shift
            return lambda _: value
        place = self._register(base)
        if not shift:
            return lambda t: t.registers[place]
        return lambda t: t.registers[place] + shift

    def _vector(self, operand: str) -> list[str]:
        return list(split_operands(operand.strip("{}"))) if operand.startswith("{") else [operand]

    # Instructions.

    def _guarded(self, one: Statement, operation: Operation) -> Operation:
        if not one.guard:
            return operation
        place = self._register(one.guard.lstrip("@!"))
        wanted = 0 if one.guard.startswith("@!") else 1

        def run(t: Thread) -> None:
            if t.registers[place] == wanted:
                operation(t)

        return run

    def _operation(self, one: Statement, place: int) -> Operation:
        require_known(one)
        maker: Callable[..., Operation] | None = getattr(self, f"_{one.family}", None)
        if maker is not None:
            return maker(one, place)
        if one.family in WITHOUT_EFFECT:
            return lambda t: None
        return self._arithmetic(one)

    def _bra(self, one: Statement, place: int) -> Operation:
        target = self._labels_later(one.operands[0])

        def jump(t: Thread) -> None:
            t.pc = target()

        return jump

    def _labels_later(self, name: str) -> Callable[[], int]:
        return lambda: self._labels[name]

    def _brx(self, one: Statement, place: int) -> Operation:
        index, name = self._reader(one.operands[0]), one.operands[1]

        def jump(t: Thread) -> None:
            t.pc = self._labels[self._targets[name][index(t)]]

        return jump

    def _ret(self, one: Statement, place: int) -> Operation:
        def end(t: Thread) -> None:
            t.ended = True

        return end

    _exit = _ret

    def _trap(self, one: Statement, place: int) -> Operation:
        def stop(t: Thread) -> None:
            raise InterpreterError("trap")

        return stop

    def _bar(self, one: Statement, place: int) -> Operation:
        if one.has("warp"):
            return self._warp_wide(one, place, self._reader(one.operands[0]), lambda there: None)
        operands = one.operands[1:-1] if one.has("red") else one.operands
        if operands != ("0",):
            raise InterpreterError(f"unknown barrier {one.text}")
        if not one.has("red"):

            def wait(t: Thread) -> None:
                t.waits = ("barrier", place, lambda live: None)

            return wait
        result = self._register(one.operands[0])
        given = self._reader(one.operands[-1], "pred")
        combine = sum if one.has("popc") else any if one.has("or") else all

        def release(live: Sequence[Thread]) -> None:
            value = int(combine([given(t) for t in live]))
            for t in live:
                t.registers[result] = value

        def wait_for_result(t: Thread) -> None:
            t.waits = ("barrier", place, release)

        return wait_for_result

    _barrier = _bar

    def _warp_wide(
        self, one: Statement, place: int, mask: Reader, act: Callable[[Sequence[Thread]], None]
    ) -> Operation:
        def wait(t: Thread) -> None:
            t.waits = ("warp", place, mask(t) & 0xFFFFFFFF, act)

        return wait

    def _shfl(self, one: Statement, place: int) -> Operation:
        mode = next(m for m in ("up", "down", "bfly", "idx") if one.has(m))
        result, _, flag = one.operands[0].partition("|")
        to, to_flag = self._register(result), self._register(flag) if flag else None
        source, b, c = (self._reader(text) for text in one.operands[1:4])

        def act(there: Sequence[Thread]) -> None:
            by_lane = {t.lane: source(t) for t in there}
            found = {}
            for t in there:
                lane, bound = t.lane, c(t) & 31
                segment = c(t) >> 8 & 31
                high = (lane & segment) | (bound & ~segment & 31)
                low = lane & segment
                if mode == "up":
                    j = lane - (b(t) & 31)
                    ok = j >= high
                elif mode == "down":
                    j = lane + (b(t) & 31)
                    ok = j <= high
                elif mode == "bfly":
                    j = lane ^ (b(t) & 31)
                    ok = j <= high
                else:
                    j = low | (b(t) & 31 & ~segment)
                    ok = j <= high
                source_lane = j if ok else lane
                found[lane] = (by_lane.get(source_lane, 0), int(ok))
            for t in there:
                t.registers[to] = found[t.lane][0]
                if to_flag is not None:
                    t.registers[to_flag] = found[t.lane][1]

        return self._warp_wide(one, place, self._reader(one.operands[4]), act)

    def _vote(self, one: Statement, place: int) -> Operation:
        to, given = self._register(one.operands[0]), self._reader(one.operands[1], "pred")

        def act(there: Sequence[Thread]) -> None:
            votes = {t.lane: given(t) for t in there}
            if one.has("ballot"):
                value = sum(vote << lane for lane, vote in votes.items())
            elif one.has("all"):
                value = int(all(votes.values()))
            elif one.has("any"):
                value = int(any(votes.values()))
            else:
                value = int(len(set(votes.values())) == 1)
            for t in there:
                t.registers[to] = value

        return self._warp_wide(one, place, self._reader(one.operands[2]), act)

    def _redux(self, one: Statement, place: int) -> Operation:
        to, given = self._register(one.operands[0]), self._reader(one.operands[1])
        kind = one.opcode.rsplit(".", 1)[1]
        name = one.opcode.split(".")[2]

        def act(there: Sequence[Thread]) -> None:
            values = [_number(given(t), kind) for t in there]
            fold = {"add": sum, "min": min, "max": max}.get(name)
            if fold is not None:
                value = fold(values)
            else:
                combine = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}[name]
                value = values[0]
                for other in values[1:]:
                    value = combine(value, other)
            for t in there:
                t.registers[to] = value & 0xFFFFFFFF

        return self._warp_wide(one, place, self._reader(one.operands[2]), act)

    def _activemask(self, one: Statement, place: int) -> Operation:
        to = self._register(one.operands[0])

        def run(t: Thread) -> None:
            t.registers[to] = 1 << t.lane

        return run

    # Memory.

    def _ld(self, one: Statement, place: int) -> Operation:
        kind = _kind(one)
        size, space = bits_of(kind) // 8, _space(one)
        address = self._address(one.operands[1])
        to = [self._register(name) for name in self._vector(one.operands[0])]
        widen = kind[0] == "s"
        whole = size * len(to)

        def run(t: Thread) -> None:
            at = address(t)
            if at % whole:
                aligned(at, whole, one.text)
            for k, register in enumerate(to):
                raw = t.block.load(t, space, at + k * size, size)
                t.registers[register] = (
                    signed(raw, 8 * size) & 0xFFFFFFFFFFFFFFFF if widen and size < 8 else raw
                )

        return run

    def _ldu(self, one: Statement, place: int) -> Operation:
        return self._ld(one, place)

    def _st(self, one: Statement, place: int) -> Operation:
        kind = _kind(one)
        size, space = bits_of(kind) // 8, _space(one)
        address = self._address(one.operands[0])
        given = [self._reader(name, kind) for name in self._vector(one.operands[1])]
        whole = size * len(given)

        def run(t: Thread) -> None:
            at = address(t)
            if at % whole:
                aligned(at, whole, one.text)
            for k, read in enumerate(given):
                t.block.store(t, space, at + k * size, size, read(t))

        return run

    def _atom(self, one: Statement, place: int) -> Operation:
        to = self._register(one.operands[0])
        return self._atomic(one, to, one.operands[1], one.operands[2:])

    def _red(self, one: Statement, place: int) -> Operation:
        return self._atomic(one, None, one.operands[0], one.operands[1:])

    def _atomic(
        self, one: Statement, to: int | None, where: str, operands: Sequence[str]
    ) -> Operation:
        kind = _kind(one)
        size, space = bits_of(kind) // 8, _space(one)
        address = self._address(where)
        given = [self._reader(text, kind) for text in operands]
        known = {"add", "min", "max", "inc", "dec", "exch", "cas", "and", "or", "xor"}
        name = next(part for part in one.opcode.split(".") if part in known)

        def run(t: Thread) -> None:
            at = aligned(address(t), size, one.text)
            old = t.block.load(t, space, at, size)
            values = [read(t) for read in given]
            t.block.store(t, space, at, size, _changed(name, kind, old, values))
            if to is not None:
                t.registers[to] = old

        return run

    def _cp(self, one: Statement, place: int) -> Operation:
        """Copy to shared memory some time later; only a wait guarantees the copy."""
        if one.has("bulk"):
            return self._bulk(one, place)
        if one.opcode == "cp.async.commit_group":
            return lambda t: t.copies.append([])
        if one.opcode in ("cp.async.wait_group", "cp.async.wait_all"):
            everything = one.has("wait_all")
            keep = 0 if everything else int(one.operands[0], 0)

            def land(t: Thread) -> None:
                if everything:
                    t.copies.append([])
                while len(t.copies) > keep + 1 or (
                    len(t.copies) > 1 and t.block.launch.rng.random() < 0.5
                ):
                    for at, data in t.copies.pop(0):
                        t.block.store(t, "shared", at, len(data), int.from_bytes(data, "little"))

            return land
        if not _COPY.fullmatch(one.opcode):
            raise InterpreterError(f"unknown copy {one.text}")
        to, source = self._address(one.operands[0]), self._address(one.operands[1])
        size = int(one.operands[2], 0)
        sizes = one.operands[3 : -1 if one.has("L2::cache_hint") else None]
        if any(map(self._is_predicate, sizes)):
            raise InterpreterError(f"unknown copy {one.text}")
        given = self._reader(sizes[0]) if sizes else None

        def run(t: Thread) -> None:
            count = size if given is None else min(size, given(t))
            at, start = aligned(to(t), size, one.text), aligned(source(t), size, one.text)
            data = t.block.load(t, "global", start, count) if count else 0
            t.copies[-1].append((at, data.to_bytes(size, "little")))

        return run

    # Arithmetic.

    def _mov(self, one: Statement, place: int) -> Operation:
        kind = _kind(one)
        source, to = self._vector(one.operands[1]), self._vector(one.operands[0])
        if len(source) == len(to) == 1:
            register, read = self._register(to[0]), self._reader(source[0], kind)
            mask = (1 << bits_of(kind)) - 1

            def run(t: Thread) -> None:
                t.registers[register] = read(t) & mask

            return run
        width = bits_of(kind) // max(len(source), len(to))
        part = (1 << width) - 1
        readers = [self._reader(text, kind) for text in source]
        registers = [self._register(text) for text in to]

        def repack(t: Thread) -> None:
            if len(readers) > 1:
                value = sum((read(t) & part) << (k * width) for k, read in enumerate(readers))
                t.registers[registers[0]] = value
            else:
                value = readers[0](t)
                for k, register in enumerate(registers):
                    t.registers[register] = value >> (k * width) & part

        return repack

    def _cvta(self, one: Statement, place: int) -> Operation:
        register, read = self._register(one.operands[0]), self._reader(one.operands[1])
        base = 0
        if one.has("shared"):
            base = SHARED_AT
        elif one.has("local"):
            base = LOCAL_AT
        elif one.has("param"):
            base = PARAMETERS_AT

        def run(t: Thread) -> None:
            value = read(t)
            if one.has("to"):
                t.registers[register] = value
            else:
                t.registers[register] = value if value >= base else value + base

        return run

    def _cvt(self, one: Statement, place: int) -> Operation:
        parts = one.opcode.split(".")
        to_kind, of_kind = parts[-2], parts[-1]
        to = self._register(one.operands[0])
        if to_kind == "f16x2" or to_kind == "bf16x2":
            half = to_kind[:-2]
            high, low = (self._reader(text, of_kind) for text in one.operands[1:3])

            def pack(t: Thread) -> None:
                upper = from_float(to_float(high(t), of_kind), half)
                t.registers[to] = upper << 16 | from_float(to_float(low(t), of_kind), half)

            return pack
        read = self._reader(one.operands[1], of_kind)
        rounding = next((p for p in parts if p in _ROUND), "")
        saturated = "sat" in parts
        if to_kind == "tf32":
            # Half of the last bit that counts is added to the size: ties go away from zero.
            def nearest(t: Thread) -> None:
                t.registers[to] = (read(t) & 0xFFFFFFFF) + 0x1000 & 0xFFFFE000

            return nearest

        def run(t: Thread) -> None:
            t.registers[to] = _converted(read(t), of_kind, to_kind, rounding, saturated)

        return run

    def _setp(self, one: Statement, place: int) -> Operation:
        parts = one.opcode.split(".")
        kind, relation = parts[-1], parts[1]
        chained = next((p for p in parts[2:-1] if p in ("and", "or", "xor")), None)
        first, _, second = one.operands[0].partition("|")
        to = self._register(first)
        other = self._register(second) if second else None
        a, b = (self._reader(text, kind) for text in one.operands[1:3])
        c = self._reader(one.operands[3], "pred") if chained else None
        combine = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}.get(chained or "")

        def run(t: Thread) -> None:
            holds = int(_compared(relation, a(t), b(t), kind))
            against = 1 - holds
            if c is not None and combine is not None:
                holds, against = combine(holds, c(t)), combine(against, c(t))
            t.registers[to] = holds
            if other is not None:
                t.registers[other] = against

        return run

    def _selp(self, one: Statement, place: int) -> Operation:
        kind = _kind(one)
        to = self._register(one.operands[0])
        a, b, p = (self._reader(text, kind) for text in one.operands[1:4])

        def run(t: Thread) -> None:
            t.registers[to] = a(t) if p(t) else b(t)

        return run

    def _arithmetic(self, one: Statement) -> Operation:
        kind = _kind(one)
        to = self._register(one.operands[0].partition("|")[0])
        given = [self._reader(text, kind) for text in one.operands[1:]]
        compute = _computation(one, kind)

        def run(t: Thread) -> None:
            t.registers[to] = compute(*[read(t) for read in given])

        return run


def launch(
    kernel: Kernel,
    memory: bytearray,
    arguments: Sequence[int | bytes],
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    rng: random.Random,
    *,
    host: Callable[[int], None] | None = None,
    resident: int = 4,
    dynamic_shared: int = 0,
    in_order: bool = False,
    most: int = 5_000_000,
) -> int:
    """Run a grid and return the number of instructions.

    Parameters
    ----------
    kernel : Kernel
        What to run.
    memory : bytearray
        Global memory; addresses are places in it.
    arguments : sequence
        Raw values of the parameters, or their bytes.
    grid, block : tuple of int
        Dimensions.
    rng : random.Random
        Decides the order of everything.
    host : callable, optional
        Is called after each stretch with the number of instructions so far; may change memory.
    resident : int
        Blocks that run at once.
    dynamic_shared : int
        Bytes of shared memory beyond the static ones.
    in_order : bool
        Whether blocks begin in the order of their numbers, as GPUs begin them in fact.
    most : int
        Instructions after which a kernel counts as endless.
    """
    given = Launch(memory, kernel.parameters(arguments), grid, block, dynamic_shared, rng)
    todo = [(x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])]
    if in_order:
        todo.reverse()
    else:
        rng.shuffle(todo)
    running: list[Block] = []
    done = 0
    while todo or running:
        while todo and len(running) < resident:
            running.append(Block(kernel, given, todo.pop()))
        place = rng.randrange(len(running))
        done += running[place].step(rng, rng.choice((1, 2, 5, 20, 60)))
        if not running[place].runnable and running[place].ended:
            running[place] = running[-1]
            running.pop()
        if host is not None:
            host(done)
        if done > most:
            raise StuckError(f"no end after {most} instructions")
    return done


_SPECIAL_NAMES: Mapping[str, Callable[[Thread, Block], int]] = {
    **{f"%tid.{axis}": (lambda t, b, k=k: t.tid[k]) for k, axis in enumerate("xyz")},
    **{f"%ntid.{axis}": (lambda t, b, k=k: b.launch.block[k]) for k, axis in enumerate("xyz")},
    **{f"%ctaid.{axis}": (lambda t, b, k=k: b.index[k]) for k, axis in enumerate("xyz")},
    **{f"%nctaid.{axis}": (lambda t, b, k=k: b.launch.grid[k]) for k, axis in enumerate("xyz")},
    "%laneid": lambda t, b: t.lane,
    "%warpid": lambda t, b: t.number // WARP,
    "%lanemask_lt": lambda t, b: (1 << t.lane) - 1,
    "%lanemask_le": lambda t, b: (2 << t.lane) - 1,
    "%lanemask_eq": lambda t, b: 1 << t.lane,
    "%lanemask_gt": lambda t, b: 0xFFFFFFFF & ~((2 << t.lane) - 1),
    "%lanemask_ge": lambda t, b: 0xFFFFFFFF & ~((1 << t.lane) - 1),
    "%dynamic_smem_size": lambda t, b: b.launch.dynamic_shared,
    "%clock": lambda t, b: 0,
    "%clock64": lambda t, b: 0,
}

_ROUND: Mapping[str, Callable[[float], int]] = {
    "rni": round,
    "rzi": int,
    "rmi": math.floor,
    "rpi": math.ceil,
}


def _layout(declared: Sequence[str]) -> tuple[dict[str, int], dict[str, int], int]:
    """Return where parameters are, and how large they are."""
    at: dict[str, int] = {}
    sizes: dict[str, int] = {}
    end = 0
    for text in declared:
        match = re.search(
            r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)(?:\s+\.ptr.*?)?\s+([\w$]+)(?:\[(\d+)\])?$",
            text,
        )
        assert match is not None, text
        size = bits_of(match[2]) // 8 * int(match[4] or 1)
        step = int(match[1] or size)
        end = -(-end // step) * step
        at[match[3]], sizes[match[3]] = end, size
        end += size
    return at, sizes, end


def _kind(one: Statement) -> str:
    return one.opcode.rsplit(".", 1)[1]


def _space(one: Statement) -> str:
    """Return the space that an instruction names; a cluster is one block here."""
    parts = {part.partition("::")[0] for part in one.opcode.split(".")}
    return next((space for space in _SPACES if space in parts), "")


def _number(raw: int, kind: str) -> int:
    return signed(raw, bits_of(kind)) if kind[0] == "s" else raw & ((1 << bits_of(kind)) - 1)


def _compared(relation: str, a: int, b: int, kind: str) -> bool:
    if kind[0] == "f" or kind == "bf16":
        x, y = to_float(a, kind), to_float(b, kind)
        unordered = math.isnan(x) or math.isnan(y)
        if relation in ("num", "nan"):
            return unordered == (relation == "nan")
        if unordered:
            return relation == "ne" or relation.endswith("u")
        relation = relation[:-1] if len(relation) == 3 else relation
    else:
        x, y = _number(a, kind), _number(b, kind)
        relation = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(relation, relation)
    return bool(getattr(operator, relation)(x, y))


def _converted(raw: int, of: str, to: str, rounding: str, saturated: bool) -> int:
    number: float = to_float(raw, of) if of[0] in "fb" and of[0:2] != "b1" else _number(raw, of)
    if of[0] == "b" and of != "bf16":
        number = _number(raw, of)
    if to[0] == "f" or to == "bf16":
        if rounding and of[0] == "f" and to == of and not math.isinf(number):
            number = float(_ROUND[rounding](number)) if not math.isnan(number) else number
        if saturated:
            number = min(1.0, max(0.0, number))
        return from_float(float(number), to)
    bits = bits_of(to)
    low = -(1 << (bits - 1)) if to[0] == "s" else 0
    high = (1 << (bits - 1)) - 1 if to[0] == "s" else (1 << bits) - 1
    if isinstance(number, float):
        if math.isnan(number):
            return 0
        if math.isinf(number):
            number = high if number > 0 else low
        else:
            number = min(high, max(low, _ROUND[rounding](number)))
    elif saturated:
        number = min(high, max(low, number))
    value = int(number) & ((1 << bits) - 1)
    # Narrow results sit sign-extended in wider registers.
    return signed(value, bits) & 0xFFFFFFFF if to[0] == "s" and bits < 32 else value


def _changed(name: str, kind: str, old: int, values: Sequence[int]) -> int:
    if kind[0] == "f" or kind == "bf16":
        if name == "exch":
            return values[0]
        x, y = to_float(old, kind), to_float(values[0], kind)
        return from_float({"add": x + y, "min": min(x, y), "max": max(x, y)}[name], kind)
    x, y = _number(old, kind), _number(values[0], kind)
    match name:
        case "cas":
            return values[1] if old == values[0] & ((1 << bits_of(kind)) - 1) else old
        case "exch":
            return y
        case "inc":
            return 0 if x >= y else x + 1
        case "dec":
            return y if x == 0 or x > y else x - 1
        case "add":
            return x + y
        case "min" | "max":
            return min(x, y) if name == "min" else max(x, y)
    return {"and": x & y, "or": x | y, "xor": x ^ y}[name]


def _computation(one: Statement, kind: str) -> Callable[..., int]:
    """Return the result of an arithmetic instruction on raw operands."""
    name = one.family
    if kind in ("f16x2", "bf16x2"):
        half = kind[:-2]
        single = _float_function(name, one)

        def both(*raw: int) -> int:
            low = single(*[to_float(v & 0xFFFF, half) for v in raw])
            high = single(*[to_float(v >> 16 & 0xFFFF, half) for v in raw])
            return from_float(high, half) << 16 | from_float(low, half)

        return both
    if kind[0] == "f" or kind == "bf16":
        function = _float_function(name, one)
        return lambda *raw: from_float(function(*[to_float(v, kind) for v in raw]), kind)
    bits = bits_of(kind)
    mask = (1 << bits) - 1
    if name in ("mul", "mad") and one.has("wide"):
        wide = (1 << 2 * bits) - 1
        return lambda a, b, c=0: (_number(a, kind) * _number(b, kind) + c) & wide
    if name in ("mul", "mad") and one.has("hi"):
        return lambda a, b, c=0: ((_number(a, kind) * _number(b, kind) >> bits) + c) & mask
    special = _BITWISE.get(name)
    if special is not None:
        return lambda *raw: special(one, bits, *raw)
    function = _INTEGER[name]
    if kind[0] == "b" or name in ("not", "and", "or", "xor"):
        return lambda *raw: function(*[v & mask for v in raw]) & mask
    if name in ("shl", "shr"):
        return lambda a, b: function(_number(a, kind), min(b & 0xFFFFFFFF, bits)) & mask
    return lambda *raw: function(*[_number(v, kind) for v in raw]) & mask


def _quotient(a: int, b: int) -> int:
    if b == 0:
        return -1
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_INTEGER: Mapping[str, Callable[..., int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "mad": lambda a, b, c: a * b + c,
    "div": _quotient,
    "rem": lambda a, b: a - b * _quotient(a, b) if b else a,
    "neg": operator.neg,
    "abs": abs,
    "min": min,
    "max": max,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": operator.invert,
    "cnot": lambda a: int(a == 0),
    "shl": operator.lshift,
    "shr": operator.rshift,
    "popc": lambda a: a.bit_count(),
    "sad": lambda a, b, c: abs(a - b) + c,
}


def _bfe(one: Statement, bits: int, a: int, at: int, length: int) -> int:
    at, length = at & 0xFF, length & 0xFF
    value = (a & ((1 << bits) - 1)) >> at & ((1 << length) - 1)
    if _kind(one)[0] == "s" and length:
        value = signed(value, length)
    return value & ((1 << bits) - 1)


def _bfi(one: Statement, bits: int, a: int, b: int, at: int, length: int) -> int:
    at, length = at & 0xFF, length & 0xFF
    part = ((1 << length) - 1) << at
    return ((b & ~part) | (a << at & part)) & ((1 << bits) - 1)


def _prmt(one: Statement, bits: int, a: int, b: int, c: int) -> int:
    source = ((b & 0xFFFFFFFF) << 32 | (a & 0xFFFFFFFF)).to_bytes(8, "little")
    value = 0
    for k in range(4):
        selector = c >> (4 * k) & 0xF
        byte = source[selector & 7]
        if selector & 8:
            byte = 0xFF if byte & 0x80 else 0
        value |= byte << (8 * k)
    return value


def _lop3(one: Statement, bits: int, a: int, b: int, c: int, table: int) -> int:
    value = 0
    for k in range(8):
        if table >> k & 1:
            value |= (a if k & 4 else ~a) & (b if k & 2 else ~b) & (c if k & 1 else ~c)
    return value & ((1 << bits) - 1)


def _shf(one: Statement, bits: int, a: int, b: int, c: int) -> int:
    count = c & 31 if one.has("wrap") else min(c & 0xFFFFFFFF, 32)
    joined = (b & 0xFFFFFFFF) << 32 | (a & 0xFFFFFFFF)
    return (joined << count >> 32 if one.has("l") else joined >> count) & 0xFFFFFFFF


_BITWISE: Mapping[str, Callable[..., int]] = {
    "bfe": _bfe,
    "bfi": _bfi,
    "prmt": _prmt,
    "lop3": _lop3,
    "shf": _shf,
    "clz": lambda one, bits, a: bits - (a & ((1 << bits) - 1)).bit_length(),
    "brev": lambda one, bits, a: int(f"{a & ((1 << bits) - 1):0{bits}b}"[::-1], 2),
    "bfind": lambda one, bits, a: ((a & ((1 << bits) - 1)).bit_length() - 1) & 0xFFFFFFFF,
}


def _divided(a: float, b: float) -> float:
    if b == 0 or math.isinf(a):
        if math.isnan(a) or a == 0 or (math.isinf(a) and math.isinf(b)):
            return math.nan
        return math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


def _guarded_math(function: Callable[[float], float]) -> Callable[[float], float]:
    def safe(x: float) -> float:
        try:
            return function(x)
        except OverflowError:
            return math.inf
        except ValueError:
            return -math.inf if x == 0 else math.nan

    return safe


_FLOAT: Mapping[str, Callable[..., float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "fma": lambda a, b, c: a * b + c,
    "mad": lambda a, b, c: a * b + c,
    "div": _divided,
    "neg": operator.neg,
    "abs": abs,
    "min": lambda *x: min((v for v in x if not math.isnan(v)), default=math.nan),
    "max": lambda *x: max((v for v in x if not math.isnan(v)), default=math.nan),
    "rcp": lambda a: _divided(1.0, a),
    "sqrt": _guarded_math(math.sqrt),
    "rsqrt": lambda a: _divided(1.0, _guarded_math(math.sqrt)(a)),
    "ex2": _guarded_math(lambda a: 2.0**a),
    "lg2": _guarded_math(math.log2),
    "sin": _guarded_math(math.sin),
    "cos": _guarded_math(math.cos),
    "tanh": math.tanh,
    "copysign": lambda a, b: math.copysign(b, a),
}


def _float_function(name: str, one: Statement) -> Callable[..., float]:
    function = _FLOAT[name]
    if not one.has("sat"):
        return function
    return lambda *x: min(1.0, max(0.0, function(*x)))
