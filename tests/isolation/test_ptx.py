"""Modules are read into functions and statements, and written back."""

import pytest

from dovetail.isolation.ptx import PtxError, instruction, parse, split_operands
from tests.isolation.cuda_kernels import KERNELS
from tests.isolation.nvrtc import compiled

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"


def _module(body, head=".visible .entry k()"):
    return parse(f"{HEAD}{head}\n{{\n{body}\n}}\n")


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_written_is_read_back(name):
    module = parse(compiled(KERNELS[name].source))
    (kernel,) = module.kernels
    again = parse(HEAD + kernel.text()).functions["k"]
    assert again.body == kernel.body
    assert again.parameters == kernel.parameters


def test_parts_of_an_instruction():
    one = instruction("@!%p1  ld.global.v2.u32 \t{%r1, %r2}, [%rd1+8];")
    assert one.guard == "@!%p1"
    assert one.opcode == "ld.global.v2.u32"
    assert one.operands == ("{%r1, %r2}", "[%rd1+8]")
    assert one.family == "ld"
    assert one.has("v2")
    assert not one.has("ld")


def test_operands_are_split_outside_brackets_and_strings():
    assert split_operands('(a, b), f, [x, y], "p, q"') == ("(a, b)", "f", "[x, y]", '"p, q"')
    assert split_operands("") == ()


def test_comments_strings_labels_scopes_and_initialisers():
    text = HEAD + (
        '.file 1 "a;{.cu"\n'
        ".global .align 4 .b8 table[4] = {1, 2, 3, 4};\n"
        ".extern .func (.param .b32 r) f(.param .b32 a);\n"
        ".visible .entry k(.param .u32 n) .maxntid 128, 1, 1\n"
        "{ // a { that does not count\n"
        '.loc 1 3 0 ; .pragma "nounroll; {";\n'
        "$L1: { .reg .b32 t; mov.u32 t, %tid.x; }\n"
        "/* } */ ts: .branchtargets $L1, $L2; $L2: ret;\n}\n"
        ".section .debug_x { .b8 1, 2 }\n"
    )
    module = parse(text + "\0")
    (kernel,) = module.kernels
    assert (module.version, module.target) == ((8, 0), "sm_80")
    assert kernel.directives == ".maxntid 128, 1, 1"
    assert [one.label for one in kernel.body if one.label] == ["$L1", "ts", "$L2"]
    assert [one.depth for one in kernel.body if one.opcode == "mov.u32"] == [1]
    assert text.rstrip("\0")[kernel.start :].startswith(".visible .entry k")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ".version and .target"),
        (".version 8.0\n", ".version and .target"),
        (HEAD + ".entry k()\n{ ret;", "line 5: this brace is never closed"),
        (HEAD + ".entry k()\n{\n ret \n}", "line 6: this statement has no end"),
        (HEAD + ".entry\n{ ret; }", "line 4: a function without a name"),
    ],
)
def test_broken_text(text, message):
    with pytest.raises(PtxError, match=message):
        parse(text)


def test_a_device_function_is_no_kernel():
    module = _module("ret;", ".func (.param .b32 result) helper(.param .b32 a)")
    assert module.kernels == ()
    assert module.functions["helper"].parameters == (".param .b32 a",)
