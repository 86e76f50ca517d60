"""The Grafana dashboard and the alert rules for Prometheus, as files of this package."""

from __future__ import annotations

from importlib.metadata import metadata
from importlib.resources import files
from typing import Final

from dovetail.instances.plugins import OWN

DASHBOARD: Final = "dashboard.json"
ALERTS: Final = "alerts.yml"


def contents(name: str) -> bytes:
    """Return the contents of a file of this package."""
    return (files(__name__) / name).read_bytes()


def alerts() -> str:
    """Return the alert rules; ``runbook_url`` links to the guide if this installation has one.

    Packages of a release name the address of their documentation. Without it, ``runbook`` names the
    guide's place in the repository.
    """
    rules = contents(ALERTS).decode()
    urls = dict(each.split(", ", 1) for each in metadata(OWN).get_all("Project-URL") or ())
    if (index := urls.get("Documentation")) is None:
        return rules
    return rules.replace("runbook: docs/", f"runbook_url: {index.removesuffix('index.md')}")
