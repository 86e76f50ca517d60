"""The record of sick devices, and the events reported."""

from __future__ import annotations

import pytest

from dovetail.executor.pools import device_health as device_health
from dovetail.executor.pools.device_health import Cause, DeviceHealth


class Recorder:
    """DeviceHealth of a file, and the events it has reported."""

    def __init__(self, path):
        self.events = []
        self.device_health = DeviceHealth(path, self.events.append)

    def last(self):
        return [(event.kind, event.gpu, getattr(event, "reason", "")) for event in self.events]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sick.json"


def test_a_device_is_healed_when_every_cause_is_gone(path):
    recorder = Recorder(path)
    recorder.device_health.report("g0", Cause.MPS, "fault")
    recorder.device_health.report("g0", Cause.MPS, "fault")
    recorder.device_health.report("g0", Cause.ANSWER, "silent")
    recorder.device_health.heal("g0", Cause.MPS)
    recorder.device_health.heal("g0", Cause.MPS)
    recorder.device_health.heal("g1", Cause.MPS)
    recorder.device_health.heal("g0", Cause.ANSWER)
    assert recorder.last() == [
        ("device_sick", "g0", "fault"),
        ("device_sick", "g0", "fault; silent"),
        ("device_sick", "g0", "silent"),
        ("device_healed", "g0", ""),
    ]


def test_only_what_cannot_be_looked_up_outlives_the_service_and_each_is_reported_anew(path):
    first = Recorder(path)
    first.device_health.report("g0", Cause.DRIVER, "Xid 79")
    first.device_health.report("g1", Cause.MPS, "fault")
    first.device_health.report("g2", Cause.ANSWER, "silent")
    again = Recorder(path)
    again.device_health.resume({"g0", "g1", "g3"})
    assert sorted(again.last()) == [("device_healed", "g1", ""), ("device_sick", "g0", "Xid 79")]


def test_a_recovered_device_is_reported_until_acknowledged(path):
    first = Recorder(path)
    first.device_health.report("g0", Cause.MPS, "fault")
    first.device_health.heal(
        "g0", Cause.MPS
    )  # and the service is killed before it is in the journal
    for _ in range(2):
        again = Recorder(path)
        again.device_health.resume({"g0"})
        assert again.last() == [("device_healed", "g0", "")]


def test_a_reboot_heals(path, monkeypatch):
    Recorder(path).device_health.report("g0", Cause.DRIVER, "Xid 79")
    monkeypatch.setattr(device_health, "boot_id", lambda: "another")
    again = Recorder(path)
    again.device_health.resume({"g0"})
    assert again.last() == [("device_healed", "g0", "")]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot": "b", "devices": {"g0": {"x": "y"}}}'])
def test_a_file_that_cannot_be_understood_is_reported_and_passed_over(path, text, caplog):
    path.write_text(text)
    recorder = Recorder(path)
    recorder.device_health.resume({"g0"})
    assert recorder.last() == []
    assert "not known" in caplog.text


def test_a_disk_that_is_full_stops_nothing(tmp_path, caplog):
    recorder = Recorder(tmp_path / "none" / "sick.json")
    recorder.device_health.report("g0", Cause.MPS, "fault")
    assert recorder.last() == [("device_sick", "g0", "fault")]
    assert "is not saved" in caplog.text
