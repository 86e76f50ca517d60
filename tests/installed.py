"""Packages with plugins, installed for a test."""

from __future__ import annotations

import sys

from dovetail.instances import plugins


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
