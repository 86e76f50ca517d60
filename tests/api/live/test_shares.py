"""What commands tell of shares that the service measures itself, as people start it."""

from __future__ import annotations

import json

import pytest

from dovetail.cli.main import main
from dovetail.executor.live.views import EvidenceView
from dovetail.live.queue import evidence_line
from dovetail.live.tables import service_view
from tests.api.live.services import TRUTH, served
from tests.api.live.test_tables import device, printed, service
from tests.executor.waiting import wait_until


@pytest.fixture
def pool(short_path):
    """Return the name of a simulated pool with two shares that need made-up evidence."""
    path = short_path / "truth.json"
    cluster = {**TRUTH["cluster"], "shares": [30, 70]}
    path.write_text(json.dumps({**TRUTH, "cluster": cluster}))
    return f"simulated:{path},gate=made-up"


def shown(capsys, *words):
    assert main([*words]) == 0
    return capsys.readouterr().out


def test_a_service_measures_by_default_and_says_so(short_path, pool, capsys, monkeypatch):
    home = short_path / "home"
    monkeypatch.setenv("DOVETAIL_HOME", str(home))

    def told():
        return json.loads(shown(capsys, "show", "--json"))["evidence"]

    with served(home, "--pool", pool):
        assert "shares: " in shown(capsys, "queue")
        wait_until(lambda: told()["state"] == "done")
        assert told()["text"] == "SimGPU, made-up evidence: 30, 70 % right"
        assert "shares" not in shown(capsys, "queue")
        assert "SimGPU, made-up evidence: 30, 70 % right" in shown(capsys, "show")
    with served(home, "--pool", pool, "--measure-shares", "off"):
        assert told()["text"] == "the service measures no shares itself"
        assert "shares" not in shown(capsys, "queue")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            ("--measure-shares", "off", "--python", "python3"),
            "dovetail: --python: has no effect with --measure-shares off",
        ),
        (("--pool", "simulated:,gate=made-up"), "must name an instance: simulated:INSTANCE"),
    ],
)
def test_what_makes_no_sense_is_one_line(short_path, options, line, capsys):
    home = ("--directory", str(short_path / "home"))
    assert main(["serve", "--pool", "simulated:library:lab", *home, *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert line in err
    assert len(err.splitlines()) == 1


def test_the_device_says_what_is_measured_on_it():
    text = "measuring whether 25 % of gpu0 computes right (cuBLAS 130100; it makes way for jobs)"
    now = service(
        evidence=EvidenceView(state="measuring", text=text, gpu="gpu0", share=25),
        devices=(device(jobs=(), measuring=25),),
    )
    assert evidence_line(now) == f"shares: {text}"
    assert "(measuring 25 %)" in printed(service_view(now), 140)
    assert evidence_line(service()) == ""
