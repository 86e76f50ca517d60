"""Packages with plugins: put on the path of this process, or made and installed for others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from dovetail.instances import plugins

PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "1.0"

[project.entry-points."dovetail.plugins"]
{declared}

[tool.setuptools]
packages = [{packages}]
py-modules = [{modules}]
"""


def install(monkeypatch, folder, source, *entries, name="made-up"):
    """Install a package of one module with entry points, first on the path until the test ends."""
    module = name.replace("-", "_")
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir(parents=True)
    folder.joinpath(f"{module}.py").write_text(source)
    lines = (f"{entry} = {module}:{target}\n" for entry, target in entries)
    metadata.joinpath("entry_points.txt").write_text(f"[{plugins.GROUP}]\n{''.join(lines)}")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(plugins, "_installed", plugins._installed.__wrapped__)
    monkeypatch.delitem(sys.modules, module, raising=False)


def package(
    folder: Path, name: str, entries: Mapping[str, str], modules: Mapping[str, str]
) -> Path:
    """Write the sources of a package: its entry points, and the text of each module by its name."""
    source = folder / name
    source.mkdir(parents=True)
    declared = "\n".join(f'"{key}" = "{target}"' for key, target in entries.items())
    folders = {module.rpartition(".")[0] for module in modules if "." in module}
    alone = {module for module in modules if "." not in module}
    text = PROJECT.format(
        name=name, declared=declared, packages=_listed(folders), modules=_listed(alone)
    )
    (source / "pyproject.toml").write_text(text)
    for module, code in modules.items():
        file = source / f"{module.replace('.', '/')}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(code)
    return source


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in sorted(names))


def pip_install(target: Path, *sources: Path) -> Path:
    """Install packages from their sources into a folder of their own."""
    offline = ("--no-index", "--no-build-isolation", "--no-deps", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "install", "--quiet", *offline, "--target", str(target)]
    done = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def dovetail(
    path: Path, *arguments: object, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``dovetail`` with the packages of a folder installed beside it."""
    return subprocess.run(
        [sys.executable, "-m", "dovetail", *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        cwd=cwd,
    )
