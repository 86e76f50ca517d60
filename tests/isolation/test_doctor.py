"""What the doctor says of isolation."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dovetail.executor.doctor.diagnosis import Preflight, diagnose
from dovetail.executor.doctor.finding import Severity
from dovetail.isolation import doctor

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "doctor.md"


@pytest.mark.parametrize(
    ("lacks", "remedy"),
    [("find_ptxas", "dovetail[isolation]"), ("find_compiler", "gcc"), ("find_library", "driver")],
)
def test_what_isolation_lacks_is_found_in_turn(monkeypatch, lacks, remedy):
    for name in ("find_ptxas", "find_compiler", "find_library"):
        here = None if name == lacks else Path("/somewhere")
        monkeypatch.setattr(doctor, name, lambda *_, here=here: here)
    finding = doctor.isolation()
    assert finding.level is Severity.LACKING
    assert remedy in finding.remedy
    monkeypatch.setattr(doctor, lacks, lambda *_: Path("/somewhere"))
    assert doctor.isolation().level is Severity.GOOD


def test_it_is_among_the_checks_of_the_machine(tmp_path):
    what = Preflight(tmp_path / "state", tmp_path / "state/api", tmp_path / "mps", sys.executable)
    ids = [finding.id for finding in diagnose(what).findings]
    assert ids.count("machine.isolation") == 1
    assert ids.index("machine.cpu-pool") < ids.index("machine.isolation")
    assert ids.index("machine.isolation") < ids.index("service.directory")
    assert "`machine.isolation`" in PAGE.read_text()
