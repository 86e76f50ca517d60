"""Clients of a daemon: lists, settings, and the cost of a query."""

import os
import time

import pytest

from dovetail.executor.mps import processes
from dovetail.executor.mps.processes import SERVER
from dovetail.executor.pools.gpu import OUTSIDE_S

from .bench import said

COMMANDS = """
get_server_list
get_client_list {server}
get_client_list {client}
get_server_status {server}
get_device_client_list
get_device_client_list {server}
ps
ps -p {server}
ps -p {client}
lspart
get_default_active_thread_percentage
get_active_thread_percentage {server}
get_default_device_pinned_mem_limit 0
get_default_device_pinned_mem_limit {uuid}
get_device_pinned_mem_limit {server} 0
get_device_pinned_mem_limit {server} {uuid}
get_default_client_priority
"""


@pytest.mark.check("one pid a line, those of /proc; ACTIVE", usual_s=5)
def test_clients(bench, daemon):
    """Every command with one and two clients; pids are compared with /proc."""
    listed, started = [], []
    for _ in range(2):
        client = daemon.client("idle")
        client.ready()
        server = daemon.server()
        for command in COMMANDS.strip().splitlines():
            daemon.say(command.format(server=server, client=client.pid, uuid=bench.gpu.uuid))
        listed.append(sorted(daemon.control.clients(server)))
        started.append(sorted(one.pid for one in bench.clients))
    process = processes.look(server)
    bench.saw(
        server_is=process and process.arguments,
        state=daemon.status(server),
        listed=listed,
        started=started,
        device_client_list=said(daemon.say("get_device_client_list")),
    )
    assert process is not None
    assert process.runs(SERVER)
    assert listed == started
    assert bench.values["state"] in ("active", "unknown")


@pytest.mark.check("they reach later clients", usual_s=4)
def test_settings(bench, daemon):
    """A server's percentage and memory limit, by ordinal and UUID."""
    before = daemon.client("idle").ready()
    server = daemon.server()
    for command in (
        "set_default_active_thread_percentage 40",
        f"set_active_thread_percentage {server} 30",
        f"get_active_thread_percentage {server}",
        f"set_device_pinned_mem_limit {server} 0 4G",
        f"get_device_pinned_mem_limit {server} 0",
    ):
        daemon.say(command)
    later = daemon.client("report", share=50).ready()
    daemon.say(f"set_device_pinned_mem_limit {server} {bench.gpu.uuid} 3G")
    daemon.say(f"get_device_pinned_mem_limit {server} {bench.gpu.uuid}")
    last = daemon.client("report").ready()
    bench.saw(
        before=seen(before), at_30_percent_own_50_and_4_GiB=seen(later), by_UUID_3_GiB=seen(last)
    )
    assert later["sms"] < before["sms"]
    # The limit shows in what is free; the total stays that of the GPU.
    assert later["free_mib"] <= 4096
    assert last["free_mib"] <= 3072


def seen(ready):
    return {key: ready[key] for key in ("sms", "total_mib", "free_mib")}


@pytest.mark.check(f"less than {OUTSIDE_S:.0f} s", usual_s=10)
def test_listing(bench, daemon):
    """Seconds until a client is listed, by MPS and by NVML."""
    found = []
    for _ in range(3):
        client = daemon.client("idle")
        found.append(first_seen(bench, daemon, client))
        client.ready()
    bench.saw(**{f"by_{by}_s": [one.get(by) for one in found] for by in ("MPS", "NVML")})
    assert max(one.get("MPS", OUTSIDE_S) for one in found) < OUTSIDE_S


def first_seen(bench, daemon, client):
    """Return the seconds from a program's start until MPS and NVML list it."""
    found = {}
    while (after_s := time.monotonic() - client.started) < OUTSIDE_S and len(found) < 2:
        if client.pid in daemon.control.all_clients():
            found.setdefault("MPS", after_s)
        if client.pid in bench.nvml.processes(bench.gpu.uuid):
            found.setdefault("NVML", after_s)
        if "MPS" in found and after_s > 3:
            break
    return found


@pytest.mark.check("1 and 0", usual_s=3)
def test_attribute(bench, daemon):
    """Attribute 133 with and without MPS."""
    under = daemon.client("report", name="under MPS").ready()
    alone = bench.alone("report", name="without MPS").ready()
    bench.saw(in_a_client=under["mps"], without_a_daemon=alone["mps"], cuda=under["driver"])
    assert under["mps"]
    assert not alone["mps"]


@pytest.mark.check("6 ms, 2 ms of them CPU (up to 25 ms counts as that)", usual_s=3)
def test_look(bench, daemon):
    """What a look at MPS costs with a server and two clients."""

    def clocks_s():
        times = os.times()
        return times.elapsed, times.children_user + times.children_system

    for _ in range(2):
        daemon.client("idle").ready()
    looks, before = 20, clocks_s()
    for _ in range(looks):
        daemon.control.health()
    wall_ms, cpu_ms = (
        (now - then) / looks * 1000 for now, then in zip(clocks_s(), before, strict=True)
    )
    bench.saw(wall_ms=wall_ms, cpu_ms=cpu_ms)
    assert wall_ms < 25
