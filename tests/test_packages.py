"""Every folder of modules is in the installed package, under the name of its place."""

from __future__ import annotations

import tomllib

from tests.rooms import CORE, ROOMS, ROOT


def test_no_folder_is_missing_from_the_package():
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {
        file.parent.relative_to(ROOT).as_posix()
        for top in (*CORE, *ROOMS)
        for file in (ROOT / top).rglob("__init__.py")
    }
    assert set(setup["package-dir"].values()) == folders
    assert set(setup["package-dir"]) == set(setup["packages"])
