"""The modes in which the engine runs in these tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dovetail.solver.pairing import matching, prices, size_class
from dovetail.solver.pairing.compilation import compiled, interpreted


def _interpret(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(matching, "quickest", lambda jobs, budget: interpreted)


def _compile(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(matching, "quickest", lambda jobs, budget: compiled)


def _price(patch: pytest.MonkeyPatch) -> None:
    """Sample, leave pairs out and price them in, however few jobs there are."""
    _compile(patch)
    patch.setattr(prices, "_UNSAMPLED", 3)
    for name, value in {
        "_COMPLETE": 0,
        "_SPARSE_DEGREE": 0,
        "_PARTNERS": 2,
        "_ADDED_PER_ROW": 1,
    }.items():
        patch.setattr(size_class, name, value)


WAYS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "interpreted": _interpret,
    "compiled": _compile,
    "priced": _price,
}


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the test in each of the ways that the engine can take."""
    WAYS[request.param](monkeypatch)
    return request.param
