"""Refused kernels and their reasons, and kernels that need unified synchronisation."""

import pytest

from dovetail.isolation.ptx import parse
from dovetail.isolation.refusals import verdict

HEAD = ".version 8.6\n.target sm_90\n.address_size 64\n"
HELPERS = """
.func plain(.param .b32 a) { ret; }
.func waits(.param .b32 a) { bar.sync 0; ret; }
.func reads(.param .b32 a) { .reg .b32 %r<2>; mov.u32 %r1, %ctaid.x; ret; }
.func sized(.param .b32 a) { .reg .b32 %r<2>; mov.u32 %r1, %total_smem_size; ret; }
.func deep(.param .b32 a) { call plain, (a); ret; }
"""
DECLARED = ".reg .b32 %r<9>; .reg .pred %p<9>; .reg .b64 %rd<9>;"


def _verdict(body, directives=""):
    kernel = f".visible .entry k(.param .u32 n) {directives}\n{{ {DECLARED} {body} ret; }}"
    module = parse(HEAD + HELPERS + kernel)
    return verdict(module, module.functions["k"])


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("mov.u32 %r1, %cluster_ctaid.x;", "clusters"),
        ("barrier.cluster.arrive;", "clusters"),
        ("mapa.shared::cluster.u32 %r1, %r2, 0;", "clusters"),
        ("fence.acq_rel.cluster;", "clusters"),
        ("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r1], 32;", "clusters"),
        ("mov.u64 %rd1, %gridid;", "number of its grid"),
        ("mov.v4.u32 {%r1, %r2, %r3, %r4}, %ctaid;", "as a vector"),
        ("call waits, (%r1);", "calls waits"),
        ("call reads, (%r1);", "calls reads"),
        ("call deep, (%r1);", "calls deep"),
        ("call sized, (%r1);", "calls sized"),
        ("call (%r1), %rd1, (%r2), proto;", "unknown function"),
        ("call (%r1), cudaLaunchDeviceV2, (%r2);", "launches kernels itself"),
        ("mov.u32 %r1, dovetail_x;", "already"),
    ],
)
def test_neither_form(body, why):
    found = _verdict(body)
    assert why in found.slices
    assert found.workers == found.slices


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("mbarrier.init.shared.b64 [%r1], 1;", "mbarrier"),
        (
            "cp.async.bulk.commit_group;",
            "mbarrier",
        ),
        ("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;", "tensor memory"),
        ("setmaxnreg.inc.sync.aligned.u32 232;", "registers"),
        ("griddepcontrol.launch_dependents;", "dependent grid"),
        ("mov.u32 %r1, %smid;", "which SM"),
        ("mov.u32 %r1, %dynamic_smem_size;", "how much shared memory"),
        ("{ .shared .align 4 .b8 s[4]; }", "scope of its own"),
        ("bar.sync 1;", "numbered barriers"),
        ("bar.sync 0, 64;", "some of its threads"),
        ("bar.sync %r1;", "numbered barriers"),
        ("barrier.arrive 0, 64;", "some of its threads"),
        ("bar.red.popc.u32 %r1, 0, %p1;", "some of its threads"),
    ],
)
def test_slices_only(body, why):
    found = _verdict(body)
    assert not found.slices
    assert why in found.workers


def test_clusters_of_the_kernel():
    assert "clusters" in _verdict("", ".reqnctapercluster 2, 1, 1").slices


@pytest.mark.parametrize(
    "body",
    [
        "call plain, (%r1);",
        "call (%r1), vprintf, (%rd1, %rd2);",
        "bar.sync 0;",
        "barrier.sync 0;",
        "bar.warp.sync %r1;",
        "shfl.sync.idx.b32 %r1, %r2, 0, 31, -1;",
    ],
)
def test_both_forms(body):
    found = _verdict(body)
    assert (found.slices, found.workers) == ("", "")


DIVERGING = "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 7;"
BY_WARP = "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 32;"
BY_BLOCK = "mov.u32 %r1, %ctaid.x; setp.lt.u32 %p1, %r1, 7;"
LOADED = "ld.global.u32 %r1, [%rd1]; setp.lt.u32 %p1, %r1, 7;"
COPIED = (
    "mov.u32 %r2, 0; mov.u32 %r1, %tid.x; setp.lt.u32 %p2, %r1, 7; @%p2 bra $C; mov.u32 %r2, 1; $C:"
    "setp.eq.u32 %p1, %r2, 1;"
)


@pytest.mark.parametrize(
    ("condition", "unified"),
    [(DIVERGING, True), (BY_WARP, True), (BY_BLOCK, False), (LOADED, True), (COPIED, True)],
)
def test_returns_before_a_barrier(condition, unified):
    assert _verdict(f"{condition} @%p1 ret; bar.sync 0;").unified is unified
    assert _verdict(f"{condition} @%p1 bra $E; bar.sync 0; $E:").unified is unified


def test_threads_that_meet_before_a_barrier():
    assert not _verdict(f"{DIVERGING} @%p1 bra $M; mov.u32 %r5, 1; $M: bar.sync 0;").unified


@pytest.mark.parametrize(
    ("condition", "refused"),
    [(DIVERGING, True), (BY_WARP, False), (BY_BLOCK, False), (LOADED, True), (COPIED, True)],
)
def test_warps_of_which_threads_may_have_returned(condition, refused):
    found = _verdict(f"{condition} @%p1 ret; shfl.sync.idx.b32 %r3, %r2, 0, 31, -1;")
    assert bool(found.workers) is refused
    assert found.whole_warps is not refused


def test_registers_of_inline_assembly_have_levels():
    body = (
        "{ .reg .pred p; mov.u32 %r1, %tid.x; setp.lt.u32 p, %r1, 7; @p bra $E; } bar.sync 0; $E:"
    )
    assert _verdict(body).unified


def test_a_barrier_in_a_scope():
    assert "scope" in _verdict(f"{DIVERGING} @%p1 bra $E; {{ bar.sync 0; }} $E:").workers
