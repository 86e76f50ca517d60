"""An hour of a campaign under a real Prometheus: scrapes, series, size, time, memory.

    python benchmarks/live/monitored_hour.py [--seconds 3600] [--every 5] [--keep FOLDER]

Jobs come to a service with eight simulated GPUs, each with its own work and some with a gSLA; some
fail once, are cancelled, held or paused, and now and then a GPU is drained. Prometheus scrapes the
service over TCP with a token. At the end it is asked every query of the dashboard and of the
alerts. The program and the service need less than a tenth of a core.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import pwd
import random
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil
from prometheus_server import (
    PrometheusServer,
    alert_rules,
    dashboard,
    dashboard_queries,
    free_address,
    prometheus,
)

_MINUTE_S = 60.0
_WORKLOADS = 6
_APART_S = 22.0
_WORK_S = (60.0, 420.0)


class Row(NamedTuple):
    """What is seen once in a while; memory in MiB, size of a scrape in KiB, time in ms."""

    minute: float
    rss: float
    cpu: float
    holding: int
    waiting: int
    series: int
    kib: float
    ms: float


def main() -> None:
    """Print a row now and then, and the figures of the whole time at the end."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two scrapes")
    parser.add_argument("--keep", type=Path, help="folder to keep the files in")
    options = parser.parse_args()
    print(f"load average {psutil.getloadavg()[0]:.1f} on {psutil.cpu_count()} cores")
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        token = secrets.token_hex(16)
        process, url = stack.enter_context(_service(folder, token))
        target = url.removeprefix("http://")
        server = stack.enter_context(prometheus(folder, target, token, options.every))
        http = stack.enter_context(
            httpx.Client(
                base_url=url, headers={"Authorization": f"Bearer {token}"}, trust_env=False
            )
        )
        print(f"| {' | '.join(Row._fields)} |\n|{'--:|' * len(Row._fields)}")
        for row in _campaign(psutil.Process(process.pid), server, http, options.seconds):
            cells = (f"{v:,.1f}" if isinstance(v, float) else f"{v:,}" for v in row)
            print(f"| {' | '.join(cells)} |", flush=True)
        _report(server, options.seconds)


@contextlib.contextmanager
def _service(folder: Path, token: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    dovetail, tokens = [sys.executable, "-m", "dovetail"], folder / "tokens"
    tokens.write_text(f"{pwd.getpwuid(os.getuid()).pw_name} {token}\n")
    tokens.chmod(0o600)
    truth = folder / "truth.json"
    made = ["generate", "--jobs", "8", "--workloads", str(_WORKLOADS), "--gpus", "8"]
    subprocess.run([*dovetail, *made, "--seed", "3", "--no-gangs", "-o", str(truth)], check=True)
    options = ["--pool", f"simulated:{truth}", "--directory", str(folder / "state")]
    options += ["--listen", (address := free_address()), "--tokens", str(tokens)]
    options += ["--watch", "warm_up_s=2,settle_s=2,profile_s=10,window_s=15"]
    options += ["--socket", str(folder / "api.sock")]
    log = (folder / "service.log").open("wb")
    with log, subprocess.Popen([*dovetail, "serve", *options], stdout=log, stderr=log) as process:
        try:
            _await(address, process)
            yield process, f"http://{address}"
        finally:
            process.terminate()


def _await(address: str, process: subprocess.Popen[bytes]) -> None:
    host, _, port = address.partition(":")
    while process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
            return
        time.sleep(0.1)
    raise SystemExit("the service did not start: see service.log")


def _campaign(
    process: psutil.Process, server: PrometheusServer, http: httpx.Client, seconds: float
) -> Iterator[Row]:
    """Submit jobs and disturb them until the time is over; yield a row each minute."""
    chance, began = random.Random(36), time.monotonic()
    process.cpu_percent()
    look_s = submit_s = began
    while (now_s := time.monotonic()) < began + seconds:
        if now_s >= submit_s:
            _happen(http, chance)
            submit_s = now_s + chance.expovariate(1 / _APART_S)
        if now_s >= look_s:
            yield _row(process, server, http, (now_s - began) / _MINUTE_S)
            look_s = now_s + min(_MINUTE_S, seconds / 4)
        time.sleep(max(0.0, min(submit_s, look_s, began + seconds) - time.monotonic()))
    yield _row(process, server, http, seconds / _MINUTE_S)


def _happen(http: httpx.Client, chance: random.Random) -> None:
    """Submit a job, and now and then do something to another."""
    work_s = chance.uniform(*_WORK_S)
    status = int(chance.random() < 0.1)
    job = {
        "command": ["train", f"work_s={work_s:.0f}", f"status={status}"],
        "workload": f"w{chance.randrange(_WORKLOADS)}",
        "cwd": "/",
        "name": f'case "{chance.randrange(1000)}" \\ λ',
        "gsla": chance.choice([None, None, 1.3, 1.5, 2.0]),
        "retries": status,
        "grace_s": 1.0,
    }
    http.post("/v1/jobs", json={"jobs": [job]}).raise_for_status()
    jobs = http.get("/v1/jobs").json()
    one = chance.choice(jobs)["id"]
    deed = chance.choice(["cancel", "hold", "release", "pause", "resume", "requeue", "drain"])
    if chance.random() > 0.2:
        return
    if deed == "drain":
        devices = [device["id"] for device in http.get("/v1/service").json()["devices"]]
        on = {"gpus": [chance.choice(devices)], "on": chance.random() < 0.5}
        http.post("/v1/drain", json=on if on["on"] else {"gpus": devices, "on": False})
    else:
        # Not every state of a job allows each.
        http.post(f"/v1/jobs/{one}/{deed}")
        if deed == "pause":
            http.post(f"/v1/jobs/{one}/resume")


def _row(
    process: psutil.Process, server: PrometheusServer, http: httpx.Client, minute: float
) -> Row:
    began = time.perf_counter()
    text = http.get("/metrics").text
    took_s = time.perf_counter() - began
    states = http.get("/v1/service").json()["jobs"]
    waiting = states.get("waiting", 0) + states.get("submitted", 0)
    over = sum(states.get(state, 0) for state in ("finished", "failed", "cancelled"))
    return Row(
        minute,
        process.memory_info().rss / 2**20,
        process.cpu_percent(),
        sum(states.values()) - waiting - over,
        waiting,
        sum(not line.startswith("#") for line in text.splitlines()),
        len(text.encode()) / 2**10,
        1e3 * took_s,
    )


def _report(server: PrometheusServer, seconds: float) -> None:
    span = f"[{math.ceil(seconds) + 60}s]"
    up = 'up{job="dovetail"}'
    scrapes = server.value(f"count_over_time({up}{span})")
    good = server.value(f"sum_over_time({up}{span})")
    print(f"scrapes {scrapes:.0f}, failed {scrapes - good:.0f}")
    for name, unit in (("scrape_duration_seconds", "s"), ("scrape_samples_scraped", "samples")):
        mean = server.value(f"avg_over_time({name}{span})")
        most = server.value(f"max_over_time({name}{span})")
        print(f"{name}: mean {mean:.4g}, most {most:.4g} {unit}")
    head = server.get("status/tsdb")["headStats"]
    print(f"series in Prometheus over the whole time: {head['numSeries']}")
    ended = server.ask("sum by (state) (dovetail_jobs_ended_total)")
    print("ended:", {one["metric"]["state"]: one["value"][1] for one in ended})
    for what in ("restarts", "promises_broken", "decision_seconds_count"):
        name = f"dovetail_{what}" + "_total" * (not what.endswith("_count"))
        print(f"{name}: {server.value(name):.0f}")
    empty, queries = [], dashboard_queries(dashboard())
    for name, query in queries.items():
        if not server.ask(query):
            empty.append(name)
    print(f"dashboard: {len(queries)} queries, without data: {empty or 'none'}")
    rules = alert_rules()
    fired = [rule["alert"] for rule in rules if server.ask(rule["expr"])]
    print(f"alerts: {len(rules)} expressions evaluated, true now: {fired or 'none'}")


if __name__ == "__main__":
    main()
