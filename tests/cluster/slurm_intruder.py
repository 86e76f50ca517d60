"""Attempts to use the Ray of a Slurm pool without its token."""

from __future__ import annotations

import re
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psutil
import pytest

from dovetail.cluster.options import RayPlan
from dovetail.cluster.ray_finder import RayFinder
from dovetail.cluster.slurm.ray_parts import environment, ray_start
from dovetail.instances.errors import UnsupportedError
from tests.executor.waiting import LIMIT_S


def assert_refuses_what_lacks_the_token(bench):
    """Head and nodes do; the last attempts lack only the token, which only its user can read."""
    files = bench.home / "slurm"
    shown, ports = bench.slurm.ask("scontrol", "show", "job", bench.pilot()), set()
    for process in rays(bench.home):
        with suppress(psutil.Error):  # it may end meanwhile
            shown += " ".join(process.cmdline())
            ports.update(listening(process))
    assert len(ports) > 5
    for answer in ThreadPoolExecutor(50).map(answers, ports):
        assert b"dovetail" not in answer
    token = (files / "token").read_text()
    assert token not in shown
    assert files.stat().st_mode & 0o077 == 0
    assert {(files / name).stat().st_mode & 0o077 for name in ("token", "ca.key")} == {0}
    head = (files / "head").read_text().strip()
    env = environment(files, files, head.partition(":")[0])
    none = {"RAY_AUTH_MODE": "disabled"}
    wrong = {"RAY_AUTH_TOKEN_PATH": "/dev/null", "RAY_AUTH_TOKEN": "0" * 64}
    plan = RayPlan(address=head, open=True)
    for lacking in (none, wrong):
        with pytest.raises(UnsupportedError, match="the cluster requires its token"):
            RayFinder(bench.home / "intruder", plan, {**env, **lacking}).start()
    joins = subprocess.run(
        ray_start("127.0.0.2", bench.home / "r", f"--address={head}"),
        env={**env, **wrong},
        capture_output=True,
        timeout=LIMIT_S,
    )
    assert joins.returncode != 0


def rays(home):
    """Return the processes of Ray, on the head and on nodes."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it may end meanwhile
            if re.search(r"/ray/core/|ray::|dashboard", " ".join(process.cmdline())) and str(
                home
            ) in process.environ().get("RAY_AUTH_TOKEN_PATH", ""):
                found.append(process)
    return found


def listening(process):
    found = process.net_connections("tcp")
    return [(one.laddr.ip, one.laddr.port) for one in found if one.status == "LISTEN"]


def answers(where):
    """Return the answers of a port to what controllers of earlier versions sent."""
    answered = b""
    for sent in (b"POST /exchange HTTP/1.1\r\n\r\n", b'{"id": 1}\n' + bytes(1000)):
        with socket.create_connection(where, 5) as connection:
            connection.settimeout(2)
            with suppress(OSError):
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                answered += connection.recv(4096)
    return answered
