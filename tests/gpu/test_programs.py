"""Control program, server program and daemon, with no client."""

import shutil
from pathlib import Path

import pytest

from dovetail.executor.mps.processes import SERVER
from tests.executor.mps.record import STEPS

from .bench import said

COMMANDS = (
    *(word for _, word in STEPS if word and not word.startswith(("start_server", "quit"))),
    "set_default_device_pinned_mem_limit {uuid} 2G",
    "get_default_device_pinned_mem_limit {uuid}",
)
"""Those that were recorded with 535, less what starts a server or ends the daemon."""


@pytest.mark.check("both are there, and -S starts no daemon", usual_s=1)
def test_programs(bench):
    """Control program and server, -v, -S."""
    daemon = bench.unstarted()
    beside = Path(bench.program).parent
    server = shutil.which(SERVER) or shutil.which(SERVER, path=f"{beside}:/usr/sbin:/usr/bin")
    version, static = daemon.say("", "-v"), daemon.say("", "-S", "-d")
    bench.saw(control=bench.program, server=server, version=said(version), static=said(static))
    assert server is not None
    assert daemon.control.daemon() is None


@pytest.mark.check("it does, untouched; answers as recorded with 535", usual_s=2)
def test_commands(bench):
    """The daemon starts in this compute mode; every command with no client."""
    daemon = bench.unstarted()
    absent = daemon.say("get_server_list")
    start_s = daemon.start()
    twice = daemon.say("", "-d")
    for command in COMMANDS:
        daemon.say(command.format(uuid=bench.gpu.uuid))
    process, servers = daemon.control.daemon(), daemon.control.servers()
    bench.saw(
        compute_mode=bench.gpu.compute_mode,
        listens_after_s=start_s,
        state=daemon.control.health().state.value,
        without_it=said(absent),
        second_start=said(twice),
        quit=said(daemon.say("quit -t 5")),
    )
    assert process is not None
    assert not servers
    assert (absent.exit, twice.exit) == (1, 1)
