"""The interpreter with one of its rules left out, to see whether some test finds that.

    python -m tests.isolation.rules_left_out NUMBER

runs the tests of the interpreter without the rule of that number (``RULES``), and exits like
pytest. Rules are what the interpreter demands of addresses, operands and forms of instructions, as
calls of ``aligned`` and ``_require`` and as conditional errors, and how it places memory.
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
MODULES: Final = ("instructions", "tensor_cores", "interpreter")
TESTS: Final = ("test_interpreter.py", "test_tensor_cores.py")
_ERRORS: Final = ("InterpreterError", "AddressError")
_PLACES: Final = (
    ("interpreter", "_DYNAMIC_STEP = 16", "_DYNAMIC_STEP = 1"),
    ("interpreter", "step = max(_DYNAMIC_STEP, ", "step = (_DYNAMIC_STEP, "),
    ("interpreter", "[*inside, *of_module, ", "[*of_module, *inside, "),
    ("interpreter", "if found[3] in used]\n        inside", "]\n        inside"),
    ("interpreter", "inside = [found for found in own if found[3] in used]", "inside = own"),
    ("interpreter", "step = int(align or bits_of(kind) // 8)\n", "step = 1\n"),
    ("tensor_cores", "return addresses ^ ", "return addresses + 0 * "),
    ("tensor_cores", "(lead if width == 16 else 16)", "16"),
    ("tensor_cores", " & 0xFFFFE000).view", ").view"),
    ("tensor_cores", "there = inside and 0 <= x < of.extents[0]", "there = True"),
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
    return (
        isinstance(node, ast.If)
        and len(node.body) == 1
        and isinstance(node.body[0], ast.Raise)
        and isinstance(node.body[0].exc, ast.Call)
        and isinstance(node.body[0].exc.func, ast.Name)
        and node.body[0].exc.func.id in _ERRORS
    )


def _source(module: str) -> str:
    return (_FOLDER / f"{module}.py").read_text()


def _without(at: tuple[int, int]) -> Callable[[str], str]:
    return lambda source: ast.unparse(
        ast.fix_missing_locations(_LeftOut(at).visit(ast.parse(source)))
    )


def _rules() -> Iterator[Rule]:
    for module in MODULES:
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
    name = f"tests.isolation.{rule.module}"
    path = _FOLDER / f"{rule.module}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(rule.left_out(path.read_text()), path, "exec"), module.__dict__)


def main() -> int:
    """Run the tests without the rule that is given; return pytest's exit status."""
    _import_without(RULES[int(sys.argv[1])])
    paths = [str(_FOLDER / test) for test in TESTS]
    return pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *paths])


if __name__ == "__main__":
    sys.exit(main())
