"""Kinds of kernels that were right on hardware; others are off, with the reason."""

import pytest

from dovetail.isolation import proven
from dovetail.isolation.proven import PROVEN, features, why_unproven
from dovetail.isolation.ptx import parse
from tests.isolation.cuda_kernels import KERNELS
from tests.isolation.nvrtc import compiled
from tests.isolation.triton_cases import loaded


def _why(name, form="slices", architecture=90):
    if name in KERNELS:
        module = parse(compiled(KERNELS[name].source))
        (kernel,) = module.kernels
    else:
        module, kernel = loaded(name).module, loaded(name).kernel
    return why_unproven(module, kernel, form, architecture)


@pytest.mark.parametrize(
    "name", ["softmax-90", "product-90", "attention-90", "tiled_product", "histogram"]
)
def test_slices_of_kinds_that_an_h200_computed(name):
    assert _why(name) == ""
    assert _why(name, "workers") == "workers are not proven on sm_90"
    assert _why(name, architecture=80) == "slices are not proven on sm_80"


@pytest.mark.parametrize(
    ("name", "feature"),
    [("product-80", "mma"), ("last_block_finishes", "atomics with results"), ("votes", "vote")],
)
def test_slices_of_kinds_that_it_did_not_compute(name, feature):
    assert feature in _why(name)


@pytest.mark.parametrize("feature", sorted(PROVEN[90, "slices"]))
def test_every_feature_counts(feature, monkeypatch):
    known = {(90, "slices"): PROVEN[90, "slices"] - {feature}}
    monkeypatch.setattr(proven, "PROVEN", known)
    assert any(feature in _why(name) for name in ("product-90", "softmax-90", "histogram"))


@pytest.mark.parametrize(
    ("statement", "feature"),
    [
        ("bar.sync 1;", "numbered barriers"),
        ("bar.sync 0, 64;", "numbered barriers"),
        ("mov.u32 %r1, %smid;", "%smid"),
        ("mov.u32 %r1, %clock_hi;", "%clock_hi"),
        ("mov.u32 %r1, %globaltimer_lo;", "%globaltimer_lo"),
        ("cp.async.bulk.commit_group;", "cp.async.bulk"),
        ("mbarrier.init.shared::cta.b64 [%r1], 1;", "mbarrier"),
        ("something.new %r1;", "something"),
        (".shared .b8 s[4];", "shared"),
        ("ld.volatile.global.u32 %r1, [%r2];", "loads of what others write"),
        ("ld.acquire.gpu.global.u32 %r1, [%r2];", "loads of what others write"),
        ("red.global.add.f32 [%r1], 0f00000000;", "atomics on floats"),
        ("atom.global.add.noftz.bf16 %r1, [%r2], %r2;", "atomics on floats"),
        ("atom.global.add.u32 %r2, [%r1], 1;", "atomics without results"),
        ("atom.global.max.s32 _, [%r1], 1;", "atomics without results"),
        ("red.global.xor.b32 [%r1], 1;", "atomics without results"),
        ("red.relaxed.gpu.global.add.L2::cache_hint.u64 [%r1], 1, %r2;", "atomics without results"),
        ("atom.global.exch.b32 %r2, [%r1], 1;", "atomics whose order counts"),
        ("atom.global.cas.b32 _, [%r1], 1, 2;", "atomics whose order counts"),
        ("red.global.inc.u32 [%r1], 9;", "atomics whose order counts"),
        ("red.global.dec.u32 [%r1], 9;", "atomics whose order counts"),
        ("red.global.new.u32 [%r1], 9;", "atomics whose order counts"),
        ("atom.global.cas.b32 %r1, [%r2], 1, 2;", "atomics with results"),
    ],
)
def test_features(statement, feature):
    head = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() {"
    module = parse(f"{head} .reg .b32 %r<3>; {statement} add.u32 %r1, %r1, 1; ret; }}")
    assert feature in features(module, module.functions["k"])
    plain = parse(f"{head} .reg .b32 %r<3>; ld.global.u32 %r1, [%r2]; ret; }}")
    assert not features(plain, plain.functions["k"])


@pytest.mark.parametrize(
    ("first", "second", "several"),
    [
        ("add.u32", "add.s32", False),
        ("or.b32", "or.b32", False),
        ("max.s32", "max.s32", False),
        ("max.s32", "max.u32", True),
        ("add.u32", "max.u32", True),
        ("and.b32", "or.b32", True),
        ("add.u32", "add.u64", True),
    ],
)
def test_atomics_of_several_kinds(first, second, several):
    """In one place, the order of a sum and a maximum decides what is left."""
    module = parse(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() {"
        f"red.global.{first} [%r1], 1; red.global.{second} [%r1], 1; ret; }}"
    )
    found = features(module, module.functions["k"])
    assert found == {"atomics without results", *(["atomics of several kinds"] * several)}


def test_features_of_functions():
    text = (
        ".version 8.0\n.target sm_90\n.address_size 64\n.func f() { trap; vote.sync.all 1; ret; }\n"
        ".visible .entry k() { call f, (); ret; }"
    )
    module = parse(text)
    assert features(module, module.functions["k"]) == {"call", "vote"}
