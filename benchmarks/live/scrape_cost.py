"""What a scrape costs a full service, and whether it delays decisions.

    python benchmarks/live/scrape_cost.py [--waiting 10000] [--gpus 128] [--seconds 60]

Two jobs share each of the simulated GPUs and others wait; some end each second. The service runs
for a time without a scrape and for as long with one each second.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
from load import ME
from service_process import ServiceProcess, Setup, Simulated

from dovetail.executor.jobs.specs import JobSpec
from dovetail.executor.live.observation.tracks import WatchOptions
from dovetail.instances.instance import Instance

_SOON = WatchOptions(warm_up_s=0.5, settle_s=0.5, profile_s=3.0, window_s=10.0)
_AT_ONCE = 1000
_DEADLINE_S = 300.0


def main() -> None:
    """Print the cost of scrapes, and the decisions without and with them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--gpus", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    print(f"load average {psutil.getloadavg()[0]:.1f} on {psutil.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        truth = Instance.from_data(_truth(options.gpus))
        setup = Setup(folder, Simulated(truth), watching=_SOON, sample_s=1.0, socket=folder / "s")
        service = ServiceProcess(setup)
        transport = httpx.HTTPTransport(uds=str(folder / "s"))
        try:
            with httpx.Client(transport=transport, base_url="http://dovetail", timeout=60) as http:
                _fill(service, options.gpus, options.waiting)
                for every_s in (None, 1.0):
                    _watch(http, service.pid, options.seconds, every_s)
        finally:
            service.kill()


def _truth(gpus: int) -> dict[str, Any]:
    node = {"id": "n0", "gpu_count": gpus, "gpu": {"model": "SimGPU", "memory_mib": 16000.0}}
    metrics = {"sm_active": 0.4, "sm_occupancy": 0.3, "dram_active": 0.2, "pcie_rx_bytes_s": 1e8}
    one = {"memory_mib": 4000.0, "throughput": {"100": 50.0}, "power_w": 200.0, "metrics": metrics}
    pairs = (("a", "a"), ("a", "b"), ("b", "b"))
    return {
        "format": "dovetail-instance/1",
        "name": "full",
        "cluster": {"nodes": [node], "assumed": {"pair": 1.1}},
        "workloads": {"a": one, "b": one},
        "jobs": [],
        "slowdowns": [{"pair": p, "slowdown": [1.1, 1.1], "power_w": 300.0} for p in pairs],
    }


def _fill(service: ServiceProcess, gpus: int, waiting: int) -> None:
    """Submit jobs until every GPU has two and so many wait."""
    total = 2 * gpus + waiting
    for first in range(0, total, _AT_ONCE):
        specs = [_spec(k) for k in range(first, min(first + _AT_ONCE, total))]
        service.ask("submit", specs, ME)
    began = time.monotonic()
    while sum(len(device.jobs) for device in service.ask("service").devices) < 2 * gpus:
        if time.monotonic() > began + _DEADLINE_S:
            print("not every GPU has two jobs")
            break
        time.sleep(1.0)


def _spec(k: int) -> JobSpec:
    work_s = 60 + k * 7 % 300
    return JobSpec(
        command=("train", f"work_s={work_s}"),
        workload="ab"[k % 2],
        owner=ME,
        cwd="/",
        env={},
        gsla=2.0,
        name=f"case {k}",
    )


def _watch(http: httpx.Client, pid: int, seconds: float, every_s: float | None) -> None:
    """Let the service work, scrape it as often as told, and print what came of it."""
    process, before = psutil.Process(pid), http.get("/metrics").text
    times, size, series = [], 0, 0
    cpu = process.cpu_times()
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        if every_s is None:
            time.sleep(seconds)
            continue
        asked = time.perf_counter()
        text = http.get("/metrics").text
        times.append(time.perf_counter() - asked)
        size, series = len(text), sum(not line.startswith("#") for line in text.splitlines())
        time.sleep(max(0.0, every_s - times[-1]))
    took, after = process.cpu_times(), http.get("/metrics").text
    spent_s = took.user + took.system - cpu.user - cpu.system
    count = _figure(after, "decision_seconds_count") - _figure(before, "decision_seconds_count")
    total = _figure(after, "decision_seconds_sum") - _figure(before, "decision_seconds_sum")
    journal = _figure(after, "journal_events_total") - _figure(before, "journal_events_total")
    print(f"scrapes {len(times)}; CPU of the service {100 * spent_s / seconds:.0f} % of a core")
    print(
        f"  decisions {count:.0f}, mean {1e3 * total / max(count, 1):.1f} ms; events {journal:.0f}"
    )
    if times:
        print(
            f"  a scrape: median {1e3 * statistics.median(times):.0f} ms, "
            f"most {1e3 * max(times):.0f} ms, {size / 2**10:.0f} KiB, {series} series"
        )


def _figure(text: str, name: str) -> float:
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("dovetail_"))
    return next(float(value) for key, value in lines if key == f"dovetail_{name}")


if __name__ == "__main__":
    main()
