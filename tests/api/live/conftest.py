"""A service in this process, a new one for each test."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra 'live' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'live' is not installed")
pytest.importorskip("httpx", reason="the extra 'live' is not installed")


@pytest.fixture
def short_path():
    """Return a folder whose name leaves room for a socket's."""
    with tempfile.TemporaryDirectory(prefix="dove-") as folder:
        yield Path(folder)


@pytest.fixture
def live(short_path):
    """Return a running service."""
    from tests.api.live.services import service_here

    with service_here(short_path, short_path / "api.sock") as running:
        yield running
