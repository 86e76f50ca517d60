"""What the interpreter computes, and where it places memory; what it does not know fails."""

import random
import re
import struct

import numpy as np
import pytest

from dovetail.isolation.assemble import assemble, find_ptxas
from dovetail.isolation.ptx import parse
from tests.isolation import running
from tests.isolation.interpreter import SHARED_AT, InterpreterError, Kernel
from tests.isolation.running import DATA_AT, Case
from tests.isolation.tensor_cores import BYTES, AddressError, numbers

TYPES = ["f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8"]
ACROSS = 64


def _ran(body, data, threads, shared=0, head=""):
    text = (
        ".version 8.4\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 dynamic[];"
        f"{head} .visible .entry k(.param .u64 x) {{ .reg .b32 %r<40>; .reg .b32 %d<40>;"
        ".reg .b64 %rd<9>; .reg .b16 %h<9>; .reg .f32 %f<9>; .reg .pred %p<3>; .reg .b64 %q<3>;"
        f"ld.param.u64 %rd1, [x]; mov.u32 %r1, %tid.x; {body} ret; }}"
    )
    module = parse(text)
    case = Case((1, 1, 1), (threads, 1, 1), data, (DATA_AT,), shared)
    return running.as_it_is(module, module.functions["k"], case, random.Random(1))


def _matrix(rng, rows, columns, kind):
    """Return a matrix of small numbers as bytes of elements, and as numbers."""
    size = BYTES[kind]
    if kind in ("s8", "u8"):
        held = rng.integers(0, 256, (rows, columns, 1), dtype=np.uint8)
    else:
        values = rng.integers(-8, 9, (rows, columns)) / 4
        f32 = np.ascontiguousarray(values.astype("<f4")[..., None]).view(np.uint8)
        f16 = np.ascontiguousarray(values.astype("<f2")[..., None]).view(np.uint8)
        codes = {float(numbers(np.uint8([n]), "e4m3")[0]): n for n in range(256) if n & 127 != 127}
        held = {
            "f16": f16,
            "e5m2": f16[..., 1:],
            "bf16": f32[..., 2:],
            "tf32": f32,
            "e4m3": np.array([[codes[v] for v in row] for row in values], np.uint8)[..., None],
        }[kind]
    assert held.shape == (rows, columns, size)
    return held, numbers(np.ascontiguousarray(held), kind)[..., 0]


@pytest.mark.parametrize(
    ("kind", "code", "number"),
    [
        ("e4m3", 0x38, 1.0),
        ("e4m3", 0xB9, -1.125),
        ("e4m3", 0x7E, 448.0),
        ("e4m3", 0x01, 2.0**-9),
        ("e4m3", 0x08, 2.0**-6),
        ("e5m2", 0x3C, 1.0),
        ("e5m2", 0x7B, 57344.0),
        ("e5m2", 0x81, -(2.0**-16)),
        ("s8", 0xFF, -1.0),
        ("u8", 0xFF, 255.0),
    ],
)
def test_numbers_of_a_byte(kind, code, number):
    assert numbers(np.array([code], np.uint8), kind).tolist() == [number]


def test_the_lowest_bits_of_tf32_do_not_count():
    one, above = np.uint32([0x3F800000, 0x3F801FFF]).view(np.uint8).reshape(2, 4)
    assert numbers(above, "tf32").tolist() == numbers(one, "tf32").tolist() == [1.0]


def test_nothing_but_nan_has_no_number():
    of = numbers(np.arange(256, dtype=np.uint8), "e4m3")
    assert np.flatnonzero(np.isnan(of)).tolist() == [127, 255]
    assert np.abs(of[~np.isnan(of)]).max() == 448.0
    assert np.isinf(numbers(np.array([0x7C], np.uint8), "e5m2")).all()


def _by_rows(row, k_byte, width):
    """Where a byte of an operand is whose rows lie along K, before a swizzle."""
    if width == 16:  # pieces of 8 rows of 16 bytes, 128 apart along K and 256 across
        return row // 8 * 256 + k_byte // 16 * 128 + row % 8 * 16 + k_byte % 16
    return row // 8 * 8 * width + row % 8 * width + k_byte


def _by_columns(row, k, byte, width):
    """Where a byte of an operand of 16 bits is whose columns lie along K, before a swizzle."""
    if width == 16:  # pieces of 8 columns of 16 bytes, 1024 apart along K and 128 across
        return row // 8 * 128 + k // 8 * 1024 + k % 8 * 16 + row % 8 * 2 + byte
    wide = width // 2
    return row // wide * 16 * width + k // 8 * 8 * width + k % 8 * width + row % wide * 2 + byte


def _swizzled(at, width):
    """Exchange pieces of 16 bytes by the number of the row of 128 bytes that they are in."""
    return at ^ at // 128 % (width // 16) * 16


def _placed(image, start, held, width, *, turned):
    rows, columns, size = held.shape
    for row, k, byte in np.ndindex(rows, columns, size):
        at = _by_columns(row, k, byte, width) if turned else _by_rows(row, k * size + byte, width)
        image[start + _swizzled(at, width)] = held[row, k, byte]


def _descriptor(start, width, *, turned):
    lead, step = {
        (True, True): (1024, 128),
        (True, False): (16 * width, 8 * width),
        (False, True): (128, 256),
        (False, False): (16, 8 * width),
    }[turned, width == 16]
    mode = {16: 0, 128: 1, 64: 2, 32: 3}[width]
    return start >> 4 | lead >> 4 << 16 | step >> 4 << 32 | mode << 62


def _products(kind, width, *, turned):
    """Return what ``wgmma`` leaves of two random matrices, and what NumPy makes of them."""
    rng, inner = np.random.default_rng(7), 32 // BYTES[kind]
    (raw_a, a), (raw_b, b) = (_matrix(rng, ACROSS, inner, kind) for _ in "ab")
    image = np.zeros(16384, np.uint8)
    _placed(image, 0, raw_a, width, turned=turned)
    _placed(image, 8192, raw_b, width, turned=turned)
    registers = "{" + ", ".join(f"%d{n}" for n in range(32)) + "}"
    whole = kind in ("s8", "u8")
    of = "s32" if whole else "f32"
    options = "" if whole else f", 1, 1{', 1, 1' if turned else ', 0, 0'}"
    options = options if BYTES[kind] == 2 or whole else ", 1, 1"
    at, zero = (_descriptor(start, width, turned=turned) for start in (0, 8192))
    kinds = f"{of}.{kind}.{kind}"
    stores = " ".join(f"st.global.b32 [%rd3+{16384 + 4 * n}], %d{n};" for n in range(32))
    body = (
        "mul.wide.u32 %rd2, %r1, 128; mov.u32 %r2, dynamic; cvt.u64.u32 %rd4, %r2;"
        "add.u64 %rd3, %rd1, %rd2; add.u64 %rd4, %rd4, %rd2; cvt.u32.u64 %r2, %rd4;"
        + " ".join(
            f"ld.global.u32 %r3, [%rd3+{4 * n}]; st.shared.u32 [%r2+{4 * n}], %r3;"
            for n in range(32)
        )
        + "bar.sync 0; setp.ne.u32 %p1, 0, 0; wgmma.fence.sync.aligned;"
        f"wgmma.mma_async.sync.aligned.m64n64k{inner}.{kinds} {registers}, {at}, {zero}, %p1"
        f"{options}; wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; {stores}"
    )
    left = _ran(body, image.tobytes() + bytes(16384), 128, 16384)
    raw = np.frombuffer(left[16384:], np.int32 if whole else np.float32).reshape(128, 32)
    found = np.zeros((ACROSS, ACROSS))
    for thread, n in np.ndindex(128, 32):
        row = thread // 32 * 16 + thread % 32 // 4 + 8 * (n // 2 % 2)
        found[row, n // 4 * 8 + thread % 4 * 2 + n % 2] = raw[thread, n]
    return found, a @ b.T


@pytest.mark.parametrize("width", [16, 32, 64, 128])
@pytest.mark.parametrize("kind", TYPES)
def test_wgmma_by_rows(kind, width):
    found, expected = _products(kind, width, turned=False)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("width", [16, 32, 64, 128])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_wgmma_by_columns(kind, width):
    found, expected = _products(kind, width, turned=True)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("kind", "inner"),
    [
        *[(kind, inner) for kind in ("f16", "bf16") for inner in (8, 16)],
        *[("tf32", inner) for inner in (4, 8)],
        *[(kind, inner) for kind in ("s8", "u8", "e4m3", "e5m2") for inner in (16, 32)],
    ],
)
def test_mma(kind, inner):
    """Each thread has its elements of the first operand in rows, of the second in columns."""
    rng, whole = np.random.default_rng(8), kind in ("s8", "u8")
    raw_a, a = _matrix(rng, 16, inner, kind)
    raw_b, b = _matrix(rng, 8, inner, kind)
    each = 4 // BYTES[kind]
    half = 4 * each  # of the columns; a second register is beyond it
    data = b""
    for lane in range(32):
        column = each * (lane % 4)
        words = [
            raw_a[lane // 4 + below, column + right : column + right + each]
            for right in range(0, inner, half)
            for below in (0, 8)
        ]
        words += [
            raw_b[lane // 4, column + down : column + down + each] for down in range(0, inner, half)
        ]
        data += b"".join(word.tobytes() for word in words).ljust(32, b"\0")
    count = inner // half
    loads = " ".join(f"ld.global.b32 %r{10 + n}, [%rd3+{4 * n}];" for n in range(3 * count))
    given = [f"%r{10 + n}" for n in range(3 * count)]
    left, right = ", ".join(given[: 2 * count]), ", ".join(given[2 * count :])
    of = "s32" if whole else "f32"
    one = 1 if whole else "0f3F800000"
    body = (
        f"mul.wide.u32 %rd2, %r1, 32; add.u64 %rd3, %rd1, %rd2; {loads}"
        f"mma.sync.aligned.m16n8k{inner}.row.col.{of}.{kind}.{kind}.{of} {{%d0, %d1, %d2, %d3}},"
        f"{{{left}}}, {{{right}}}, {{{one}, {one}, {one}, {one}}};"
        + " ".join(f"st.global.b32 [%rd3+{4 * n}], %d{n};" for n in range(4))
    )
    raw = np.frombuffer(_ran(body, data, 32), np.int32 if whole else np.float32).reshape(32, 8)
    found = np.zeros((16, 8))
    for lane, n in np.ndindex(32, 4):
        found[lane // 4 + 8 * (n // 2), lane % 4 * 2 + n % 2] = raw[lane, n]
    assert np.array_equal(found, a @ b.T + 1)


def _declared(name, align):
    return f".extern .shared .align {align} .b8 {name}[];"


@pytest.mark.parametrize(
    ("declared", "places", "size"),
    [
        ([("a", 64), ("b", 256), ("c", 1)], {"a": 64, "b": 256, "c": 256}, 256),
        ([("c", 1), ("b", 256), ("a", 64)], {"c": 32, "b": 256, "a": 256}, 256),
        ([("a", 4), ("b", 8)], {"a": 32, "b": 32}, 32),
    ],
)
@pytest.mark.parametrize("used", ["abc", "c", ""])
def test_each_name_of_dynamic_shared_memory_has_a_place(declared, places, size, used):
    """As ptxas 12.9 places them for ``sm_75`` and ``sm_80`` (by the stores of its machine code)."""
    names = [name for name, _ in declared if name in used]
    text = (
        ".version 8.0\n.target sm_80\n.address_size 64\n.shared .align 4 .b8 s[20];\n"
        f"{''.join(_declared(*one) for one in declared)} .visible .entry k() {{"
        f"{''.join(f'st.volatile.shared.u32 [{name}], 1;' for name in ['s', *names])} ret; }}"
    )
    module = parse(text)
    kernel = Kernel(module, module.functions["k"])
    assert {name: kernel.symbols[name] - SHARED_AT for name in places} == places
    assert kernel.shared_size == size
    if find_ptxas() is not None:
        assert assemble(text, "sm_80")["k"].shared_bytes == size


def test_places_of_static_shared_memory():
    """As ptxas 12.9 places them for ``sm_75`` and ``sm_80`` (by the stores of its machine code)."""
    used = ("k1", "k2", "m1", "m2")
    text = (
        ".version 8.0\n.target sm_80\n.address_size 64\n"
        ".shared .align 4 .b8 m1[20]; .shared .align 64 .b8 m2[8]; .shared .align 4 .b8 m3[4];"
        ".visible .entry k() { .shared .align 4 .b8 k0[12]; .shared .align 2 .b8 k1[6];"
        f".shared .align 16 .b8 k2[4]; {''.join(f'st.shared.u8 [{n}], 1;' for n in used)} ret; }}"
    )
    module = parse(text)
    kernel = Kernel(module, module.functions["k"])
    places = {name: kernel.symbols[name] - SHARED_AT for name in used}
    assert places == {"k1": 0, "k2": 16, "m1": 20, "m2": 64}
    assert kernel.shared_size == 84  # an unused variable of the kernel is behind them


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("st.global.u32 [%rd1+4096], 1;", "writes 4 bytes"),
        ("ld.global.u32 %r2, [%rd1+4096];", "reads 4 bytes"),
        ("st.shared.u32 [dynamic+64], 1;", "writes 4 bytes of shared"),
        ("ld.shared.u32 %r2, [dynamic+64];", "reads 4 bytes of shared"),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [dynamic];", "whole warp lacks threads"),
        (
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%d0, %d1, %d2, %d3}, 0, 0, 1, 1, "
            "1, 0, 0;",
            "warp group",
        ),
    ],
)
def test_memory_and_threads_that_there_are_not(body, message):
    with pytest.raises(InterpreterError, match=message):
        _ran(body, bytes(64), 16, 64)


def test_operands_of_wgmma_end_within_shared_memory():
    body = (
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%d0, %d1, %d2, %d3}, "
        f"{_descriptor(0, 128, turned=False)}, 0, 1, 1, 1, 0, 0;"
        "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    )
    _ran(body, bytes(64), 128, 8192)
    with pytest.raises(AddressError, match="ends beyond"):
        _ran(body, bytes(64), 128, 8064)


def test_kernels_get_all_their_parameters():
    module = parse(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u32 n) { ret; }"
    )
    case = Case((1, 1, 1), (1, 1, 1), b"", ())
    with pytest.raises(InterpreterError, match="takes 1 parameters"):
        running.as_it_is(module, module.functions["k"], case, random.Random(1))


@pytest.mark.parametrize(
    "statement",
    [
        "add.cc.u32 %r2, %r1, %r1;",
        "addc.u32 %r2, %r1, %r1;",
        "add.sat.s32 %r2, %r1, %r1;",
        "add.rz.f32 %f1, %f2, %f3;",
        "fma.rn.relu.f16 %h1, %h2, %h3, %h4;",
        "min.NaN.f32 %f1, %f2, %f3;",
        "max.xorsign.abs.f32 %f1, %f2, %f3;",
        "cvt.rz.f16.f32 %h1, %f1;",
        "cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2;",
        "setp.eq.f16x2 %p1|%p2, %r1, %r2;",
        "bfind.s32 %r2, %r1;",
        "prmt.b32.f4e %r2, %r1, %r1, %r1;",
        "lop3.or.b32 %r2|%p1, %r1, %r1, %r1, 1, %p1;",
        "dp4a.u32.u32 %r2, %r1, %r1, %r1;",
        "mul24.lo.u32 %r2, %r1, %r1;",
        "set.eq.u32.u32 %r2, %r1, %r1;",
        "ld.const.u32 %r2, [%rd1];",
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1], %r2, [%r1];",
        "atom.global.v2.f32.add {%f1, %f2}, [%rd1], {%f1, %f2};",
        "atom.global.add.noftz.f16x2 %r2, [%rd1], %r1;",
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r1], 1, "
        "[%r1];",
        "bar.sync 1;",
        "bar.sync 0, 64;",
        "barrier.sync 0, 64;",
        "bar.arrive 0, 64;",
        "barrier.red.and.pred %p1, 0, 64, %p2;",
        "match.any.sync.b32 %r2, %r1, -1;",
        "elect.sync %r2|%p1, -1;",
        "redux.sync.max.abs.f32 %f1, %f2, -1;",
        "shfl.idx.b32 %r2, %r1, 0, 31;",
        "call f, ();",
        "mov.u32 %r2, %smid;",
        "mov.u32 %r2, %globaltimer_lo;",
        "mov.u32 %r2, %unknown;",
        "mov.u32 %r2, unknown;",
        "cp.async.bulk.commit_group;",
        "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 16;",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%r1], [%rd1], 16, [%r1], %h1;",
        "cp.async.mbarrier.arrive.noinc.shared.b64 [%r1];",
        "cp.async.ca.shared.global [%r1], [%rd1], 4, %p1;",
        "cp.async.ca.global.shared [%rd1], [%r1], 4;",
        "mbarrier.arrive_drop.shared.b64 %q1, [%r1];",
        "mbarrier.complete_tx.shared.b64 [%r1], 16;",
        "mbarrier.pending_count.b64 %r2, %q1;",
        "ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b4x16_p64 {%r2}, [%r1];",
        "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r2}, [%r1];",
        "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r1], {%r2};",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%d0, %d1, %d2, %d3}, {%r1, %r2}, "
        "{%r1, %r2}, {%d0, %d1, %d2, %d3};",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%d0, %d1}, {%r1, %r2, %r3, %r4}, "
        "{%r1, %r2}, {%d0, %d1};",
        "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%d0, %d1, %d2, %d3}, {%r1, %r2}, "
        "{%r1, %r2}, {%d0, %d1, %d2, %d3}, %r1, 0;",
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%q0, %q1}, {%q0}, {%q0}, {%q0, %q1};",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.f16.f32 {%d0, %d1, %d2, %d3}, "
        "{%r1, %r2, %r3, %r4}, {%r1, %r2}, {%d0, %d1, %d2, %d3};",
        "mma.sync.aligned.m16n8k16.row.col.bf16.bf16.bf16.bf16 {%d0, %d1}, {%r1, %r2, %r3, %r4}, "
        "{%r1, %r2}, {%d0, %d1};",
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%d0, %d1, %d2, %d3}, %rd1, %rd1, "
        "1, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%d0, %d1, %d2, %d3}, {%r1, %r2}, "
        "%rd1, 1, 1, 1, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%d0, %d1, %d2, %d3}, %rd1, %rd1, 1;",
        "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%d0, %d1, %d2, %d3}, %rd1, %rd1, "
        "%r1, 0, 1, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.e4m3.e4m3 {%d0, %d1, %d2, %d3}, %rd1, %rd1, "
        "1, 1, 1;",
        "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%d0, %d1, %d2, %d3}, %rd1, %rd1, "
        "1, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc {%d0, %d1, %d2, %d3}, %rd1, "
        "%rd1, 1;",
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;",
        "multimem.red.global.add.f32 [%rd1], %f1;",
        "tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [t, {%f1, %f2}];",
        "l: l:",
    ],
)
def test_what_is_not_known_fails(statement):
    with pytest.raises(InterpreterError, match=r"unknown|two labels"):
        _ran(statement, bytes(64), 1, 1024)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("cvt.sat.f32.f32 %f1, 0f3F000000; st.global.f32 [%rd1], %f1;", struct.pack("<f", 0.5)),
        ("cvt.rni.f32.f32 %f1, 0f40200000; st.global.f32 [%rd1], %f1;", struct.pack("<f", 2.0)),
        ("mov.u32 %r2, 300; cvt.sat.u8.u32 %h1, %r2; st.global.u8 [%rd1], %h1;", b"\xff\0\0\0"),
        ("cvt.rna.tf32.f32 %r2, 0f3F801000; st.global.u32 [%rd1], %r2;", b"\0\x20\x80\x3f"),
        ("mov.u32 %r2, dynamic; st.shared::cta.u32 [%r2], 7; ld.shared.u32 %r3, [%r2];"
         "st.global.u32 [%rd1], %r3;", b"\7\0\0\0"),
        ("bar.red.popc.u32 %r2, 0, 1; st.global.u32 [%rd1], %r2;", b"\1\0\0\0"),
        ("setp.eq.u32 _|%p1, 0, 0; selp.u32 %r2, 1, 2, %p1; st.global.u32 [%rd1], %r2;",
         b"\2\0\0\0"),
    ],
)  # fmt: skip
def test_what_was_wrong_in_silence(body, left):
    assert _ran(body, bytes(4), 1, 64) == left


@pytest.mark.parametrize("waits", ["try_wait", "test_wait"])
def test_arrivals_are_counted(waits):
    body = (
        "mov.u32 %r2, dynamic; mbarrier.init.shared.b64 [%r2], 3;"
        "mbarrier.arrive.shared.b64 %q1, [%r2], 2;"
        f"mbarrier.{waits}.shared.b64 %p1, [%r2], %q1; selp.u32 %r3, 1, 2, %p1;"
        "mbarrier.arrive.shared.b64 _, [%r2];"
        f"mbarrier.{waits}.shared.b64 %p1, [%r2], %q1; selp.u32 %r4, 1, 2, %p1;"
        "st.global.v2.u32 [%rd1], {%r3, %r4};"
    )
    assert struct.unpack("<2I", _ran(body, bytes(8), 1, 64)) == (2, 1)
    with pytest.raises(InterpreterError, match="more arrivals"):
        _ran(re.sub(r", 2;", ", 4;", body, count=1), bytes(8), 1, 64)
