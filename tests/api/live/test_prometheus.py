"""The figures for Prometheus, read back by its own parser."""

from __future__ import annotations

import math

import httpx
import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from dovetail.executor.jobs.states import OVER, JobState
from dovetail.executor.live.views import PartView, Statistics, Wait
from dovetail.live.http.metric_declarations import DECLARED
from dovetail.live.http.prometheus import exposition
from tests.api.live.services import ME, TOKENS
from tests.api.live.services import job as submitted
from tests.api.live.test_tables import device, job, service
from tests.executor.waiting import wait_until

STATISTICS = Statistics(
    waiting={wait: int(wait is Wait.ROOM) * 2 for wait in Wait},
    oldest_wait_s=12.5,
    ended={JobState.FINISHED: 5, JobState.FAILED: 1, JobState.CANCELLED: 0},
    restarts=3,
    broken=1,
    decisions={0.01: 2, 0.3: 1, math.inf: 1},
    decisions_s=40.5,
)
UUID = "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52"
GPU0 = device(
    uuid=UUID,
    number=3,
    metrics={"sm_active": 0.75, "pcie_rx_bytes_s": 5e6, "kernels_s": 9.0},
    parts=(
        PartView(
            job="j1", time=0.6, time_source="measured", power_w=250.0, power_source="modelled"
        ),
        PartView(job="j2", time=0.4, time_source="measured"),
    ),
)
GPU1 = device(id="gpu1", jobs=(), uuid="GPU-1", number=4, trouble="is being drained by root")
JOB1 = job(
    name="night run",
    slowdown=1.25,
    predicted=1.5,
    upper=1.75,
    gsla=2.0,
    memory_percent=50.0,
    memory_limit_mib=8000.0,
    memory_used_mib=5000.0,
    iterations=420.0,
    energy_j=1234.5,
    device_s=99.5,
    runs=3,
)
JOB2 = job(id="j2", shares=(None,), co_runners=(("j1",),))
PLACE = {"UUID": UUID, "gpu": "3"}
WHERE = {**PLACE, "modelName": "H100", "Hostname": "n"}


def read(jobs=(JOB1, JOB2), devices=(GPU0, GPU1), accept=""):
    """Return every sample by its name and labels."""
    text, kind = exposition(service(devices=devices), jobs, STATISTICS, accept)
    reader = openmetrics_parser if "openmetrics" in kind else parser
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in reader.text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def figures():
    return read()


def at(figures, name, **labels):
    return figures[(f"dovetail_{name}", *sorted(labels.items()))]


def test_every_state_and_every_reason_has_its_count(figures):
    for state in JobState:
        count = {"running": 1, "waiting": 2}.get(state, 0)
        assert at(figures, "jobs", state=state.value) == count
    for reason in Wait:
        assert at(figures, "jobs_waiting", reason=reason.value) == 2 * (reason is Wait.ROOM)
    ended = {state.value: at(figures, "jobs_ended_total", state=state.value) for state in OVER}
    assert ended == {"finished": 5, "failed": 1, "cancelled": 0}
    assert at(figures, "oldest_wait_seconds") == 12.5
    assert at(figures, "restarts_total") == 3
    assert at(figures, "promises_broken_total") == 1


def test_decisions_are_a_histogram(figures):
    bucket = "decision_seconds_bucket"
    found = [at(figures, bucket, le=le) for le in ("0.003", "0.01", "0.1", "0.3", "30.0", "+Inf")]
    assert found == [0, 2, 2, 3, 3, 4]
    assert at(figures, "decision_seconds_count") == 4
    assert at(figures, "decision_seconds_sum") == 40.5


def test_devices_are_in_base_units_and_named_as_dcgm_exporter_names_them(figures):
    assert at(figures, "device_memory_bytes", **WHERE) == 81_559 * 2**20
    assert at(figures, "device_memory_used_bytes", **WHERE) == 20_000 * 2**20
    assert at(figures, "device_power_watts", **WHERE) == 410.0
    assert at(figures, "device_energy_joules_total", **WHERE) == 1e6
    assert at(figures, "device_available", **WHERE) == 1
    drained = {**WHERE, "UUID": "GPU-1", "gpu": "4"}
    assert at(figures, "device_available", **drained) == 0
    assert at(figures, "device_info", **WHERE, uuid=UUID, device_id="gpu0") == 1


def test_activity_and_traffic_name_their_source(figures):
    source = {**WHERE, "source": "NVML GPM"}
    assert at(figures, "device_active_ratio", metric="sm_active", **source) == 0.75
    traffic = "device_traffic_bytes_per_second"
    assert at(figures, traffic, metric="pcie_rx", **source) == 5e6
    assert not any("kernels" in str(key) for key in figures)


def test_jobs_show_what_sharing_costs_them_and_what_they_were_promised(figures):
    labels = {"jobid": "j1", "username": "anna"}
    expected = {
        "job_slowdown": 1.25,
        "job_slowdown_predicted": 1.5,
        "job_slowdown_bound": 1.75,
        "job_gsla": 2.0,
        "job_promise_margin": 1.6,
        "job_iterations_total": 420.0,
        "job_memory_limit_bytes": 8000 * 2**20,
        "job_memory_used_bytes": 5000 * 2**20,
        "job_energy_joules_total": 1234.5,
        "job_device_seconds_total": 99.5,
        "job_restarts_total": 2,
        "job_submit_time_seconds": 1000.0,
        "job_start_time_seconds": 1060.0,
    }
    assert {name: at(figures, name, **labels) for name in expected} == expected
    states = ("kept", "at_risk", "broken", "unmeasured")
    assert [at(figures, "job_promise", state=s, **labels) for s in states] == [1, 0, 0, 0]
    info = {"uid": "1000", "jobname": "night run", "workload": "resnet", "priority": "batch"}
    assert at(figures, "job_info", state="running", **info, **labels) == 1


def test_a_job_without_a_promise_has_no_series_of_one(figures):
    promised = {dict(key[1:])["jobid"] for key in figures if "promise" in key[0] and len(key) > 1}
    assert promised == {"j1"}


def test_parts_of_a_shared_device_are_those_of_its_jobs(figures):
    first = {"jobid": "j1", "username": "anna", "Hostname": "n", **PLACE}
    second = {**first, "jobid": "j2"}
    assert at(figures, "job_sm_share_ratio", **first) == 0.5
    assert at(figures, "job_sm_share_ratio", **second) == 1.0
    assert at(figures, "job_time_ratio", source="measured", **first) == 0.6
    assert at(figures, "job_time_ratio", source="measured", **second) == 0.4
    assert at(figures, "job_power_watts", source="modelled", **first) == 250.0
    powers = [key for key in figures if key[0] == "dovetail_job_power_watts"]
    assert len(powers) == 1


def test_a_job_that_only_gets_what_a_co_runner_leaves_has_no_share_of_its_own():
    found = read([job(shares=("idle",))])
    seat = {"jobid": "j1", "username": "anna", "Hostname": "n", **PLACE}
    assert at(found, "job_sm_share_ratio", **seat) == 0.0


def test_devices_without_a_uuid_are_named_by_their_id():
    found = read((), (device(),))
    where = {"UUID": "gpu0", "gpu": "gpu0", "modelName": "H100", "Hostname": "n"}
    assert at(found, "device_jobs", **where) == 2


def test_openmetrics_has_the_same_samples(figures):
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    assert read(accept=accept) == figures


@pytest.mark.parametrize("accept", ["", "*/*", "application/openmetrics-text;version=x", "\xff"])
def test_any_accept_header_has_an_answer(accept, figures):
    assert read(accept=accept) == figures


HOSTILE = 'a"} evil{x="\\\n# HELP λ \udcff' + "x" * 1000


def test_hostile_names_stay_in_their_labels(figures):
    odd = job(name=HOSTILE, owner=HOSTILE, workload=HOSTILE)
    found = read([odd])
    names = {key[0] for key in found}
    assert names <= {key[0] for key in figures}
    (info,) = (dict(key[1:]) for key in found if key[0] == "dovetail_job_info")
    expected = HOSTILE[:200].replace("\udcff", "?")
    assert [info[name] for name in ("jobname", "username", "workload")] == [expected] * 3


def test_every_series_is_declared_and_every_declaration_is_used(figures):
    """So the reference, which is generated from the declarations, says what there is."""
    labels: dict[str, set[frozenset[str]]] = {}
    for name, *pairs in figures:
        family = name
        if family not in DECLARED:
            family = name.rpartition("_")[0]
        here = {label for label, _ in pairs} - {"le"}
        labels.setdefault(family, set()).add(frozenset(here))
    # A service without a proof has no gap.
    given = {name: {frozenset(one.labels)} for name, one in DECLARED.items()}
    absent = {"dovetail_decision_gap", "dovetail_job_iterations_per_second"}
    assert labels == {name: one for name, one in given.items() if name not in absent}


def test_the_service_itself(figures):
    assert at(figures, "info", version="0.1.0", pool="gpu", policy="dovetail") == 1
    assert at(figures, "journal_events_total") == 17
    assert at(figures, "in_trouble") == 0


def of_service(http, name):
    """Return the samples of a metric of a live service, by their only label."""
    text = http.get("/metrics").text
    return {
        next(iter(sample.labels.values()), ""): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"dovetail_{name}"
    }


def test_waiting_jobs_and_ends_are_counted_in_a_live_service(live):
    """Two devices, two jobs on them; what the others lack is written out here."""
    bearer = {"Authorization": f"Bearer {TOKENS[ME]}"}
    with httpx.Client(base_url=live.url, headers=bearer) as http:
        ids = live.mine.submit([submitted(), submitted(workload="bert")])
        wait_until(lambda: of_service(http, "jobs")["profiling"] == 2)
        waiting = (submitted(), submitted(), submitted(held=True), submitted(after=[ids[0]]))
        live.mine.submit(waiting)
        counts = {why: n for why, n in of_service(http, "jobs_waiting").items() if n}
        assert counts == {"held": 1, "dependency": 1, "idle_device": 2}
        assert of_service(http, "oldest_wait_seconds")[""] > 0
        live.client.drain([], True)
        counts = {why: n for why, n in of_service(http, "jobs_waiting").items() if n}
        assert counts == {"held": 1, "dependency": 1, "no_device": 2}
        live.mine.requeue(ids[1])
        wait_until(lambda: of_service(http, "jobs")["profiling"] == 1)
        live.mine.cancel(ids[0])
        wait_until(lambda: of_service(http, "jobs_ended_total")["cancelled"] == 2)
        assert of_service(http, "restarts_total")[""] == 0
        live.client.drain([], False)
        wait_until(lambda: of_service(http, "restarts_total")[""] == 1)
        assert of_service(http, "decision_seconds_count")[""] > 0
