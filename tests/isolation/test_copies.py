"""Kernels that can be tried on copies of their memory, and why others cannot."""

import pytest

from dovetail.isolation.copies import pointers, why_not_on_copies
from dovetail.isolation.ptx import parse
from tests.isolation.cuda_kernels import KERNELS
from tests.isolation.nvrtc import compiled
from tests.isolation.triton_cases import NAMES, loaded


def _of(source):
    module = parse(compiled(f'extern "C" __global__ void k({source}'))
    return why_not_on_copies(module, module.functions["k"])


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_with_plain_pointers(name):
    module = parse(compiled(KERNELS[name].source))
    (kernel,) = module.kernels
    assert why_not_on_copies(module, kernel) == ""
    given = KERNELS[name].arguments
    assert pointers(kernel) == sum(
        1 << n for n, one in enumerate(given) if not isinstance(one, int)
    )


@pytest.mark.parametrize("name", NAMES)
def test_tritons_kernels(name):
    assert why_not_on_copies(loaded(name).module, loaded(name).kernel) == ""


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("const int* index, int* y) { y[threadIdx.x] = y[index[threadIdx.x] + 64]; }", ""),
        ("int** y) { *y[threadIdx.x] = 1; }", "addresses"),
        ("long long* y) { *(int*)(y[threadIdx.x] + 4) = 1; }", "addresses"),
        ("uint2* y) { uint2 a = *y; *(int*)((size_t)a.y << 32 | a.x) = 1; }", "addresses"),
        ("int** y) { __shared__ int* s; s = y[0]; __syncthreads(); *s = 1; }", "addresses"),
        ("long long* x, long long* y) { y[threadIdx.x] = x[threadIdx.x] / 3; }", ""),
        ("const long long* index, int* y) { y[index[threadIdx.x]] = 1; }", "addresses"),
        ("const int* index, int* y) { y[(long long)index[threadIdx.x] * 1000000] = 1; }", ""),
        ("uint2* y) { *(int*)(y->y * (1ull << 32) + y->x) = 1; }", "addresses"),
        ("int* x, int* y, int n) { int* p[2] = {x, y}; *p[n] = 1; }", "addresses"),
        ("const double* x, int* y) { y[(int)x[threadIdx.x]] = 1; }", ""),
        (
            "unsigned long long texture, int* y) { asm volatile("
            '"sust.b.1d.b32.trap [%0, {%1}], {%1};" :: "l"(texture), "r"(y[0])); }',
            "textures",
        ),
    ],
)
def test_addresses(source, why):
    found = _of(source)
    assert why in found
    assert bool(found) == bool(why)


_TWO_HALVES = "ld.param.u64 %d1, [p]; ld.global.v2.u32 {%r1, %r2}, [%d1];"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            f"{_TWO_HALVES} cvt.u64.u32 %d2, %r1; cvt.u64.u32 %d3, %r2; shl.b64 %d3, %d3, 32; "
            "or.b64 %d2, %d2, %d3; st.global.u32 [%d2], 1;",
            "addresses",
        ),
        (
            f"{_TWO_HALVES} cvt.u64.u32 %d2, %r1; shl.b64 %d3, %d2, 2; add.s64 %d3, %d1, %d3; "
            "st.global.u32 [%d3], 1;",
            "",
        ),
        (
            f"{_TWO_HALVES} cvt.u64.u32 %d2, %r1; cvt.u64.u32 %d3, %r2; "
            "bfi.b64 %d2, %d3, %d2, 32, 32; st.global.u32 [%d2], 1;",
            "addresses",
        ),
        (
            f"{_TWO_HALVES} cvt.u64.u32 %d2, %r1; cvt.u64.u32 %d3, %r2; "
            "mad.lo.s64 %d2, %d3, 4294967296, %d2; st.global.u32 [%d2], 1;",
            "addresses",
        ),
        (
            f"{_TWO_HALVES} mul.wide.u32 %d3, %r1, 4096; mad.lo.s64 %d3, %d3, 4096, %d1; "
            "st.global.u32 [%d3], 1;",
            "",
        ),
        (
            "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r2}, [%r1]; mov.b64 %d1, {%r1, %r2};"
            "st.global.u32 [%d1], 1;",
            "addresses",
        ),
        ("tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [t, {%f1, %f2}];", "textures"),
        ("tld4.r.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [t, {%f1, %f2}];", "textures"),
        ("txq.width.b32 %r1, [t];", "textures"),
        ("suld.b.1d.b32.trap %r1, [t, {%r1}];", "textures"),
        ("sured.b.add.1d.u32.trap [t, {%r1}], %r2;", "textures"),
        ("suq.width.b32 %r1, [t];", "textures"),
        ("istypep.texref %p1, %d1;", "textures"),
        ("ld.global.b128 %q, [%d1]; mov.b128 {%d2, %d3}, %q; st.global.u32 [%d2], 1;", "addresses"),
        ("ld.param.u32 %r1, [a]; mov.b64 %d1, {%r1, %r1}; st.global.u32 [%d1], 1;", "addresses"),
        ("ld.global.u64 %d2, [%d1]; cp.async.ca.shared.global [%r1], [%d2], 16;", "addresses"),
        (
            "ld.global.u64 %d2, [%d1]; "
            "cp.async.bulk.global.shared::cta.bulk_group [%d2], [%r1], 16;",
            "addresses",
        ),
        ("ld.shared.u64 %d2, [%r1]; add.s64 %d2, %d2, 1; st.shared.u64 [%r1], %d2;", ""),
        ("cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%d1, {%r1}], [%r2];", "tensor"),
        ("tensormap.replace.tile.rank.global.b1024.b32 [%d1], 1;", "tensor"),
    ],
)
def test_addresses_in_ptx(body, why):
    module = parse(
        ".version 8.3\n.target sm_90\n.address_size 64\n"
        f".visible .entry k(.param .u64 p, .param .u32 a) {{ {body} ret; }}"
    )
    found = why_not_on_copies(module, module.functions["k"])
    assert why in found
    assert bool(found) == bool(why)


@pytest.mark.parametrize(
    ("fields", "use", "why"),
    [
        ("int rows, columns;", "y[s.rows * threadIdx.x + s.columns] = 1;", ""),
        ("short a; char b; double c;", "y[s.a + s.b] = (int)s.c;", ""),
        ("unsigned short each[9];", "y[s.each[threadIdx.x & 7]] = 1;", ""),
        ("long long value;", "y[threadIdx.x] = (int)(s.value >> 40);", ""),
        ("int* x;", "y[threadIdx.x] = s.x[threadIdx.x];", "structure"),
        ("int n; int* x[3];", "*s.x[s.n] = 1;", "structure"),
        ("unsigned low, high;", "*(int*)((size_t)s.high << 32 | s.low) = 1;", "structure"),
        ("long long stride;", "y[threadIdx.x * s.stride] = 1;", "structure"),
        ("char each[8];", "int* x; memcpy(&x, s.each, 8); *x = 1;", "structure"),
    ],
)
def test_structures(fields, use, why):
    """What they hold may be a number that is no part of an address, or a short index."""
    head = f"struct S {{ {fields} }}; extern"
    module = parse(compiled(f'{head} "C" __global__ void k(int* y, const S s) {{ {use} }}'))
    found = why_not_on_copies(module, module.functions["k"])
    assert why in found
    assert bool(found) == bool(why)
    assert pointers(module.functions["k"]) == 1


def test_parameters_and_calls():
    text = (
        ".version 8.3\n.target sm_80\n.address_size 64\n.func f() { ret; }\n"
        ".visible .entry c(.param .u64 p) { call f, (); ret; }\n"
        f".visible .entry m({', '.join(f'.param .u64 p{n}' for n in range(65))}) {{ ret; }}\n"
        ".visible .entry w(.param .b128 p) { ld.param.b128 %q, [p]; mov.b128 {%d1, %d2}, %q; "
        "st.global.u32 [%d1], 1; ret; }\n"
        ".visible .entry a(.param .align 8 .b8 p[8]) { mov.b64 %d1, p; ld.param.u64 %d2, [%d1]; "
        "st.global.u32 [%d2], 1; ret; }\n"
    )
    module = parse(text)
    found = {name: why_not_on_copies(module, one) for name, one in module.functions.items()}
    assert found["c"] == "it calls functions"
    assert found["m"] == "it has more than 64 parameters"
    assert found["w"] == found["a"] == "it loads addresses from memory or a structure"
    assert pointers(module.functions["m"]) == (1 << 64) - 1
