"""A class has a name of its own: a reader who meets the name knows which one is meant."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST = 10
"""The number of names that more than one class may have; a leading underscore does not count."""


def test_few_names_are_used_for_more_than_one_class():
    places = defaultdict(list)
    for file in modules():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    shared = {name: found for name, found in sorted(places.items()) if len(found) > 1}
    told = "\n".join(f"{name}: {', '.join(found)}" for name, found in shared.items())
    assert len(shared) <= MOST, f"{len(shared)} names, at most {MOST} are allowed:\n{told}"


def modules() -> Iterator[Path]:
    """Yield the files of all packages; nested and private classes count, those of tests do not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for folder in project["tool"]["setuptools"]["package-dir"].values():
        yield from sorted((ROOT / folder).glob("*.py"))
