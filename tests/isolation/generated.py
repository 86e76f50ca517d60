"""CUDA C kernels from a grammar: loops, divergence, early returns, barriers, atomics, warps.

What a generated kernel computes does not depend on the order of its threads: between two barriers
a thread writes its own place of shared memory only, and what several threads add to is added to
atomically. Returns may be taken by whole blocks, by some threads of a block or of a warp.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.isolation.running import DATA_AT, Case

_BLOCKS = ((16, 1, 1), (32, 1, 1), (40, 1, 1), (64, 1, 1), (4, 4, 1), (32, 2, 1), (3, 2, 3))
_GRIDS = ((1, 1, 1), (5, 1, 1), (3, 2, 1), (2, 2, 2), (7, 1, 1))


@dataclass(frozen=True)
class Generated:
    """A kernel's source, and the launch that it is tried with."""

    source: str
    case: Case


@st.composite
def kernels(draw: st.DrawFn) -> Generated:
    """Draw a kernel and a launch."""
    block = draw(st.sampled_from(_BLOCKS))
    grid = draw(st.sampled_from(_GRIDS))
    threads = block[0] * block[1] * block[2]
    body = "\n".join(draw(st.lists(_statements(2), min_size=1, max_size=7)))
    source = f"""extern "C" __global__ void k(const int* x, int* y, int* sums, int n) {{
    __shared__ int s[{threads}];
    const int size = {threads};
    int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    int i = b * size + t, v = x[i];
    s[t] = v;
    __syncthreads();
    {body}
    y[i] = v;
    }}"""
    blocks = grid[0] * grid[1] * grid[2]
    count = blocks * threads
    values = [(37 * k * k + 11) % 101 for k in range(count)]
    data = struct.pack(f"<{count}i", *values) + bytes(4 * count) + bytes(4 * 8)
    y_at = DATA_AT + 4 * count
    return Generated(source, Case(grid, block, data, (DATA_AT, y_at, y_at + 4 * count, count)))


def _expressions() -> st.SearchStrategy[str]:
    simple = st.sampled_from(
        ("v", "t", "b", "i", "n", "gridDim.x", "blockIdx.y", "threadIdx.x", "3", "17")
    )
    return st.recursive(
        simple,
        lambda inner: st.tuples(inner, st.sampled_from("+-*&|^"), inner).map(
            lambda parts: f"({' '.join(parts)})"
        ),
        max_leaves=4,
    )


def _conditions() -> st.SearchStrategy[str]:
    of_block = st.sampled_from(("(b & 1)", "b > 2", "n > 3", "blockIdx.x == 1", "(b % 3 == 0)"))
    of_warp = st.sampled_from(("threadIdx.x < 32", "(threadIdx.x >> 5) == 0", "threadIdx.x >= 32"))
    of_thread = st.sampled_from(("(t & 1)", "t < 7", "v > 50", "(v & 4)", "t % 3 == 1"))
    return st.one_of(of_block, of_warp, of_thread)


def _calculations() -> st.SearchStrategy[str]:
    expression = _expressions()
    return st.one_of(
        expression.map(lambda e: f"v = {e};"),
        expression.map(lambda e: f"v += {e} % 13;"),
        st.integers(0, 7).map(lambda k: f"atomicAdd(&sums[(v + {k}) & 3], 1);"),
        st.integers(4, 7).map(lambda k: f"atomicMax(&sums[{k}], v & 1023);"),
        st.integers(1, 4).map(lambda k: f"for (int q = 0; q < (v & {k}); q++) v = v * 5 + q;"),
        st.just("v = __popc(v) + __clz(v);"),
    )


def _exchanges() -> st.SearchStrategy[str]:
    """Shared memory between barriers: every thread writes its place, then reads another's."""
    return st.integers(1, 9).map(
        lambda k: (
            "__syncthreads(); s[t] = v; __syncthreads(); "
            f"v += s[(t + {k}) % size]; __syncthreads();"
        )
    )


def _warp_wide() -> st.SearchStrategy[str]:
    return st.sampled_from(
        (
            "v += __shfl_xor_sync(0xffffffff, v, 1);",
            "v += __popc(__ballot_sync(0xffffffff, v & 1));",
            "v ^= __any_sync(0xffffffff, v > 90);",
        )
    )


def _statements(depth: int) -> st.SearchStrategy[str]:
    calculation, condition = _calculations(), _conditions()
    returning = condition.map(lambda c: f"if ({c}) {{ y[i] = v + 1; return; }}")
    plain = st.one_of(calculation, _exchanges(), returning, _warp_wide())
    if not depth:
        return plain
    inner = st.lists(calculation, min_size=1, max_size=3).map(" ".join)
    whole = st.lists(plain, min_size=1, max_size=3).map(" ".join)
    return st.one_of(
        plain,
        plain,
        st.tuples(condition, inner, inner).map(
            lambda p: f"if ({p[0]}) {{ {p[1]} }} else {{ {p[2]} }}"
        ),
        st.tuples(st.integers(1, 3), whole).map(
            lambda p: f"for (int r = 0; r < {p[0]}; r++) {{ {p[1]} }}"
        ),
        st.tuples(st.sampled_from(("(b & 1)", "b > 1", "n > 3")), whole).map(
            lambda p: f"if ({p[0]}) {{ {p[1]} }}"
        ),
    )
