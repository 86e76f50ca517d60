"""Checks of programs, daemon and clients that break nothing."""

from __future__ import annotations

import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Final

from dovetail.executor.live.first_contact.bench import (
    CLIENT,
    Bench,
    Client,
    CouldNotTryError,
    Daemon,
)
from dovetail.executor.live.first_contact.seen import Checking, Seen
from dovetail.executor.live.mps import processes
from dovetail.executor.live.mps.client import PERCENTAGE
from dovetail.executor.live.mps.control import SERVER, Spoken
from dovetail.executor.live.mps.directories import make_base, make_private
from dovetail.executor.live.mps.health import health_of
from dovetail.executor.live.pools.gpu import OUTSIDE_S
from dovetail.executor.live.pools.gpu_health import WATCH_S
from dovetail.executor.live.splits import reported_sms

NOBODY: Final = 65534

WITHOUT_CLIENTS: Final = (
    "help",
    "version",
    "lspart",
    "get_server_list",
    "get_client_list",
    "get_client_list 123",
    "get_server_status 123",
    "get_device_client_list",
    "get_device_client_list 123",
    "ps",
    "ps -p 123",
    "terminate_client 123 456",
    "shutdown_server 123",
    "shutdown_server 123 -f",
    "set_default_active_thread_percentage 40",
    "set_default_active_thread_percentage 12.5",
    "set_default_active_thread_percentage 0",
    "set_default_active_thread_percentage x",
    "get_default_active_thread_percentage",
    "set_active_thread_percentage 123 40",
    "get_active_thread_percentage 123",
    "get_default_device_pinned_mem_limit 0",
    "set_default_device_pinned_mem_limit 0 3G",
    "get_default_device_pinned_mem_limit 0",
    "set_default_device_pinned_mem_limit {uuid} 2G",
    "get_default_device_pinned_mem_limit {uuid}",
    "set_default_client_priority 1",
    "get_default_client_priority",
)
WITH_CLIENTS: Final = (
    "get_server_list",
    "get_client_list {server}",
    "get_client_list {client}",
    "get_server_status {server}",
    "get_device_client_list",
    "get_device_client_list {server}",
    "ps",
    "ps -p {server}",
    "ps -p {client}",
    "lspart",
    "get_default_active_thread_percentage",
    "get_active_thread_percentage {server}",
    "get_default_device_pinned_mem_limit 0",
    "get_default_device_pinned_mem_limit {uuid}",
    "get_device_pinned_mem_limit {server} 0",
    "get_device_pinned_mem_limit {server} {uuid}",
    "get_default_client_priority",
)


def programs(bench: Bench) -> Seen:
    """Look for the two programs, and at what they say to ``-v`` and ``-S``."""
    server = shutil.which(SERVER) or shutil.which(SERVER, path="/usr/sbin:/usr/bin")
    daemon = _unstarted(bench)
    version, static = daemon.say("", "-v"), daemon.say("", "-S", "-d")
    refused = static.exit != 0 and daemon.control.daemon() is None
    told = f"{bench.program}, {server or 'no server beside it'}; -v: {said(version)}; -S: "
    values = {"server": server, "version": said(version), "static": said(static)}
    return Seen(told + said(static), server is not None and refused, values)


def commands(bench: Bench) -> Seen:
    """Start a daemon, and send every command while it has no client."""
    daemon = _unstarted(bench)
    absent = daemon.say("get_server_list")
    seconds = daemon.start()
    twice = daemon.say("", "-d")
    for command in WITHOUT_CLIENTS:
        daemon.say(command.format(uuid=bench.gpu.uuid))
    control = daemon.control
    mine, servers, health = control.daemon(), control.servers(), health_of(control).state
    left = daemon.say("quit -t 5")
    told = (
        f"listens after {seconds:.2f} s in compute mode {bench.gpu.compute_mode}; "
        f"without it: {said(absent)}; second start: {said(twice)}; quit: {said(left)}"
    )
    fine = mine is not None and not servers and absent.exit == 1 and twice.exit == 1
    return Seen(told, fine, {"start_s": seconds, "state": health.value})


def clients(bench: Bench) -> Seen:
    """Send every command with one client and with two, and compare pids with /proc."""
    daemon = bench.daemon()
    there: list[Client] = []
    fine = True
    for _ in range(2):
        client = daemon.client("idle")
        client.ready()
        there.append(client)
        server = daemon.server()
        for command in WITH_CLIENTS:
            daemon.say(command.format(server=server, client=client.pid, uuid=bench.gpu.uuid))
        fine &= set(daemon.control.clients(server)) == {one.pid for one in there}
    process = processes.look(server)
    is_server = process is not None and process.runs(SERVER)
    state = daemon.status(server)
    listed = daemon.control.clients(server)
    layout = daemon.say("get_device_client_list")
    told = (
        f"server {'is' if is_server else 'is not'} {SERVER} in /proc, {state}; "
        f"lists {'hold' if fine else 'do not hold'} the pids of /proc; "
        f"get_device_client_list: {said(layout)}"
    )
    values = {"state": state, "listed": list(listed), "clients": [one.pid for one in there]}
    return Seen(told, fine and is_server and state in ("ACTIVE", "not told"), values)


def settings(bench: Bench) -> Seen:
    """Change a server's settings, and see which clients they reach."""
    daemon = bench.daemon()
    before = daemon.client("idle")
    whole = before.ready()
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
    told = (
        f"before: {whole['sms']} SMs, {whole['total_mib']:.0f} MiB; after 30 % and 4 GiB, with "
        f"50 % of its own: {later['sms']} SMs, {later['total_mib']:.0f} MiB; after 3 GiB by UUID: "
        f"{last['sms']} SMs, {last['total_mib']:.0f} MiB"
    )
    lower = later["sms"] < whole["sms"] and later["total_mib"] <= 4096
    return Seen(told, lower, {"before": dict(whole), "later": dict(later), "last": dict(last)})


def listing(bench: Bench) -> Seen:
    """Time from a program's start until MPS and NVML list it."""
    daemon = bench.daemon()
    found = []
    for _ in range(3):
        client = daemon.client("idle")
        found.append(_first_seen(bench, daemon, client))
        client.ready()
    slowest = max(one["mps_s"] or OUTSIDE_S for one in found)
    earlier = sum((one["nvml_s"] or 1e9) < (one["mps_s"] or 1e9) for one in found)
    told = (
        f"listed by MPS after {', '.join(_seconds(one['mps_s']) for one in found)}, by NVML after "
        f"{', '.join(_seconds(one['nvml_s']) for one in found)}; NVML first in {earlier} of 3"
    )
    return Seen(told, slowest < OUTSIDE_S, {"starts": found})


def attribute(bench: Bench) -> Seen:
    """Read attribute 133 in a client, in a process without MPS, and one with a wrong directory."""
    under = bench.daemon().client("report", name="under MPS").ready()
    alone = bench.alone("report", name="without MPS").ready()
    told = f"{int(under['mps'])} in a client, {int(alone['mps'])} without a daemon"
    values = {"client": under["mps"], "alone": alone["mps"], "cuda": under["driver"]}
    return Seen(told, under["mps"] and not alone["mps"], values)


def shares(bench: Bench) -> Seen:
    """Read the SM count of a client at every percentage."""
    daemon = bench.daemon()
    daemon.client("idle", name="holder").ready()
    with ThreadPoolExecutor(4) as four:
        table = dict(four.map(lambda share: _sms_at(daemon, share), range(1, 101)))
    counts = [table[share] for share in sorted(table)]
    rises = all(one <= other for one, other in pairwise(counts))
    whole = bench.gpu.sms or counts[-1]
    formula = [reported_sms(share, whole) for share in sorted(table)]
    odd = [share for share, a, b in zip(sorted(table), counts, formula, strict=True) if a != b]
    told = (
        f"{counts[0]} SMs at 1 %, {table[50]} at 50 %, {counts[-1]} of {whole} at 100 %; "
        f"{'never falls' if rises else 'FALLS somewhere'}; "
        f"{len(odd)} of 100 differ from what others saw on an H200"
    )
    by_name = {str(share): table[share] for share in sorted(table)}
    kept = rises and counts[-1] == whole and counts[0] < whole
    return Seen(told, kept, {"sms": by_name, "differ": odd})


def cost_of_looking(bench: Bench) -> Seen:
    """Time what the service asks every daemon every other second."""
    daemon = bench.daemon()
    for _ in range(2):
        daemon.client("idle").ready()
    looks, cpu, begun = 20, _children_cpu(), time.monotonic()
    for _ in range(looks):
        health_of(daemon.control)
    wall_ms = (time.monotonic() - begun) / looks * 1000
    cpu_ms = (_children_cpu() - cpu) / looks * 1000
    told = f"{wall_ms:.1f} ms a look with two clients, {cpu_ms:.1f} ms of them CPU"
    return Seen(told, wall_ms < 25, {"wall_ms": wall_ms, "cpu_ms": cpu_ms, "every_s": WATCH_S})


def second_user(bench: Bench) -> Seen:
    """Let a client of another user come to a server in use."""
    if os.geteuid() != 0:
        raise CouldNotTryError("it needs root, to start a client of another user")
    daemon = bench.daemon()
    first = daemon.client("idle", name="first user")
    first.ready()
    for path in (daemon.base, *daemon.base.rglob("*")):
        path.chmod(0o777)
    second = _of_nobody(bench, daemon)
    early = second.wait("ready", "error", within_s=5.0)
    daemon.say("get_server_list")
    first.leave()
    begun = time.monotonic()
    late = second.wait("ready", "error", within_s=10.0)
    daemon.say("get_server_list")
    first_word = early or late or {}
    if not second.events("started") or first_word.get("call") == "dlopen":
        raise CouldNotTryError(f"user {NOBODY} cannot run Python with CUDA here")
    words = "waits for 5 s" if early is None else f"is told {early['event']} at once"
    after = f"{late['event']} {time.monotonic() - begun:.1f} s" if late else "nothing for 10 s"
    told = f"the second user's client {words}; {after} after the first has left"
    return Seen(told, early is None and late is not None)


def said(spoken: Spoken) -> str:
    """Return an answer of the control program on one line."""
    words = " / ".join(line.strip() for line in (spoken.out + spoken.err).splitlines() if line)
    return f"{words or 'nothing'} (exit {spoken.exit})"


def _unstarted(bench: Bench) -> Daemon:
    """Return a daemon that does not run, its directory made."""
    daemon = bench.unstarted()
    make_base(daemon.base)
    make_private(daemon.control.directory, os.geteuid())
    return daemon


def _of_nobody(bench: Bench, daemon: Daemon) -> Client:
    """Start a client of another user, with files that every user can read."""
    program = daemon.base / CLIENT.name
    program.write_bytes(CLIENT.read_bytes())
    program.chmod(0o644)
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    command = [python, "-I", "-S", str(program)]
    try:
        return bench.start("second user", ["idle"], daemon.environment(), NOBODY, command)
    except OSError as error:
        raise CouldNotTryError(f"user {NOBODY} cannot run {python}: {error.strerror}") from None


def _first_seen(bench: Bench, daemon: Daemon, client: Client) -> dict[str, float | None]:
    found: dict[str, float | None] = {"mps_s": None, "nvml_s": None}
    end = time.monotonic() + OUTSIDE_S
    while time.monotonic() < end and (found["mps_s"] is None or found["nvml_s"] is None):
        if found["mps_s"] is None and client.pid in daemon.control.all_clients():
            found["mps_s"] = time.monotonic() - client.started
        if found["nvml_s"] is None and client.pid in bench.nvml.processes(bench.gpu.uuid):
            found["nvml_s"] = time.monotonic() - client.started
        if found["mps_s"] is not None and time.monotonic() - client.started > 3:
            break
    return found


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} s"


def _sms_at(daemon: Daemon, share: int) -> tuple[int, int]:
    client = daemon.client("report", name=f"at {share} %", within={PERCENTAGE: str(share)})
    found = int(client.ready()["sms"])
    client.leave()
    return share, found


def _children_cpu() -> float:
    times = os.times()
    return times.children_user + times.children_system


CHECKS: Final = (
    Checking(
        "programs",
        (1,),
        "control program and server, -v, -S",
        "both are there, and -S is rejected",
        programs,
        30,
        1,
    ),
    Checking(
        "commands",
        (2, 3),
        "the daemon starts in this compute mode; every command with no client",
        "it does, untouched; answers as recorded with 535",
        commands,
        60,
        2,
    ),
    Checking(
        "clients",
        (3, 4),
        "every command with one and two clients; pids beside /proc",
        "one pid a line, those of /proc; ACTIVE",
        clients,
        90,
        5,
    ),
    Checking(
        "settings",
        (3,),
        "a server's percentage and memory limit, by ordinal and UUID",
        "they reach later clients",
        settings,
        60,
        4,
    ),
    Checking(
        "listing",
        (5,),
        "seconds until a client is listed, by MPS and by NVML",
        f"less than {OUTSIDE_S:.0f} s",
        listing,
        60,
        10,
    ),
    Checking(
        "attribute",
        (7,),
        "attribute 133 with and without MPS",
        "1 and 0",
        attribute,
        60,
        3,
    ),
    Checking(
        "shares",
        (6,),
        "SMs that a client sees at every percentage",
        "never fewer at a higher one, all at 100 %",
        shares,
        240,
        40,
    ),
    Checking(
        "look",
        (23,),
        "what a look at MPS costs with a server and two clients",
        "6 ms, 2 ms of them CPU (up to 25 ms counts as that)",
        cost_of_looking,
        60,
        3,
    ),
)
LAST: Final = Checking(
    "second-user",
    (22,),
    "a client of a second user on a server in use",
    "it hangs until the first user's clients have left",
    second_user,
    60,
    12,
    fault=True,
)
