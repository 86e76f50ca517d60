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


def test_structures_and_calls():
    text = (
        ".version 8.0\n.target sm_80\n.address_size 64\n.func f() { ret; }\n"
        ".visible .entry k(.param .align 8 .b8 s[16]) { ret; }\n"
        ".visible .entry c(.param .u64 p) { call f, (); ret; }\n"
        f".visible .entry m({', '.join(f'.param .u32 p{n}' for n in range(65))}) {{ ret; }}\n"
    )
    module = parse(text)
    found = {name: why_not_on_copies(module, one) for name, one in module.functions.items()}
    assert found["k"] == "it takes a structure, which may hold pointers"
    assert found["c"] == "it calls functions"
    assert found["m"] == "it has more than 64 parameters"
