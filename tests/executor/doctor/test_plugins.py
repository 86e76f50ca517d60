"""Findings that packages add, and what the doctor says of plugins that do not work."""

from __future__ import annotations

import sys

import pytest

from dovetail.doctor.doctor import view
from dovetail.executor.doctor.diagnosis import Preflight, diagnose
from dovetail.executor.doctor.finding import Severity, Usable
from tests.installed import install

SOURCE = """
from dovetail.executor.doctor.finding import Finding, broken

def link():
    return Finding("the link is up")

def several():
    yield Finding("one")
    yield broken("two", "mend it")

def fails():
    raise OSError("no such device")

def fails_late():
    yield Finding("one")
    raise OSError("no such device")

def nonsense():
    return ["a text"]
"""


@pytest.fixture
def findings(tmp_path, monkeypatch):
    """Return what finds: the texts of all findings of a package with these plugins, by id."""

    def found(*entries):
        install(monkeypatch, tmp_path / "site", SOURCE, *entries)
        diagnosis = diagnose(
            Preflight(tmp_path / "state", tmp_path / "api", tmp_path / "mps", sys.executable)
        )
        view(diagnosis)
        return diagnosis

    return found


def of(diagnosis, name):
    return [finding for finding in diagnosis.findings if finding.id == name]


def test_a_finding_has_the_name_of_its_plugin_and_stands_with_its_group(findings):
    diagnosis = findings(("doctor.service.link", "link"), ("doctor.link", "link"))
    ids = [finding.id for finding in diagnosis.findings]
    assert ids.index("service.socket") < ids.index("service.link") < ids.index("driver.bus")
    assert ids[-2:] == ["plugins.link", "plugins.imports"]
    assert [one.text for one in of(diagnosis, "plugins.link")] == ["the link is up"]
    (named,) = of(diagnosis, "plugins.imports")
    assert named.level is Severity.GOOD
    added = "doctor.link (made-up), doctor.service.link (made-up)"
    assert named.text == f"added by other packages: {added}"


def test_a_plugin_may_return_several_and_say_that_the_machine_is_not_usable(findings):
    diagnosis = findings(("doctor.machine.several", "several"))
    assert [one.text for one in of(diagnosis, "machine.several")] == ["one", "two"]
    assert diagnosis.usable is Usable.NOT


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("fails", "failed: OSError: no such device"),
        ("fails_late", "must return findings: OSError: no such device"),
        ("nonsense", "must return findings, got str"),
        ("missing", "cannot be imported: AttributeError"),
        ("__name__", "must be a function or a class, got str"),
    ],
)
def test_a_plugin_that_fails_is_one_finding(findings, target, why):
    (finding,) = of(findings(("doctor.machine.link", target)), "machine.link")
    assert finding.level is Severity.LACKING
    assert f"doctor.machine.link of the package made-up (made_up:{target}) {why}" in finding.text
    assert "\n" not in finding.text
    assert finding.remedy == "update or uninstall made-up"


def test_plugins_of_unknown_kinds_and_those_that_cannot_be_imported_are_named(findings):
    names = ("policy.fifo", "predictor.analytic", "form.analytic", "trace.csv", "pool.gpu")
    taken = [(name, "link") for name in names]
    diagnosis = findings(("weather.rain", "link"), ("policy.newest", "missing"), *taken)
    unknown, *replaced = of(diagnosis, "plugins.names")
    for finding, (plugin, _) in zip(replaced, taken, strict=True):
        assert finding.text.startswith(f"plugin {plugin} of the package made-up (made_up:link) is")
        assert finding.text.endswith("left out: Dovetail has its own of the same name")
    assert unknown.level is Severity.LACKING
    what = "plugin weather.rain of the package made-up (made_up:link)"
    assert unknown.text.startswith(f"{what} must be called KIND.NAME, where KIND is one of policy")
    (lacks,) = of(diagnosis, "plugins.imports")
    assert lacks.level is Severity.LACKING
    assert "policy.newest of the package made-up" in lacks.text
