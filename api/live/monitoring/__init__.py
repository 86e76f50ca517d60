"""The Grafana dashboard and the alert rules for Prometheus, as files of this package."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

DASHBOARD: Final = "dashboard.json"
ALERTS: Final = "alerts.yml"


def contents(name: str) -> bytes:
    """Return the contents of a file of this package."""
    return (files(__name__) / name).read_bytes()
