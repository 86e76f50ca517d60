"""The unit for systemd that the documentation ships."""

from __future__ import annotations

import shlex
from configparser import ConfigParser
from pathlib import Path

from dovetail.cli.main import parser

DOCS = Path(__file__).parents[3] / "docs"


def test_its_command_is_one_of_ours_and_its_jobs_are_left_alone():
    unit = ConfigParser(interpolation=None)
    unit.optionxform = str
    unit.read_string((DOCS / "dovetail.service").read_text())
    service = unit["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert Path(program).name == "dovetail"
    assert parser().parse_args(arguments).pool == "gpu"
    assert (service["KillMode"], service["OOMPolicy"]) == ("process", "continue")
    assert (service["StateDirectory"], service["StateDirectoryMode"]) == ("dovetail", "0711")
    # The service's own limit of memory, which jobs and servers of MPS lift for themselves.
    assert service["LimitDATA"].endswith(":infinity")
