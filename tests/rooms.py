"""The folders of the core, the rooms beside it, and the tests that go with them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent

CORE: Final = ("instances", "predictors", "formulations", "solver", "executor", "api")
"""Each is a folder at the root, and its tests are in the folder of ``tests`` with its name."""

ROOMS: Final = ("advising", "papers", "cluster", "isolation", "measuring")
"""So is each of these, which the core never needs."""

ROOM: Final = re.compile(rf"\b(?:dovetail|tests|benchmarks)[./](?:{'|'.join(ROOMS)})\b")
"""A module of a room, of its tests or of its benchmarks, wherever it is written."""


def mentions(*folders: Path) -> Iterator[str]:
    """Yield ``FILE:LINE: NAME`` for each module of a room in the Python files of some folders."""
    for folder in folders:
        for file in sorted(folder.rglob("*.py")):
            for number, line in enumerate(file.read_text().splitlines(), 1):
                for found in ROOM.findall(line):
                    yield f"{file.relative_to(ROOT)}:{number}: {found}"
