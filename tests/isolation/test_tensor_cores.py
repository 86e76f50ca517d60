"""Addresses that instructions demand: each rule left out of the interpreter fails one of these."""

import random
import struct
from dataclasses import replace

import pytest

from dovetail.isolation.ptx import instruction, parse
from dovetail.isolation.refusals import verdict
from dovetail.isolation.transform import workers
from tests.isolation import running
from tests.isolation.interpreter import Kernel, launch
from tests.isolation.nvrtc import compiled
from tests.isolation.running import DATA_AT, Case
from tests.isolation.tensor_cores import AddressError, InterpreterError, TensorMap

HEAD = """.version 8.0
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 dynamic[];
.visible .entry k(.param .u64 y) {
.reg .b32 %r<40>; .reg .b64 %rd<9>; .reg .f32 %f<40>; .reg .pred %p<3>;
ld.param.u64 %rd1, [y]; mov.u32 %r1, dynamic;
"""


def _run(body, threads=128):
    module = parse(f"{HEAD}{body} ret; }}")
    (kernel,) = module.kernels
    case = Case((1, 1, 1), (threads, 1, 1), bytes(512), (DATA_AT,), 16384)
    return running.as_it_is(module, kernel, case, random.Random(0))


_OF_BULK = "mbarrier.init.shared::cta.b64 [%r1], 1; add.u32 %r2, %r1, 1024;"
_BULK = (
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2+{}], [%rd1+{}], {}, "
    "[%r1+{}];"
)


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("ld.shared.u32 %r2, [%r1+4];", "ld.shared.u32 %r2, [%r1+2];"),
        (
            "ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [%r1+16];",
            "ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [%r1+8];",
        ),
        ("st.shared.v2.u32 [%r1+8], {%r2, %r3};", "st.shared.v2.u32 [%r1+4], {%r2, %r3};"),
        ("atom.global.add.u32 %r2, [%rd1], 1;", "atom.global.add.u32 %r2, [%rd1+2], 1;"),
        (
            "cp.async.ca.shared.global [%r1], [%rd1], 16;",
            "cp.async.ca.shared.global [%r1+8], [%rd1], 16;",
        ),
        (
            "cp.async.ca.shared.global [%r1], [%rd1+8], 8;",
            "cp.async.ca.shared.global [%r1], [%rd1+4], 8;",
        ),
        (
            "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r1+16];",
            "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r1+8];",
        ),
        (
            "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r1+16], {%r2};",
            "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r1+8], {%r2};",
        ),
        ("mbarrier.init.shared::cta.b64 [%r1+8], 1;", "mbarrier.init.shared::cta.b64 [%r1+4], 1;"),
        (_OF_BULK + _BULK.format(16, 16, 16, 0), _OF_BULK + _BULK.format(8, 16, 16, 0)),
        (_OF_BULK + _BULK.format(16, 16, 16, 0), _OF_BULK + _BULK.format(16, 8, 16, 0)),
        (_OF_BULK + _BULK.format(16, 16, 16, 0), _OF_BULK + _BULK.format(16, 16, 8, 0)),
        (_OF_BULK + _BULK.format(16, 16, 16, 0), _OF_BULK + _BULK.format(16, 16, 16, 4)),
    ],
)
def test_alignment(good, bad):
    threads = 32 if "matrix" in good else 1
    _run(good, threads)
    with pytest.raises(AddressError, match="multiple"):
        _run(bad, threads)


@pytest.mark.parametrize("swizzle", [1, 2, 3])
def test_operands_of_wgmma_begin_where_their_swizzle_does(swizzle):
    step = 1024 >> swizzle - 1

    def product(at):
        registers = "{" + ", ".join(f"%f{n}" for n in range(4)) + "}"
        descriptor = (step >> 4) << 32 | swizzle << 62
        return _run(
            f"add.u32 %r1, %r1, {at}; bfe.u32 %r1, %r1, 4, 14; cvt.u64.u32 %rd2, %r1;"
            f"or.b64 %rd2, %rd2, {descriptor}; wgmma.fence.sync.aligned;"
            f"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {registers}, %rd2, %rd2,"
            "0, 1, 1, 0, 0;"
            "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
        )

    product(0)
    product(step)
    with pytest.raises(AddressError, match="start of a swizzle"):
        product(128)


def test_barriers_in_shared_memory_are_initialised_once():
    begin = "mbarrier.init.shared::cta.b64 [%r1], 1;"
    _run(f"{begin} mbarrier.inval.shared::cta.b64 [%r1]; {begin}", 1)
    with pytest.raises(InterpreterError, match="initialised while"):
        _run(begin + begin, 1)
    with pytest.raises(InterpreterError, match="not initialised"):
        _run("mbarrier.arrive.shared::cta.b64 _, [%r1];", 1)


_COPIED = """
    unsigned bar = (unsigned)__cvta_generic_to_shared(&barrier), t = threadIdx.x;
    unsigned to = (unsigned)__cvta_generic_to_shared(s);
    if (t == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
    __syncthreads();
    if (t == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], BYTES;" :: "r"(bar));
        COPY
    }
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;"
            "selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(bar) : "memory");
"""


def _copying(head, copy, size, rest):
    text = _COPIED.replace("COPY", copy).replace("BYTES", str(size))
    module = parse(compiled(f"{head} {text} {rest} }}", "compute_90"))
    (kernel,) = module.kernels
    return module, kernel


def _slices_of_a_barrier_in_memory(module, kernel, case):
    """Slices leave what the whole leaves; workers are refused."""
    rng = random.Random(3)
    whole = running.as_it_is(module, kernel, case, rng)
    found = verdict(module, kernel)
    assert (found.slices, "mbarrier" in found.workers) == ("", True)
    assert running.in_slices(module, kernel, case, rng) == whole
    return whole


def test_bulk_copies():
    module, kernel = _copying(
        """extern "C" __global__ void k(const int* x, int* y) {
        __shared__ __align__(128) int s[32];
        __shared__ unsigned long long barrier;""",
        'asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes'
        ' [%0], [%1], 128, [%2];" :: "r"(to), "l"(x + 32 * blockIdx.x), "r"(bar) : "memory");',
        128,
        "y[32 * blockIdx.x + t] = s[31 - t];",
    )
    values = list(range(96))
    data = struct.pack("<96i", *values) + bytes(384)
    case = Case((3, 1, 1), (32, 1, 1), data, (DATA_AT, DATA_AT + 384))
    whole = _slices_of_a_barrier_in_memory(module, kernel, case)
    again = case.memory()
    runs = running.workers_of(module, workers(kernel, unified=False))
    arguments = (*case.arguments, *case.grid, running.COUNTER_AT, running.FLAG_AT, 0, 1)
    with pytest.raises(InterpreterError, match="initialised while"):
        launch(runs, again, arguments, (1, 1, 1), case.block, random.Random(6), dynamic_shared=16)
    expected = [values[32 * block + 31 - t] for block in range(3) for t in range(32)]
    assert list(struct.unpack("<96i", whole[384:])) == expected


def _tiles():
    """A kernel that copies tiles of 8 rows of 128 bytes, swizzled, and reads them as if at 0."""
    module, kernel = _copying(
        """struct __align__(64) Map { char bytes[128]; };
        extern "C" __global__ void k(const __grid_constant__ Map map, int* y) {
        extern __shared__ __align__(128) char s[];
        __shared__ unsigned long long barrier;""".replace(
            "__shared__ unsigned long long barrier;", ""
        )
        + "unsigned long long& barrier = *(unsigned long long*)(s + 1024);",
        'asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile'
        '.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" :: "r"(to), "l"(&map),'
        ' "r"(0), "r"(8 * blockIdx.x), "r"(bar) : "memory");',
        1024,
        """for (int n = 0; n < 8; n++)
            y[256 * blockIdx.x + 32 * n + t] = *(int*)(s + (128 * n + 4 * t ^ n << 4));""",
    )
    values = list(range(768))
    data = struct.pack("<768i", *values) + bytes(4 * 768)
    tiles = TensorMap(DATA_AT, 4, (32, 20), (128,), (32, 8), 128).encoded()
    case = Case((3, 1, 1), (32, 1, 1), data, (tiles, DATA_AT + 4 * 768), 1024 + 8)
    # Beyond the 20 rows of the map there are zeros.
    return module, kernel, case, [v if v < 640 else 0 for v in values]


def test_tiles():
    module, kernel, case, expected = _tiles()
    whole = _slices_of_a_barrier_in_memory(module, kernel, case)
    assert list(struct.unpack("<768i", whole[4 * 768 :])) == expected


@pytest.mark.parametrize(("size", "right"), [(1024, True), (128, False), (512, False), (16, None)])
def test_tiles_rest_on_the_address_of_dynamic_shared_memory(size, right):
    module, kernel, case, expected = _tiles()
    text = module.text.replace(".extern .shared .align 128 ", ".extern .shared .align 16 ")
    assert text != module.text
    body = [instruction(f".shared .b8 moved[{size}];"), instruction("st.shared.u8 [moved], 1;")]
    moved = replace(kernel, body=(*body, *kernel.body))
    memory = case.memory()
    arguments = (Kernel(replace(module, text=text), moved), memory, case.arguments)
    launched = (*arguments, case.grid, case.block, random.Random(4))
    if right is None:
        with pytest.raises(AddressError, match="multiple of 128"):
            launch(*launched, dynamic_shared=case.dynamic_shared)
        return
    launch(*launched, dynamic_shared=case.dynamic_shared)
    found = list(struct.unpack("<768i", memory[DATA_AT + 4 * 768 :]))
    assert (found == expected) is right


class TestRefusalsOfMemory:
    """What is refused would be wrong, as the layout of shared memory shows."""

    def _wrong(self, body):
        module = parse(f"{HEAD}{body} ret; }}")
        (kernel,) = module.kernels
        case = Case((3, 1, 1), (1, 1, 1), bytes(8), (DATA_AT,), 64)
        rng = random.Random(5)
        whole = running.as_it_is(module, kernel, case, rng)
        found = verdict(module, kernel)
        assert running.in_slices(module, kernel, case, rng) == whole
        return found.workers, running.preempted(module, kernel, case, rng, unified=False) != whole

    def test_size(self):
        why, wrong = self._wrong("mov.u32 %r2, %dynamic_smem_size; st.global.u32 [%rd1], %r2;")
        assert (why, wrong) == ("reads how much shared memory it has", True)

    def test_scopes(self):
        why, wrong = self._wrong(
            "{ .shared .b8 a[8]; st.shared.u8 [a], 1; } .shared .b8 b[8]; st.shared.u8 [b], 1;"
            "mov.u32 %r2, b; st.global.u32 [%rd1], %r2;"
        )
        assert (why, wrong) == ("a variable in shared memory is in a scope of its own", True)
