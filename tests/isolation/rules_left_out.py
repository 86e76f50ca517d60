"""The interpreter, and the refusals, with a rule left out, to see whether some test finds that.

    python -m tests.isolation.rules_left_out NUMBER

runs the tests of its module without the rule of that number (``RULES``), and exits like pytest.
Rules are what the interpreter demands of addresses, operands and forms of instructions, as calls of
``aligned`` and ``_require`` and as conditional errors; how it places memory; and the reasons for
which kernels are not cut, or not tried on copies.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

_FOLDER: Final = Path(__file__).parent
_OWN: Final = ("test_interpreter.py", "test_tensor_cores.py")
TESTS: Final = {
    "tests.isolation.instructions": _OWN,
    "tests.isolation.tensor_cores": _OWN,
    "tests.isolation.interpreter": _OWN,
    "dovetail.isolation.refusals": ("test_refusals.py", "test_tensor_cores.py"),
    "dovetail.isolation.copies": ("test_copies.py",),
}
"""The modules with rules, and the tests of each."""
_ERRORS: Final = ("InterpreterError", "AddressError")
_PLACES: Final = (
    ("tests.isolation.interpreter", "_DYNAMIC_STEP = 16", "_DYNAMIC_STEP = 1"),
    ("tests.isolation.interpreter", "step = max(_DYNAMIC_STEP, ", "step = (_DYNAMIC_STEP, "),
    ("tests.isolation.interpreter", "[*inside, *of_module, ", "[*of_module, *inside, "),
    ("tests.isolation.interpreter", "if found[3] in used]\n        inside", "]\n        inside"),
    (
        "tests.isolation.interpreter",
        "inside = [found for found in own if found[3] in used]",
        "inside = own",
    ),
    ("tests.isolation.interpreter", "step = int(align or bits_of(kind) // 8)\n", "step = 1\n"),
    ("tests.isolation.tensor_cores", "return addresses ^ ", "return addresses + 0 * "),
    ("tests.isolation.tensor_cores", "(lead if width == 16 else 16)", "16"),
    ("tests.isolation.tensor_cores", " & 0xFFFFE000).view", ").view"),
    ("tests.isolation.tensor_cores", "there = inside and 0 <= x < of.extents[0]", "there = True"),
)
"""How memory is placed: module, text, and the text without the rule."""


@dataclass(frozen=True)
class Rule:
    """A rule: its module, its text there, and what makes the module's source without it."""

    module: str
    text: str
    left_out: Callable[[str], str]


class _LeftOut(ast.NodeTransformer):
    """Leaves the rule at a position of the source out."""

    def __init__(self, at: tuple[int, int]) -> None:
        self._at = at

    def visit_If(self, node: ast.If) -> ast.AST:
        return self._changed(node, ast.Pass())

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return self._changed(node, node.args[0] if node.args else node)

    def _changed(self, node: ast.If | ast.Call, without: ast.AST) -> ast.AST:
        if (node.lineno, node.col_offset) == self._at and _is_rule(node):
            return without
        return self.generic_visit(node)


def _is_rule(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in ("aligned", "_require")
    if not isinstance(node, ast.If) or len(node.body) != 1:
        return False
    match node.body[0]:
        case ast.Raise(exc=ast.Call(func=ast.Name(id=name))):
            return name in _ERRORS
        case ast.Return(value=ast.Constant(value=str(text))):
            return bool(text)
        case ast.Return(value=ast.JoinedStr()):
            return True
        case ast.Return(value=ast.Subscript(value=ast.Name(id=name))):
            return name == "_KEPT_STATE"
        case ast.Return(value=ast.Call(func=ast.Name(id=name))):
            return name == "Verdict"
    return False


def _path(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def _source(module: str) -> str:
    return _path(module).read_text()


def _without(at: tuple[int, int]) -> Callable[[str], str]:
    return lambda source: ast.unparse(
        ast.fix_missing_locations(_LeftOut(at).visit(ast.parse(source)))
    )


def _rules() -> Iterator[Rule]:
    for module in TESTS:
        source = _source(module)
        for node in ast.walk(ast.parse(source)):
            if _is_rule(node):
                assert isinstance(node, ast.If | ast.Call)
                text = ast.unparse(node.test if isinstance(node, ast.If) else node)
                yield Rule(module, text, _without((node.lineno, node.col_offset)))
    for module, text, without in _PLACES:
        assert _source(module).count(text) == 1, text

        def left_out(source: str, text: str = text, without: str = without) -> str:
            return source.replace(text, without)

        yield Rule(module, text, left_out)


RULES: Final = tuple(_rules())


def _import_without(rule: Rule) -> None:
    path = _path(rule.module)
    spec = importlib.util.spec_from_file_location(rule.module, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[rule.module] = module
    exec(compile(rule.left_out(path.read_text()), path, "exec"), module.__dict__)


def main() -> int:
    """Run the tests without the rule that is given; return pytest's exit status."""
    rule = RULES[int(sys.argv[1])]
    _import_without(rule)
    paths = [str(_FOLDER / test) for test in TESTS[rule.module]]
    return pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *paths])


if __name__ == "__main__":
    sys.exit(main())
