"""The dashboard and the alerts, alone and with a real Prometheus that scrapes a real service."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import defaultdict
from email.message import Message
from importlib.resources import files
from pathlib import Path

import httpx
import pytest
import yaml

from benchmarks.live.prometheus_server import (
    ALERTS,
    FALLBACK,
    PROGRAM,
    alert_rules,
    dashboard,
    dashboard_queries,
    free_address,
    panels,
    prometheus,
)
from dovetail.live import monitoring
from dovetail.live.http.metric_declarations import DECLARED
from tests.api.live.services import ME, TOKENS, TRUTH, job, served
from tests.executor.waiting import wait_until

CASES = Path(__file__).parent / "alert_cases.yml"
DOCS = Path(__file__).parents[3] / "docs"
QUERIES = {
    **dashboard_queries(dashboard()),
    **{rule["alert"]: rule["expr"] for rule in alert_rules()},
}

needs_prometheus = pytest.mark.skipif(
    not (shutil.which(PROGRAM) and shutil.which("promtool")), reason="no Prometheus here"
)


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
def test_queries_ask_for_metrics_and_labels_that_exist(query):
    """Every label in a selector is one of its metric, or one that Prometheus adds."""
    found = re.findall(r"(dovetail_\w+)(?:\{([^}]*)\})?", query)
    for name, selector in found:
        family = re.sub("_(bucket|count|sum)$", "", name)
        declared = DECLARED.get(name) or DECLARED[family]
        labels = {label for label, _ in re.findall(r"(\w+)(!?=~?)", selector)}
        assert labels <= {*declared.labels, "instance", "job", "le"}, (name, labels)
    assert found or query.startswith("scrape_duration_seconds")


def test_counters_are_asked_for_rates_only():
    for name, query in QUERIES.items():
        for counter in re.findall(r"dovetail_\w+_total", query):
            assert re.search(rf"(rate|increase)\({counter}", query), (name, query)


def test_the_dashboard_is_laid_out_without_gaps_of_kind():
    board = dashboard()
    shown = list(panels(board))
    assert len({panel["id"] for panel in shown}) == len(shown)
    rows = [panel["title"] for panel in shown if panel["type"] == "row"]
    assert rows == ["Overview", "Promises", "Sharing per GPU", "Queue", "Service"]
    taken: dict[tuple[int, int], str] = {}
    for panel in shown:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


def test_the_dashboard_needs_no_edit_for_its_import():
    """No address, no id of a data source; what it asks is chosen by a variable."""
    board = dashboard()
    assert (board["uid"], board["schemaVersion"]) == ("dovetail-live", 39)
    assert "id" not in board
    assert "__inputs" not in board
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels(board):
        if panel["type"] != "row":
            assert panel["datasource"] == source, panel["title"]
            assert all(target["datasource"] == source for target in panel["targets"])
            assert panel["fieldConfig"]["defaults"]["unit"]
    first, *others = board["templating"]["list"]
    assert (first["type"], first["query"], first["name"]) == (
        "datasource",
        "prometheus",
        "datasource",
    )
    assert all(one["datasource"] == source for one in others)


def test_dashboard_and_alerts_are_files_of_the_package():
    for name in (monitoring.DASHBOARD, monitoring.ALERTS):
        assert (files(monitoring) / name).is_file()
    assert json.loads(monitoring.contents(monitoring.DASHBOARD)) == dashboard()


@pytest.mark.parametrize("released", [True, False])
def test_alerts_link_to_the_guide_if_the_package_says_where_it_is(monkeypatch, released):
    about = Message()
    about["Project-URL"] = "Source, https://git.example.org/lab/dovetail"
    if released:
        guide = "https://git.example.org/lab/dovetail/blob/v1/docs/"
        about["Project-URL"] = f"Documentation, {guide}index.md"
    monkeypatch.setattr(monitoring, "metadata", lambda name: about)
    (group,) = yaml.safe_load(monitoring.alerts())["groups"]
    for rule in group["rules"]:
        place = f"howto/monitor.md#{rule['alert'].lower()}"
        expected = {"runbook_url": guide + place} if released else {"runbook": f"docs/{place}"}
        del rule["annotations"]["summary"]
        assert rule["annotations"] == expected


def test_every_alert_has_a_case_a_summary_and_a_place_in_the_guide():
    rules = {rule["alert"]: rule for rule in alert_rules()}
    fired, quiet = defaultdict(int), defaultdict(int)
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        for one in case["alert_rule_test"]:
            (fired if one.get("exp_alerts") else quiet)[one["alertname"]] += 1
    assert fired.keys() == quiet.keys() == rules.keys()
    guide = (DOCS / "howto" / "monitor.md").read_text()
    for name, rule in rules.items():
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["runbook"] == f"docs/howto/monitor.md#{name.lower()}"
        assert f"\n### {name}\n" in guide


@needs_prometheus
def test_alerts_fire_when_they_should(tmp_path):
    for file in (CASES, ALERTS):
        shutil.copy(file, tmp_path)
    command = ["promtool", "test", "rules", str(tmp_path / CASES.name)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


_OURS = 'instance="d:1", job="dovetail"'
_JOB1 = f'{_OURS}, jobid="j1", username="anna"'
_GPU_A = 'UUID="GPU-a", gpu="0", modelName="H100", Hostname="n"'
_THEIRS = 'device="nvidia0", pci_bus_id="00000000:18:00.0"'
_DCGM = f'instance="n:9400", job="dcgm", {_GPU_A}, {_THEIRS}'
_JOBSTATS = (
    'instance="n:9445", job="gpu", uuid="GPU-a", name="H100", ordinal="0", minor_number="0", '
    'jobid="77", userid="1000"'
)
SERIES = {
    f"dovetail_device_jobs{{{_OURS}, {_GPU_A}}}": "2x1440",
    f'dovetail_device_jobs{{{_OURS}, UUID="GPU-b", gpu="1"}}': "1x1440",
    f'dovetail_device_info{{{_OURS}, {_GPU_A}, uuid="GPU-a", device_id="GPU-a0"}}': "1x1440",
    f"dovetail_job_sm_share_ratio{{{_JOB1}, {_GPU_A}}}": "0.5x1440",
    f"dovetail_job_device_seconds_total{{{_JOB1}}}": "0+60x1440",
    f"dovetail_job_energy_joules_total{{{_JOB1}}}": "0+6000x1440",
    f"DCGM_FI_PROF_SM_ACTIVE{{{_DCGM}}}": "0.8x1440",
    'DCGM_FI_PROF_SM_ACTIVE{instance="n:9400", job="dcgm", UUID="GPU-b"}': "0.4x1440",
    f"DCGM_FI_DEV_GPU_TEMP{{{_DCGM}}}": "65x1440",
    f"nvidia_gpu_duty_cycle{{{_JOBSTATS}}}": "90x1440",
}
"""A day of a shared GPU, with the labels of DCGM exporter and of jobstats' exporter."""

JOINED = (
    (f"DCGM_FI_PROF_SM_ACTIVE{{{_DCGM}}}", 0.8),
    ('{jobid="j1", username="anna"}', 65.0),
    (f'{{{_JOBSTATS}, device_id="GPU-a0", modelName="H100"}}', 90.0),
    ('{username="anna"}', 24.0),
    ('{username="anna"}', 2.4),
)
"""What the queries of the guide return then, worked out by hand."""


@needs_prometheus
def test_the_guide_s_queries_join_with_other_exporters(tmp_path):
    guide = (DOCS / "howto" / "monitor.md").read_text()
    queries = re.findall(r"```promql\n(.*?)```", guide, re.DOTALL)
    asked = [
        {"expr": query, "eval_time": "1d", "exp_samples": [{"labels": labels, "value": value}]}
        for query, (labels, value) in zip(queries, JOINED, strict=True)
    ]
    series = [{"series": name, "values": values} for name, values in SERIES.items()]
    case = {"interval": "1m", "input_series": series, "promql_expr_test": asked}
    (tmp_path / "joins.yml").write_text(yaml.safe_dump({"rule_files": [], "tests": [case]}))
    command = ["promtool", "test", "rules", str(tmp_path / "joins.yml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """Start a service with two simulated GPUs on which jobs share, and a Prometheus beside it."""
    if not shutil.which(PROGRAM):
        pytest.skip("no Prometheus here")
    folder = tmp_path_factory.mktemp("monitored")
    brisk = {"throughput": {"100": 100.0}, "metrics": {"sm_active": 0.5}, "memory_mib": 4000.0}
    pairs = (("resnet", "resnet"), ("resnet", "bert"), ("bert", "bert"))
    truth = {
        **TRUTH,
        "workloads": {name: {**one, **brisk} for name, one in TRUTH["workloads"].items()},
        "slowdowns": [{"pair": pair, "slowdown": [1.3, 1.3], "power_w": 300.0} for pair in pairs],
    }
    (folder / "truth.json").write_text(json.dumps(truth))
    (folder / "tokens").write_text(f"{ME} {TOKENS[ME]}\n")
    (folder / "tokens").chmod(0o600)
    address, quick = free_address(), "warm_up_s=0.1,settle_s=0.1,profile_s=3,window_s=3"
    options = ("--pool", f"simulated:{folder / 'truth.json'}", "--assume-pair", "1.4")
    options += ("--listen", address, "--tokens", folder / "tokens", "--watch", quick)
    with (
        served(folder / "home", *options, "--socket", folder / "s"),
        prometheus(folder, address, TOKENS[ME], rules=ALERTS) as server,
        httpx.Client(
            base_url=f"http://{address}", headers={"Authorization": f"Bearer {TOKENS[ME]}"}
        ) as http,
    ):
        kinds = ("resnet", "bert") * 3
        wanted = [job(workload=k, gsla=2.0, command=["train", "work_s=3000"]) for k in kinds]
        http.post("/v1/jobs", json={"jobs": wanted}).raise_for_status()
        yield server, http


@needs_prometheus
def test_prometheus_has_data_for_every_query_of_the_dashboard(scraped):
    server, _ = scraped
    queries = dashboard_queries(dashboard(), window="10s")
    left = {name: query.replace(FALLBACK, "") for name, query in queries.items()}
    # The policy proves a gap only where it may choose.
    left.pop("Proven gap of the last decision A")

    def answered():
        for name in [name for name, query in left.items() if server.ask(query)]:
            del left[name]
        return not left

    try:
        wait_until(answered)
    except AssertionError as error:
        raise AssertionError(f"no data for {sorted(left)}") from error


@needs_prometheus
def test_prometheus_evaluates_every_alert(scraped):
    server, _ = scraped
    for rule in alert_rules():
        server.ask(rule["expr"])
    wait_until(lambda: all(rule["health"] == "ok" for rule in rules_of(server)))
    assert [rule["name"] for rule in rules_of(server)] == [rule["alert"] for rule in alert_rules()]


def rules_of(server):
    return [rule for group in server.get("rules")["groups"] for rule in group["rules"]]


@needs_prometheus
def test_parts_of_shared_devices_sum_to_the_whole(scraped):
    server, _ = scraped
    wait_until(lambda: server.ask("dovetail_device_jobs > 1"), "no device is shared")
    both = "sum by (UUID) (dovetail_job_power_watts) - on (UUID) dovetail_device_power_watts"
    wait_until(lambda: server.ask(both), "no power")
    assert [float(one["value"][1]) for one in server.ask(both)] == pytest.approx([0, 0], abs=1e-6)
    whole = server.ask("sum by (UUID) (dovetail_job_time_ratio)")
    assert [float(one["value"][1]) for one in whole] == pytest.approx([1, 1])


@needs_prometheus
def test_the_service_hands_out_dashboard_and_alerts(scraped):
    _, http = scraped
    assert http.get("/metrics/dashboard").json() == dashboard()
    assert http.get("/metrics/alerts").text == ALERTS.read_text()
