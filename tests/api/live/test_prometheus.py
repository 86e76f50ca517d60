"""The figures for Prometheus, read back by its own parser."""

from __future__ import annotations

import pytest

from dovetail.executor.jobs.states import JobState
from dovetail.live.http.prometheus import exposition
from tests.api.live.test_tables import device, job, service

parser = pytest.importorskip("prometheus_client.parser")


@pytest.fixture
def figures():
    """Return every sample by its name and labels."""
    jobs = [job(slowdown=1.25, predicted=1.5, gsla=2.0), job(id="j2", gpus=(), shares=())]
    text, kind = exposition(service(), jobs)
    assert kind.startswith("text/plain")
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_every_state_has_its_count(figures):
    counts = {
        dict(key[1:])["state"]: value for key, value in figures.items() if key[0] == "dovetail_jobs"
    }
    assert counts == {state: {"running": 1, "waiting": 2}.get(state, 0) for state in JobState}


def test_devices_are_in_base_units(figures):
    labels = (("device", "gpu0"), ("model", device().model))
    assert figures["dovetail_device_memory_bytes", *labels] == 81_559 * 2**20
    assert figures["dovetail_device_memory_used_bytes", *labels] == 20_000 * 2**20
    assert figures["dovetail_device_power_watts", *labels] == 410.0
    assert figures["dovetail_device_energy_joules_total", *labels] == 1e6
    assert figures["dovetail_device_available", *labels] == 1
    assert figures["dovetail_device_available", ("device", "gpu1"), ("model", "H100")] == 0


def test_metrics_name_their_source(figures):
    key = ("dovetail_device_metric", ("device", "gpu0"), ("metric", "sm_active"))
    assert figures[(*key, ("model", "H100"), ("source", "NVML GPM"))] == 0.75


def test_jobs_that_hold_devices_show_predicted_and_measured(figures):
    labels = (("job", "j1"), ("user", "anna"), ("workload", "resnet"))
    assert figures["dovetail_job_slowdown", *labels] == 1.25
    assert figures["dovetail_job_predicted_slowdown", *labels] == 1.5
    assert figures["dovetail_job_gsla", *labels] == 2.0
    assert not any(dict(key[1:]).get("job") == "j2" for key in figures)


def test_the_service_itself(figures):
    labels = (("policy", "dovetail"), ("pool", "gpu"), ("version", "0.1.0"))
    assert figures["dovetail_info", *labels] == 1
    assert figures["dovetail_journal_events_total",] == 17
    assert figures["dovetail_decision_seconds",] == 0.25
