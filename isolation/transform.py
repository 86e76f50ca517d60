"""Transforms kernels so that they can be launched in slices, or preempted between blocks.

After Tally (Zhao et al., ASPLOS 2025, section 4.1). Both forms take the original grid as
parameters and number its blocks 0, 1, ... with x fastest.

*Slices* run the blocks from a given one on; their number is the number of blocks of the launch.

*Workers* take the numbers of the next blocks from a counter in global memory, a *chunk* of
consecutive ones at a time, until no block remains or a flag is set. A chunk that was taken is
finished, so the counter says where to resume, with any number of workers and any chunk. All threads
of a worker must finish a block before the next begins, so every return leads to a barrier. After it
they read the number that one of them has taken, alternating between two memory locations: a single
one could be overwritten before slow threads have read it. The end of the chunk is kept there, too:
it takes no registers. These lie behind the launch's dynamic shared memory, which is made larger for
them: they move no variable of the kernel. Instructions such as ``wgmma`` require alignments of its
dynamic memory that no declaration names.

*Unified synchronisation* is for kernels in which some threads may return while others continue to a
barrier. There, returns and barriers lead to one barrier, at which threads that have returned stay
until all have; the others continue from where they came.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from dovetail.isolation.ptx import Function, Statement, instruction, label

SLICES: Final = "__dovetail_slices"
"""The suffix of a kernel in slices; further parameters: grid x, y, z, first block."""

WORKERS: Final = "__dovetail_workers"
"""The suffix of a preemptible kernel; further parameters: grid x, y, z, and the addresses of the
counter and of the flag, 32 bits each, the bytes of the kernel's own dynamic shared memory, rounded
up to ``STORAGE_BYTES``, and the blocks of a chunk."""

STORAGE: Final = ".extern .shared .align 1 .b8 dovetail_dynamic[];"
"""A declaration that modules with workers need: where dynamic shared memory begins. Its alignment
is the smallest, so that it does not move that memory."""

STORAGE_BYTES: Final = 16
"""Bytes of shared memory that workers use behind the kernel's own."""

_AXES = "xyz"
_ID = re.compile(r"%(n?)ctaid\.([xyz])\b")
_GRID = tuple(f"dovetail_grid_{axis}" for axis in _AXES)
_NO_BLOCK = 0xFFFFFFFF


def slices(kernel: Function) -> Function:
    """Return a kernel that runs a part of the blocks, starting at ``dovetail_first``."""
    first = "dovetail_first"
    body = [
        *_declared(("b32", ("block", "rest", *_id_names()))),
        *_grid_loaded(),
        *_instructions(
            f"ld.param.u32 %dovetail_block, [{first}]",
            "mov.u32 %dovetail_rest, %ctaid.x",
            "add.u32 %dovetail_block, %dovetail_block, %dovetail_rest",
        ),
        *_split(),
        *_with_given_ids(kernel.body),
    ]
    return _derived(kernel, SLICES, [*_grid_parameters(), f".param .u32 {first}"], body)


def workers(kernel: Function, *, unified: bool) -> Function:
    """Return a kernel in which each block runs one block of the original grid after another.

    Parameters
    ----------
    kernel : Function
        The original kernel.
    unified : bool
        Whether some of its threads may return while others continue to a barrier
        (``refusals.Verdict``).
    """
    body = _with_given_ids(kernel.body)
    again = "$dovetail_next"
    body = _with_unified_sync(body, again) if unified else _returning_to(body, again)
    registers = _declared(
        ("b32", ("block", "rest", "blocks", "until", "place", *_id_names())),
        ("b64", ("counter", "stop")),
        ("pred", ("first", "over")),
    )
    begin = _instructions(
        "ld.param.u64 %dovetail_counter, [dovetail_counter]",
        "ld.param.u64 %dovetail_stop, [dovetail_stop]",
        "cvta.to.global.u64 %dovetail_counter, %dovetail_counter",
        "cvta.to.global.u64 %dovetail_stop, %dovetail_stop",
        "mul.lo.u32 %dovetail_blocks, %dovetail_nx, %dovetail_ny",
        "mul.lo.u32 %dovetail_blocks, %dovetail_blocks, %dovetail_nz",
        "mov.u32 %dovetail_block, %tid.x",
        "mov.u32 %dovetail_rest, %tid.y",
        "or.b32 %dovetail_block, %dovetail_block, %dovetail_rest",
        "mov.u32 %dovetail_rest, %tid.z",
        "or.b32 %dovetail_block, %dovetail_block, %dovetail_rest",
        "setp.eq.u32 %dovetail_first, %dovetail_block, 0",
        "mov.u32 %dovetail_place, dovetail_dynamic",
        "ld.param.u32 %dovetail_rest, [dovetail_own]",
        "add.u32 %dovetail_place, %dovetail_place, %dovetail_rest",
        "@%dovetail_first st.shared.v2.u32 [%dovetail_place], {0, 0}",
    )
    take = [
        label(again),
        *(_instructions("cp.async.wait_all") if _copies_asynchronously(kernel) else []),
        *_instructions(
            "@!%dovetail_first bra $dovetail_taken",
            "ld.shared.v2.u32 {%dovetail_block, %dovetail_until}, [%dovetail_place]",
            "add.u32 %dovetail_block, %dovetail_block, 1",
            "setp.lt.u32 %dovetail_over, %dovetail_block, %dovetail_until",
            "@%dovetail_over bra $dovetail_publish",
            f"mov.u32 %dovetail_block, {_NO_BLOCK}",
            "ld.volatile.global.u32 %dovetail_rest, [%dovetail_stop]",
            "ld.volatile.global.u32 %dovetail_until, [%dovetail_counter]",
            "setp.ne.u32 %dovetail_over, %dovetail_rest, 0",
            "@%dovetail_over bra $dovetail_publish",
            # Nothing is added after the last block: launches behind it let nothing overflow.
            "setp.ge.u32 %dovetail_over, %dovetail_until, %dovetail_blocks",
            "@%dovetail_over bra $dovetail_publish",
            "ld.param.u32 %dovetail_until, [dovetail_chunk]",
            "atom.global.add.u32 %dovetail_block, [%dovetail_counter], %dovetail_until",
            "add.u32 %dovetail_until, %dovetail_until, %dovetail_block",
        ),
        label("$dovetail_publish"),
        *_instructions(
            f"xor.b32 %dovetail_rest, %dovetail_place, {STORAGE_BYTES // 2}",
            "st.shared.v2.u32 [%dovetail_rest], {%dovetail_block, %dovetail_until}",
        ),
        label("$dovetail_taken"),
        *_instructions(
            f"xor.b32 %dovetail_place, %dovetail_place, {STORAGE_BYTES // 2}",
            "barrier.sync 0",
            "ld.shared.u32 %dovetail_block, [%dovetail_place]",
            "setp.ge.u32 %dovetail_over, %dovetail_block, %dovetail_blocks",
            "@%dovetail_over ret",
        ),
        *_split(),
    ]
    parameters = [
        *_grid_parameters(),
        ".param .u64 dovetail_counter",
        ".param .u64 dovetail_stop",
        ".param .u32 dovetail_own",
        ".param .u32 dovetail_chunk",
    ]
    # Declarations of the body come before the loop, so that they are not repeated.
    declared = [
        one for one in body if one.opcode in (".reg", ".shared", ".local") and not one.depth
    ]
    looped = [one for one in body if one not in declared]
    whole = [*declared, *registers, *_grid_loaded(), *begin, *take, *looped]
    return _derived(kernel, WORKERS, parameters, [*whole, *_instructions(f"bra {again}")])


def own_dynamic_bytes(dynamic_bytes: int) -> int:
    """Return the offset of the storage of workers in dynamic shared memory.

    Parameters
    ----------
    dynamic_bytes : int
        Dynamic shared memory of the original launch.
    """
    return -(-dynamic_bytes // STORAGE_BYTES) * STORAGE_BYTES


def _with_unified_sync(body: Sequence[Statement], returned: str) -> list[Statement]:
    """Lead all barriers and returns to one barrier; when all have returned, to ``returned``."""
    sites = ["$dovetail_hold"]
    found: list[Statement] = []
    for one in body:
        if one.family in ("ret", "exit"):
            found += _instructions(f"{one.guard} bra $dovetail_hold".strip())
        elif is_block_barrier(one):
            sites.append(f"$dovetail_site_{len(sites)}")
            jump = [
                f"mov.u32 %dovetail_site, {len(sites) - 1}",
                "setp.eq.u32 %dovetail_goes_on, 0, 0",
                "bra $dovetail_sync",
            ]
            skip = f"$dovetail_skip_{len(sites) - 1}"
            guard = _opposite(one.guard)
            found += _instructions(f"{guard} bra {skip}") if one.guard else []
            found += [*_instructions(*jump), label(sites[-1])]
            found += [label(skip)] if one.guard else []
        else:
            found.append(one)
    return [
        *_declared(("b32", ("site",)), ("pred", ("goes_on", "some"))),
        *found,
        label("$dovetail_hold"),
        *_instructions(
            "mov.u32 %dovetail_site, 0",
            "setp.ne.u32 %dovetail_goes_on, 0, 0",
        ),
        label("$dovetail_sync"),
        *_instructions(
            "barrier.red.or.pred %dovetail_some, 0, %dovetail_goes_on",
            f"@!%dovetail_some bra {returned}",
        ),
        label("$dovetail_sites"),
        *_instructions(
            f".branchtargets {', '.join(sites)}",
            "brx.idx %dovetail_site, $dovetail_sites",
        ),
    ]


def is_block_barrier(one: Statement) -> bool:
    """Return whether a statement is a barrier of all threads of a block."""
    return one.family in ("bar", "barrier") and not one.has("warp") and not one.has("cluster")


def _returning_to(body: Iterable[Statement], target: str) -> list[Statement]:
    return [
        instruction(f"{one.guard} bra {target};".strip(), one.depth)
        if one.family in ("ret", "exit")
        else one
        for one in body
    ]


def _with_given_ids(body: Iterable[Statement]) -> list[Statement]:
    """Replace block index and grid with the values of the original launch."""

    def ours(found: re.Match[str]) -> str:
        return f"%dovetail_{'n' if found[1] else 'c'}{found[2]}"

    return [
        instruction(_ID.sub(ours, one.text), one.depth) if _ID.search(one.text) else one
        for one in body
    ]


def _split() -> list[Statement]:
    """Return the statements that compute block indices x, y and z from the block's number."""
    return _instructions(
        "rem.u32 %dovetail_cx, %dovetail_block, %dovetail_nx",
        "div.u32 %dovetail_rest, %dovetail_block, %dovetail_nx",
        "rem.u32 %dovetail_cy, %dovetail_rest, %dovetail_ny",
        "div.u32 %dovetail_cz, %dovetail_rest, %dovetail_ny",
    )


def _grid_loaded() -> list[Statement]:
    return _instructions(
        *(f"ld.param.u32 %dovetail_n{axis}, [dovetail_grid_{axis}]" for axis in _AXES)
    )


def _grid_parameters() -> list[str]:
    return [f".param .u32 {name}" for name in _GRID]


def _id_names() -> list[str]:
    return [f"{kind}{axis}" for kind in "cn" for axis in _AXES]


def _declared(*registers: tuple[str, Sequence[str]]) -> list[Statement]:
    return _instructions(
        *(
            f".reg .{kind} {', '.join(f'%dovetail_{name}' for name in names)}"
            for kind, names in registers
        )
    )


def _instructions(*texts: str) -> list[Statement]:
    return [instruction(f"{text};") for text in texts]


def _opposite(guard: str) -> str:
    return guard.replace("@!", "@") if guard.startswith("@!") else guard.replace("@", "@!")


def _copies_asynchronously(kernel: Function) -> bool:
    return any(one.family == "cp" and one.has("async") for one in kernel.body)


def _derived(
    kernel: Function, ending: str, parameters: Sequence[str], body: Sequence[Statement]
) -> Function:
    made = replace(kernel, parameters=(*kernel.parameters, *parameters), body=tuple(body))
    return made.renamed(kernel.name + ending)
