"""Modules prepared for scheduling pass the assembler, and their launches take the arguments."""

import functools
import re
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.isolation.assemble import AssemblerError, KernelResources, assemble, find_ptxas
from dovetail.isolation.kernels import LaunchShape, PreparedKernel, prepare
from dovetail.isolation.ptx import PtxError, parse
from dovetail.isolation.transform import STORAGE
from tests.isolation.cuda_kernels import KERNELS
from tests.isolation.interpreter import Kernel
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


_DECLARED = st.tuples(st.sampled_from((1, 2, 4, 8, 16, 64, 256, 1024)), st.integers(1, 100))


@needs_ptxas
class TestSharedMemory:
    """Storage of ours moves no variable of a kernel, for no alignment that it declares."""

    @settings(max_examples=8, deadline=None)
    @given(
        st.lists(_DECLARED, max_size=4),
        st.lists(_DECLARED, max_size=2),
        st.lists(st.sampled_from((1, 16, 128, 1024)), max_size=2),
        st.sampled_from(("sm_80", "sm_90")),
    )
    def test_where_variables_are(self, of_kernel, of_module, dynamic, target):
        text = _declaring(of_kernel, of_module, dynamic)
        module = parse(text)
        before = assemble(text, target)["k"].shared_bytes
        assert Kernel(module, module.functions["k"]).shared_size == before
        made, kernels = prepare(text, target)
        assert set(kernels["k"].forms) == {"slices", "workers"}
        module = parse(made)
        of_original, of_form = (
            Kernel(module, module.functions[name]) for name in ("k", "k__dovetail_workers")
        )
        assert (
            of_form.symbols.items()
            >= {
                name: at for name, at in of_original.symbols.items() if name != "dovetail_dynamic"
            }.items()
        )
        assert of_form.shared_size == kernels["k"].forms["workers"].shared_bytes

    def test_a_form_that_moves_it_is_refused(self, monkeypatch):
        text = _declaring([(4, 8)], [], [16])
        moving = STORAGE.replace(".align 1 ", ".align 1024 ")
        monkeypatch.setattr("dovetail.isolation.kernels.STORAGE", moving)
        made, kernels = prepare(text, "sm_90")
        assert not kernels["k"].forms
        assert "elsewhere" in kernels["k"].refused["workers"]
        assert made.strip() == text

    def test_workers_need_aligned_storage(self, monkeypatch):
        # The assembler would leave static memory as it is if nothing dynamic were declared.
        monkeypatch.setattr(
            "dovetail.isolation.kernels.STORAGE", ".shared .align 1 .b8 dovetail_dynamic[1];"
        )
        _, kernels = prepare(_declaring([(4, 8)], [], []), "sm_90")
        assert "elsewhere" in kernels["k"].refused["workers"]
        assert "slices" in kernels["k"].forms

    def test_a_launch_needs_room_for_it(self):
        _, kernels = prepare(_declaring([(4, 16)], [], [16]), "sm_90")
        most = 48 * 1024
        for own, fits in ((most - 32, True), (most - 31, False), (most - 16, False)):
            shape = LaunchShape((4, 1, 1), (32, 1, 1), own, most)
            assert bool(kernels["k"].why_not("workers", shape)) is not fits
            assert not kernels["k"].why_not("slices", shape)


def _declaring(of_kernel, of_module, dynamic):
    def declared(letter, variables):
        return [
            f".shared .align {align} .b8 {letter}{n}[{size}];"
            for n, (align, size) in enumerate(variables)
        ]

    inside, outside = declared("s", of_kernel), declared("t", of_module)
    names = [f"s{n}" for n in range(len(inside))] + [f"t{n}" for n in range(len(outside))]
    names += [f"d{n}" for n in range(len(dynamic))]
    return "\n".join(
        [
            ".version 8.0\n.target sm_80\n.address_size 64",
            *(f".extern .shared .align {a} .b8 d{n}[];" for n, a in enumerate(dynamic)),
            *outside,
            ".visible .entry k(.param .u64 y) {",
            ".reg .b32 %r<2>; .reg .b64 %rd<2>;",
            *inside,
            "ld.param.u64 %rd1, [y];",
            *(f"mov.u32 %r1, {name}; st.global.u32 [%rd1], %r1;" for name in names),
            "ret; }",
        ]
    )


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


class TestResidentBlocks:
    """How many blocks an SM holds, as NVIDIA's occupancy calculator has it."""

    @pytest.mark.parametrize(
        ("architecture", "registers", "threads", "shared_bytes", "blocks"),
        [
            (90, 32, 1024, 0, 2),
            (90, 32, 64, 0, 32),
            (90, 32, 32, 0, 32),
            (90, 33, 128, 0, 12),
            (90, 128, 256, 0, 2),
            (90, 255, 256, 0, 1),
            (90, 32, 128, 100 * 1024, 2),
            (90, 32, 128, 227 * 1024, 1),
            (80, 32, 1000, 0, 2),
            (86, 32, 1024, 0, 1),
            (89, 16, 32, 0, 24),
            (75, 16, 256, 0, 4),
        ],
    )
    def test_whole(self, architecture, registers, threads, shared_bytes, blocks):
        kernel = _resources(architecture, KernelResources(registers))
        shape = LaunchShape((9, 1, 1), (threads, 1, 1), shared_bytes, 227 * 1024)
        assert kernel.resident("whole", shape) == kernel.resident("slices", shape) == blocks

    def test_static_memory_and_storage_count(self):
        kernel = _resources(90, KernelResources(32, shared_bytes=1024))
        full = LaunchShape((9, 1, 1), (128, 1, 1), 55 * 1024, 227 * 1024)
        assert kernel.resident("whole", full) == 4
        # Workers need a little more, so one block fewer fits.
        assert kernel.resident("workers", full) == 3


def _resources(architecture, usage):
    forms = {"slices": usage, "workers": usage}
    return PreparedKernel("k", None, usage, forms, {}, architecture)
