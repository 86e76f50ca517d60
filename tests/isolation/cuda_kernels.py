"""Kernels in CUDA C, each with a launch: small versions of those of deep learning libraries."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

from tests.isolation.running import DATA_AT, Case


@dataclass(frozen=True)
class Written:
    """A kernel's source, and the launch that it is tried with.

    ``arguments`` are ``("floats", n)`` and ``("ints", n)`` for arrays with values, ``("zeros", n)``
    for arrays of words to write to, and plain integers. ``in_order`` kernels rest on blocks that
    begin in the order of their numbers.
    """

    source: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[int | tuple[str, int], ...]
    dynamic_shared: int = 0
    in_order: bool = False

    def case(self) -> Case:
        rng = random.Random(1)
        data, raw = b"", []
        for given in self.arguments:
            if isinstance(given, int):
                raw.append(given)
                continue
            kind, count = given
            data += bytes(-len(data) % 16)
            raw.append(DATA_AT + len(data))
            for _ in range(count):
                if kind == "floats":
                    data += struct.pack("<f", rng.choice((0.5, 1, 2, 3, -1)))
                else:
                    data += struct.pack("<i", rng.randrange(100) if kind == "ints" else 0)
        return Case(self.grid, self.block, data, tuple(raw), self.dynamic_shared, self.in_order)


KERNELS: dict[str, Written] = {
    "row_sums_with_early_returns": Written(
        """extern "C" __global__ void k(const float* x, float* y, int n, int columns) {
        __shared__ float part[16];
        int row = blockIdx.x + gridDim.x * blockIdx.y;
        if (row >= n) return;
        float s = 0.f;
        for (int c = threadIdx.x; c < columns; c += blockDim.x) s += x[row * columns + c];
        part[threadIdx.x] = s;
        __syncthreads();
        if (threadIdx.x >= 8) return;
        for (int h = 8; h > 0; h >>= 1) {
            if (threadIdx.x < h && h + threadIdx.x < 16) part[threadIdx.x] += part[threadIdx.x + h];
            __syncthreads();
        }
        if (threadIdx.x == 0) y[row] = part[0]; }""",
        (3, 3, 1),
        (16, 1, 1),
        (("floats", 160), ("zeros", 9), 8, 20),
    ),
    "tiled_product": Written(
        """extern "C" __global__ void k(const float* a, const float* b, float* c, int n) {
        __shared__ float s[4][4], t[4][4];
        int x = threadIdx.x, y = threadIdx.y, i = blockIdx.y * 4 + y, j = blockIdx.x * 4 + x;
        float v = 0.f;
        for (int k = 0; k < n; k += 4) {
            s[y][x] = a[i * n + k + x]; t[y][x] = b[(k + y) * n + j];
            __syncthreads();
            for (int q = 0; q < 4; q++) v += s[y][q] * t[q][x];
            __syncthreads();
        }
        c[i * n + j] = v; }""",
        (3, 3, 1),
        (4, 4, 1),
        (("floats", 144), ("floats", 144), ("zeros", 144), 12),
    ),
    "three_dimensions": Written(
        """extern "C" __global__ void k(unsigned* y) {
        unsigned b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        y[b * blockDim.x + threadIdx.x] = b * 1000u + threadIdx.x; }""",
        (2, 3, 4),
        (5, 1, 1),
        (("zeros", 120),),
    ),
    "grid_stride": Written(
        """extern "C" __global__ void k(const int* x, int* y, int n) {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x)
            y[i] = 3 * x[i] + 1; }""",
        (4, 1, 1),
        (8, 1, 1),
        (("ints", 100), ("zeros", 100), 100),
    ),
    "histogram": Written(
        """extern "C" __global__ void k(const int* x, int* y, int n) {
        __shared__ int h[8];
        if (threadIdx.x < 8) h[threadIdx.x] = 0;
        __syncthreads();
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) atomicAdd(&h[x[i] & 7], 1);
        __syncthreads();
        if (threadIdx.x < 8) atomicAdd(&y[threadIdx.x], h[threadIdx.x]); }""",
        (6, 1, 1),
        (16, 1, 1),
        (("ints", 90), ("zeros", 8), 90),
    ),
    "update_in_place": Written(
        """extern "C" __global__ void k(float* y, const float* x) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        y[i] = y[i] * 0.5f + x[i]; }""",
        (8, 1, 1),
        (4, 1, 1),
        (("floats", 32), ("floats", 32)),
        dynamic_shared=40_000,  # an SM holds one block
    ),
    "every_other_thread_returns": Written(
        """extern "C" __global__ void k(float* y, const float* x) {
        __shared__ float s[8];
        int t = threadIdx.x;
        s[t] = x[blockIdx.x * 8 + t];
        if (t & 1) return;
        __syncthreads();
        y[blockIdx.x * 4 + t / 2] = s[t] + s[t + 1] * 0.f;
        __syncthreads();
        y[blockIdx.x * 4 + t / 2] += 1.f; }""",
        (5, 1, 1),
        (8, 1, 1),
        (("zeros", 20), ("floats", 40)),
    ),
    "warp_reduction": Written(
        """extern "C" __global__ void k(const int* x, int* y) {
        int v = x[blockIdx.x * blockDim.x + threadIdx.x];
        for (int h = 16; h > 0; h >>= 1) v += __shfl_down_sync(0xffffffff, v, h);
        __shared__ int part[2];
        if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
        __syncthreads();
        if (threadIdx.x == 0) y[blockIdx.x] = part[0] + part[1]; }""",
        (4, 1, 1),
        (64, 1, 1),
        (("ints", 256), ("zeros", 4)),
    ),
    "last_warp_reduces": Written(
        """extern "C" __global__ void k(const int* x, int* y) {
        __shared__ int s[64];
        s[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
        __syncthreads();
        if (threadIdx.x < 32) {
            int v = s[threadIdx.x] + s[threadIdx.x + 32];
            for (int h = 16; h > 0; h >>= 1) v += __shfl_xor_sync(0xffffffff, v, h);
            if (threadIdx.x == 0) y[blockIdx.x] = v;
        } }""",
        (4, 1, 1),
        (64, 1, 1),
        (("ints", 256), ("zeros", 4)),
    ),
    "softmax": Written(
        """extern "C" __global__ void k(const float* x, float* y, int n) {
        __shared__ float s[32];
        float v = threadIdx.x < n ? x[blockIdx.x * n + threadIdx.x] : -1e30f, m = v;
        for (int h = 16; h > 0; h >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, h));
        float e = __expf(v - m);
        s[threadIdx.x] = threadIdx.x < n ? e : 0.f;
        __syncthreads();
        for (int h = 16; h > 0; h >>= 1) {
            if (threadIdx.x < h) s[threadIdx.x] += s[threadIdx.x + h];
            __syncthreads();
        }
        if (threadIdx.x < n) y[blockIdx.x * n + threadIdx.x] = e / s[0]; }""",
        (5, 1, 1),
        (32, 1, 1),
        (("floats", 140), ("zeros", 140), 28),
    ),
    "votes": Written(
        """extern "C" __global__ void k(const int* x, unsigned* y) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        unsigned b = __ballot_sync(0xffffffff, x[i] & 1);
        int all = __all_sync(0xffffffff, x[i] < 90), any = __any_sync(0xffffffff, x[i] > 95);
        y[i] = __popc(b & ((1u << (threadIdx.x & 31)) - 1)) + 100 * all + 1000 * any; }""",
        (3, 1, 1),
        (40, 1, 1),
        (("ints", 120), ("zeros", 120)),
    ),
    "last_block_finishes": Written(
        """extern "C" __global__ void k(const int* x, int* part, int* out, unsigned* count) {
        __shared__ bool last;
        atomicAdd(&part[blockIdx.x], x[blockIdx.x * blockDim.x + threadIdx.x]);
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            last = atomicInc(count, gridDim.x - 1) == gridDim.x - 1;
        }
        __syncthreads();
        if (!last) return;
        int s = 0;
        for (int b = threadIdx.x; b < gridDim.x; b += blockDim.x) s += part[b] * (b + 1);
        atomicAdd(out, s); }""",
        (7, 1, 1),
        (8, 1, 1),
        (("ints", 56), ("zeros", 7), ("zeros", 1), ("zeros", 1)),
    ),
    "dynamic_shared_memory": Written(
        """extern "C" __global__ void k(const int* x, int* y) {
        extern __shared__ int s[];
        __shared__ int bias;
        if (threadIdx.x == 0) bias = blockIdx.x;
        s[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
        __syncthreads();
        y[blockIdx.x * blockDim.x + threadIdx.x] = s[blockDim.x - 1 - threadIdx.x] + bias; }""",
        (4, 1, 1),
        (16, 1, 1),
        (("ints", 64), ("zeros", 64)),
        64,
    ),
    "addresses_in_shared_memory": Written(
        """extern "C" __global__ void k(unsigned* y) {
        extern __shared__ unsigned s[];
        y[blockIdx.x] = (unsigned)__cvta_generic_to_shared(s); }""",
        (5, 1, 1),
        (4, 1, 1),
        (("zeros", 5),),
        36,
    ),
    "vectors_of_four": Written(
        """extern "C" __global__ void k(const float4* x, float4* y) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        float4 v = x[i];
        v.x += v.w; v.y *= 2.f; v.z = fminf(v.z, v.x); v.w = fabsf(v.w);
        y[i] = v; }""",
        (3, 1, 1),
        (8, 1, 1),
        (("floats", 96), ("zeros", 96)),
    ),
    "halves": Written(
        """extern "C" __global__ void k(const float* x, unsigned short* y) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        unsigned short h;
        asm("{ .reg .b16 a, b; cvt.rn.f16.f32 a, %1; mul.f16 b, a, a; add.f16 %0, a, b; }"
            : "=h"(h) : "f"(x[i]));
        y[i] = h; }""",
        (4, 1, 1),
        (8, 1, 1),
        (("floats", 32), ("zeros", 16)),
    ),
    "block_scan": Written(
        """extern "C" __global__ void k(const int* x, int* y) {
        __shared__ int s[2][16];
        int t = threadIdx.x, from = 0;
        s[0][t] = x[blockIdx.x * 16 + t];
        __syncthreads();
        for (int h = 1; h < 16; h <<= 1) {
            int v = s[from][t];
            if (t >= h) v += s[from][t - h];
            from ^= 1;
            s[from][t] = v;
            __syncthreads();
        }
        y[blockIdx.x * 16 + t] = s[from][t]; }""",
        (5, 1, 1),
        (16, 1, 1),
        (("ints", 80), ("zeros", 80)),
    ),
    "look_back_scan": Written(
        """extern "C" __global__ void k(const int* x, volatile int* sums, int* y) {
        int t = threadIdx.x, b = blockIdx.x;
        __shared__ int before;
        if (t == 0) {
            int v = 0;
            for (int i = 0; i < 4; i++) v += x[b * 4 + i];
            int sum = 0;
            if (b > 0) { while ((sum = sums[b - 1]) == 0); }
            __threadfence();
            sums[b] = (sum ? sum : 1) + v;
            before = sum ? sum - 1 : 0;
        }
        __syncthreads();
        y[b * 4 + t] = before + x[b * 4 + t]; }""",
        (6, 1, 1),
        (4, 1, 1),
        (("ints", 24), ("zeros", 6), ("zeros", 24)),
        in_order=True,
    ),
    "nothing_to_do": Written(
        """extern "C" __global__ void k(int* y, int n) {
        if (blockIdx.x > 1 && n) return;
        y[blockIdx.x] = 1 + n; }""",
        (5, 1, 1),
        (1, 1, 1),
        (("zeros", 5), 3),
    ),
    "named_by_switch": Written(
        """extern "C" __global__ void k(const int* x, int* y) {
        int i = blockIdx.x * blockDim.x + threadIdx.x, v = x[i];
        switch (v % 7) {
            case 0: v = v * 3; break;
            case 1: v ^= 0x55; break;
            case 2: v = -v; break;
            case 3: v = v << 3; break;
            case 4: v = __clz(v); break;
            case 5: v = __brev(v); break;
            default: v = v / 3 + v % 5;
        }
        y[i] = v; }""",
        (4, 1, 1),
        (16, 1, 1),
        (("ints", 64), ("zeros", 64)),
    ),
    "doubles_and_longs": Written(
        """extern "C" __global__ void k(const int* x, long long* y, double* z) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        long long v = (long long)x[i] * 1000000007LL;
        y[i] = v / 3 - (v >> 5);
        z[i] = sqrt((double)x[i]) / 7.0; }""",
        (3, 1, 1),
        (8, 1, 1),
        (("ints", 24), ("zeros", 48), ("zeros", 48)),
    ),
}
