"""Decides which kernels cannot be split up, and why. A refused kernel runs unchanged."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dovetail.isolation.flow import Flow, Level
from dovetail.isolation.ptx import Function, Module, Statement
from dovetail.isolation.transform import is_block_barrier

# ``.shared::cluster`` alone does not indicate clusters: a single block is a cluster of one.
_CLUSTER = re.compile(r"%cluster|%is_explicit_cluster|\bmapa\b|\.cluster\b|cta_group::2")
_VARIABLE = re.compile(
    r"\.(?:global|const|texref|samplerref|surfref)\b[^;={]*?([\w$%]+)\s*(?:\[|=|;)"
)
_CONSTANT = re.compile(r"\$str|__(?:func|FUNCTION|PRETTY_FUNCTION)__|assert(?:Message|File|Func)_")
"""Names that compilers give to texts of messages."""
_CLUSTER_SIZE = re.compile(r"cluster")
_KEPT_STATE = {
    "mbarrier": "an mbarrier in shared memory cannot be initialised for a second block",
    "tcgen05": "tensor memory belongs to a block until the block ends",
    "setmaxnreg": "registers move from one warp to another for the rest of the block",
    "griddepcontrol": "it starts a dependent grid before its end",
}


@dataclass(frozen=True)
class Verdict:
    """Whether a kernel can be split up.

    Attributes
    ----------
    slices, workers : str
        Why it cannot run in slices, or be preempted; empty if it can.
    unified : bool
        Whether the preemptible form needs unified synchronisation.
    whole_warps : bool
        Whether it relies on warps of 32 consecutive ``tid.x``: blocks of one dimension, or with an
        x dimension that is a multiple of 32.
    """

    slices: str = ""
    workers: str = ""
    unified: bool = False
    whole_warps: bool = False


def verdict(module: Module, kernel: Function) -> Verdict:
    """Return whether a kernel of a module can run in slices, and whether it can be preempted.

    Properties of launches are not checked here: cooperative launches, clusters given as an
    attribute, and grids of 2**32 or more blocks cannot be split up either.
    """
    both = _why_neither(module, kernel)
    if both:
        return Verdict(both, both)
    state = _why_not_again(kernel)
    if state:
        return Verdict(workers=state)
    flow = Flow(kernel)
    parted, parted_warps = flow.in_region_of(Level.WARP), flow.in_region_of(Level.DIVERGENT)
    of_warp = [k for k, one in enumerate(kernel.body) if _waits_for_warp(one)]
    if parted_warps.intersection(of_warp):
        return Verdict(workers="a warp may wait for some of its threads that have returned")
    barriers = [k for k, one in enumerate(kernel.body) if is_block_barrier(one)]
    unified = bool(parted.intersection(barriers))
    if unified and any(kernel.body[k].depth for k in barriers):
        return Verdict(workers="a barrier is in a scope of its own", unified=True)
    return Verdict(unified=unified, whole_warps=bool(of_warp))


def shared_variable(module: Module, kernel: Function) -> str:
    """Return a variable of the module that is used by a kernel or a function of the module.

    If the module is loaded a second time, its variables exist twice: the kernels of one copy do not
    see values written to the other copy.
    """
    outside, end = "", 0
    for function in sorted(module.functions.values(), key=lambda one: one.start):
        outside += module.text[end : function.start]
        end = function.end
    variables = {*_VARIABLE.findall(outside + module.text[end:])}
    functions = [one for one in module.functions.values() if one.kind == "func"]
    named = (
        name
        for function in (kernel, *functions)
        for statement in function.body
        for name in re.findall(r"[\w$%]+", statement.text)
    )
    return next((name for name in named if name in variables and not _CONSTANT.match(name)), "")


def _why_neither(module: Module, kernel: Function) -> str:
    if _CLUSTER_SIZE.search(kernel.directives):
        return "blocks in clusters"
    for one in kernel.body:
        if "%ctaid" in one.text and "%ctaid." not in one.text:
            return "reads its block index as a vector"
        if "%gridid" in one.text:
            return "reads the number of its grid"
        if _CLUSTER.search(one.text) and not one.label:
            return "blocks in clusters"
        if one.text.find("dovetail_") >= 0:
            return "has been transformed already"
        if one.family == "call" and (why := _why_not_called(module, one)):
            return why
    return ""


def _why_not_called(module: Module, call: Statement) -> str:
    """Return why a call prevents splitting up a kernel, empty if it does not."""
    names = [name for text in call.operands for name in re.findall(r"[\w$%]+", text)]
    if any(name.startswith(("cudaLaunch", "cudaGetParameter")) for name in names):
        return "launches kernels itself"
    if any(name in ("vprintf", "malloc", "free", "__assertfail") for name in names):
        return ""
    called = [module.functions[name] for name in names if name in module.functions]
    if not called:
        return "calls an unknown function"
    for function in called:
        for one in function.body:
            if is_block_barrier(one) or one.family == "exit" or "ctaid" in one.text:
                return f"calls {function.name}, which synchronises, ends or reads its block index"
            if "smem_size" in one.text:
                return f"calls {function.name}, which reads how much shared memory it has"
            if one.family == "call":
                return f"calls {function.name}, which calls others"
    return ""


def _why_not_again(kernel: Function) -> str:
    """Return why a block of the kernel cannot start in the place of another that ended."""
    for one in kernel.body:
        if one.family in _KEPT_STATE:
            return _KEPT_STATE[one.family]
        if one.has("bulk") or one.has("mbarrier"):
            return _KEPT_STATE["mbarrier"]
        if "%smid" in one.text or "%nsmid" in one.text:
            return "reads on which SM it runs"
        if "smem_size" in one.text or "%reserved_smem" in one.text:
            return "reads how much shared memory it has"
        if one.opcode == ".shared" and one.depth:
            return "a variable in shared memory is in a scope of its own"
        if is_block_barrier(one) and not _is_whole_barrier(one):
            return "has numbered barriers, or barriers of some of its threads"
    return ""


def _is_whole_barrier(one: Statement) -> bool:
    return one.has("sync") and one.operands == ("0",)


def _waits_for_warp(one: Statement) -> bool:
    """Return whether a statement waits for the threads of a mask that have not ended.

    In the preemptible form, a thread that returns ends only with its worker. Waiting for a mask
    that includes it would never end, and masks are known only at run time.
    """
    if one.family in ("bar", "barrier"):
        return one.has("warp")
    return one.has("sync") and one.family in ("shfl", "vote", "match", "redux", "elect")
