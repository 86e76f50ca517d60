"""A real Prometheus that scrapes a service, and the queries of the shipped dashboard and alerts."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

PROGRAM: Final = "prometheus"
FALLBACK: Final = " or vector(0)"
"""What shows 0 where there is no series."""

MONITORING: Final = Path(__file__).parents[2] / "api" / "live" / "monitoring"
DASHBOARD: Final = MONITORING / "dashboard.json"
ALERTS: Final = MONITORING / "alerts.yml"

_CONFIG = """\
global:
  scrape_interval: {every_s:g}s
  scrape_timeout: {every_s:g}s
  evaluation_interval: {every_s:g}s
{rules}scrape_configs:
  - job_name: dovetail
    authorization:
      credentials_file: {token}
    static_configs:
      - targets: ["{target}"]
"""


class PrometheusServer:
    """Prometheus' HTTP API."""

    def __init__(self, url: str, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._http = httpx.Client(base_url=url, timeout=30.0, trust_env=False)

    def ready(self) -> bool:
        """Return whether it answers queries."""
        with contextlib.suppress(httpx.HTTPError):
            return self._http.get("/-/ready").status_code == 200
        return False

    def close(self) -> None:
        """Close the connections to it."""
        self._http.close()

    def ask(self, query: str) -> list[dict[str, Any]]:
        """Return the samples of a query at this moment.

        Raises
        ------
        ValueError
            If Prometheus refuses it.
        """
        answer = self._http.post("/api/v1/query", data={"query": query}).json()
        if answer["status"] != "success":
            raise ValueError(f"{query}: {answer['error']}")
        found = answer["data"]["result"]
        return found if isinstance(found, list) else [found]

    def value(self, query: str) -> float:
        """Return the only sample of a query; NaN if there is none."""
        found = self.ask(query)
        return float(found[0]["value"][1]) if found else float("nan")

    def get(self, path: str) -> Any:  # noqa: ANN401 - whatever it answers
        """Return the data of another part of the API."""
        return self._http.get(f"/api/v1/{path}").json()["data"]


@contextlib.contextmanager
def prometheus(
    directory: Path,
    target: str,
    token: str,
    every_s: float = 1.0,
    rules: Path | None = None,
) -> Iterator[PrometheusServer]:
    """Start a Prometheus that scrapes ``target`` (HOST:PORT) with a token; end it at the end."""
    config, secret = directory / "prometheus.yml", directory / "prometheus.token"
    secret.write_text(token)
    secret.chmod(0o600)
    listed = f"rule_files: [{rules}]\n" if rules else ""
    config.write_text(_CONFIG.format(every_s=every_s, token=secret, target=target, rules=listed))
    address = free_address()
    program = shutil.which(PROGRAM)
    assert program is not None
    command = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    log = (directory / "prometheus.log").open("wb")
    with log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        server = PrometheusServer(f"http://{address}", process)
        try:
            while not server.ready():
                if process.poll() is not None:
                    raise RuntimeError((directory / "prometheus.log").read_text())
                time.sleep(0.05)
            yield server
        finally:
            server.close()
            process.terminate()


def free_address() -> str:
    """Return an address of this machine on which nothing listens, as HOST:PORT."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def dashboard() -> dict[str, Any]:
    """Return the dashboard as shipped."""
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return found


def panels(board: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the panels of a dashboard, and those in closed rows."""
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels", ())


def dashboard_queries(board: Mapping[str, Any], window: str = "1m") -> dict[str, str]:
    """Return the queries of the panels and variables, by what asks them, with every value chosen.

    Parameters
    ----------
    board : mapping
        The dashboard.
    window : str
        What Grafana's interval of a rate, and the range of the dashboard, are taken for.
    """
    found = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in panels(board)
        for target in panel.get("targets", ())
    }
    variables = [one for one in board["templating"]["list"] if one["type"] == "query"]
    for one in variables:
        metric = re.fullmatch(r"label_values\((.+), ?\w+\)", one["definition"])
        assert metric is not None, one["definition"]
        found[f"variable {one['name']}"] = metric[1]
    return {name: _chosen(query, variables, window) for name, query in found.items()}


def _chosen(query: str, variables: list[dict[str, Any]], window: str) -> str:
    for interval in ("$__rate_interval", "$__range"):
        query = query.replace(interval, window)
    for one in variables:
        query = query.replace(f"${one['name']}", ".*")
    assert "$" not in query, query
    return query


def alert_rules() -> list[dict[str, Any]]:
    """Return the alerts as shipped."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]
