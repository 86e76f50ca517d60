"""Triton's kernels, with tensor cores: whole as NumPy computes, and each form as the whole one."""

import random
from dataclasses import replace

import pytest

from dovetail.isolation.assemble import find_ptxas
from dovetail.isolation.kernels import prepare
from dovetail.isolation.ptx import instruction
from dovetail.isolation.refusals import verdict
from dovetail.isolation.transform import workers
from tests.isolation import running
from tests.isolation.interpreter import InterpreterError
from tests.isolation.triton_cases import NAMES, loaded


@pytest.mark.parametrize("name", NAMES)
def test_every_form(name):
    one = loaded(name)
    rng = random.Random(name)
    whole = running.as_it_is(one.module, one.kernel, one.case, rng)
    assert one.close(whole)
    found = verdict(one.module, one.kernel)
    assert (found.slices, found.workers) == ("", "")
    arguments = (one.module, one.kernel, one.case, rng)
    assert running.in_slices(*arguments) == whole
    assert running.preempted(*arguments, unified=found.unified) == whole


@pytest.mark.skipif(find_ptxas() is None, reason="needs ptxas (extra isolation)")
@pytest.mark.parametrize("name", NAMES)
def test_every_form_is_assembled(name):
    one = loaded(name)
    _, kernels = prepare(one.module.text, one.module.target)
    assert set(kernels[one.kernel.name].forms) == {"slices", "workers"}


@pytest.mark.parametrize(
    "name",
    ["product-90", "attention-90", "product-80", "product-e4m3-90", "product-tf32-90"],
)
def test_storage_that_moves_dynamic_shared_memory(name):
    """As on an H200: 8 bytes before it make wgmma wrong, and nothing else."""

    def as_a_variable(body):
        for statement in body:
            if statement.text == "mov.u32 %dovetail_place, dovetail_dynamic;":
                yield instruction(".shared .align 8 .b8 dovetail_taken[8];")
                yield instruction("mov.u32 %dovetail_place, dovetail_taken;")
            elif not statement.text.startswith("add.u32 %dovetail_place"):
                yield statement

    one = loaded(name)
    rng = random.Random(1)
    made = workers(one.kernel, unified=False)
    moved = replace(made, body=tuple(as_a_variable(made.body)))
    arguments = (one.module, one.kernel, one.case, rng)
    left = running.preempted(*arguments, unified=False, made=moved)
    assert one.close(left) is (name == "product-80")


@pytest.mark.parametrize(
    ("name", "declared"),
    [("product-90", ".shared .align 4 .b8 s[4];"), ("attention-90", ".shared .b8 s[1024];")],
)
def test_any_static_variable_before_it_counts(name, declared):
    """Static memory of a multiple of 1,024 bytes is harmless, as measured there, too."""
    one = loaded(name)
    rng = random.Random(2)
    statements = [instruction(declared), instruction("st.shared.u8 [s], 1;"), *one.kernel.body]
    kernel = replace(one.kernel, body=tuple(statements))
    try:
        left = running.as_it_is(one.module, kernel, one.case, rng)
    except InterpreterError:
        left = b""
    assert (bool(left) and one.close(left)) is ("1024" in declared)
