"""Modules prepared for scheduling pass the assembler, and their launches take the arguments."""

import functools
import re
import subprocess

import pytest

from dovetail.isolation.assemble import AssemblerError, KernelResources, assemble, find_ptxas
from dovetail.isolation.kernels import LaunchShape, prepare
from dovetail.isolation.ptx import PtxError
from tests.isolation.cuda_kernels import KERNELS
from tests.isolation.nvrtc import compiled

PTXAS = find_ptxas()
needs_ptxas = pytest.mark.skipif(PTXAS is None, reason="needs ptxas (extra isolation)")
SIMPLE = """.version 8.0
.target sm_80
.address_size 64
.visible .entry good(.param .u64 y) { ret; }
.visible .entry smid(.param .u64 y) { .reg .b32 %r<2>; mov.u32 %r1, %smid; ret; }
"""


def _targets():
    """Return the architectures that the assembler knows, 70 and up."""
    text = subprocess.run([PTXAS, "--help"], capture_output=True, text=True, check=True).stdout
    return sorted({name for name in re.findall(r"'(sm_\d+)'", text) if int(name[3:]) >= 70})


@needs_ptxas
@pytest.mark.parametrize("target", [70, 120])
@pytest.mark.parametrize("name", KERNELS)
def test_every_form_is_assembled(name, target):
    text = compiled(KERNELS[name].source, f"compute_{target}")
    _, kernels = prepare(text, f"sm_{target}")
    assert set(kernels["k"].forms) == {"slices", "workers"}


@needs_ptxas
@pytest.mark.long
def test_every_target():
    targets = _targets()
    assert {"sm_70", "sm_80", "sm_90", "sm_100", "sm_120"} <= set(targets)
    for target in targets:
        for name, written in KERNELS.items():
            text = compiled(written.source, "compute_70")
            _, kernels = prepare(text, target)
            assert set(kernels["k"].forms) == {"slices", "workers"}, (name, target)


@needs_ptxas
def test_a_refused_form_is_missing_and_has_a_reason():
    made, kernels = prepare(SIMPLE, "sm_80")
    assert set(kernels["good"].forms) == {"slices", "workers"}
    assert set(kernels["smid"].forms) == {"slices"}
    assert "SM" in kernels["smid"].refused["workers"]
    assert "good__dovetail_workers" in made
    assert "smid__dovetail_workers" not in made


@needs_ptxas
def test_what_the_assembler_refuses_is_left_out():
    # A 16-bit block index: PTX of old, which our 32-bit registers do not replace.
    odd = SIMPLE.replace("%r1, %smid", "%r1, %tid.x; .reg .b16 %h; mov.u16 %h, %ctaid.x")
    made, kernels = prepare(odd, "sm_80")
    assert set(kernels["good"].forms) == {"slices", "workers"}
    assert not kernels["smid"].forms
    assert kernels["smid"].refused["slices"].startswith("ptxas, sm_80:")
    assert "smid__dovetail" not in made


@needs_ptxas
def test_broken_modules():
    with pytest.raises(PtxError):
        prepare("nothing", "sm_80")
    with pytest.raises(AssemblerError, match="ptxas, sm_80"):
        prepare(SIMPLE.replace("ret; }", "nonsense; }", 1), "sm_80")
    with pytest.raises(AssemblerError):
        assemble(SIMPLE, "sm_1")


def test_no_assembler(tmp_path):
    with pytest.raises(AssemblerError, match="missing"):
        assemble(SIMPLE, "sm_80", tmp_path / "missing")


@needs_ptxas
def test_usage():
    text = compiled(KERNELS["tiled_product"].source)
    usage = assemble(text, "sm_80")["k"]
    assert isinstance(usage, KernelResources)
    assert usage.registers > 8
    assert (usage.shared_bytes, usage.spilled_bytes) == (128, 0)


@functools.cache
def _of_warps():
    _, kernels = prepare(compiled(KERNELS["warp_reduction"].source), "sm_80")
    return kernels["k"]


@needs_ptxas
class TestLaunches:
    @pytest.mark.parametrize(
        ("shape", "why"),
        [
            (LaunchShape((4, 1, 1), (64, 1, 1)), ""),
            (LaunchShape((4, 1, 1), (64, 2, 2)), ""),
            (LaunchShape((4, 1, 1), (16, 4, 1)), "rows of 32"),
            (LaunchShape((4, 1, 1), (64, 1, 1), together=True), "wait for each other"),
            (LaunchShape((65536, 65535, 2), (64, 1, 1)), "32 bits"),
            (LaunchShape((4, 1, 1), (64, 1, 1), dynamic_shared_bytes=48 * 1024), "shared memory"),
        ],
    )
    def test_of_workers(self, shape, why):
        found = _of_warps().why_not("workers", shape)
        assert why in found
        assert bool(found) == bool(why)

    def test_slices_need_no_whole_warps(self):
        assert _of_warps().why_not("slices", LaunchShape((4, 1, 1), (16, 4, 1))) == ""
