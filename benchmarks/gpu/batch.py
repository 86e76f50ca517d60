"""A batch of jobs under two services: one job a GPU at a time, and jobs that share.

    python benchmarks/gpu/batch.py RESULTS [--pool POOL] [--seconds S]

Needs the profiles of a campaign in RESULTS. Each service first runs a job of each workload, so that
files are cached and workloads profiled, then all jobs at once. ``batch.json`` in RESULTS gets a
way to run them as soon as it is done; a later call goes on with the other. A job's slowdown is the
time of its iterations, without its start, over that of the same job when it had the GPU alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from dovetail.instances.datasets import read_dataset
from dovetail.instances.datasets.repository import REPOSITORY

WAYS: Final[Mapping[str, Sequence[str]]] = {
    "exclusive": ("--policy", "dedicated", "--max-jobs-per-gpu", "1"),
    "shared": ("--policy", "dovetail"),
}
GSLAS: Final = ("1.5", "2")
WORKLOADS: Final = ("gpt", "gemm", "lstm", "recommender", "convnet")
WATCH: Final = "sample_s=0.2,warm_up_s=1,settle_s=0.5,profile_s=2,profile_most_s=6,window_s=2"
START_S: Final = 60.0
JOB: Final = Path(__file__).with_name("job.py")
DOVETAIL: Final = (sys.executable, "-m", "dovetail")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--pool", default="gpu", help="cpu...: loops on cores")
    parser.add_argument("--seconds", type=float, default=8.0, help="that a job takes alone")
    given = parser.parse_args(arguments)
    path, on_gpu = given.results / "batch.json", given.pool.startswith("gpu")
    done = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    rates = _rates(given.results) if on_gpu else {"loop": 1 / _loop_s()}
    counts = {name: max(1, round(rate * given.seconds)) for name, rate in rates.items()}
    # Three jobs on a GPU need OR-Tools to be planned.
    most = () if find_spec("ortools") else ("--max-jobs-per-gpu", "2")
    for way, options in {**WAYS, "shared": (*WAYS["shared"], *most)}.items():
        if way not in done:
            print(f"batch: {way} begins", flush=True)
            done[way] = run(given.pool, options, counts, given.results / REPOSITORY)
            part = path.with_suffix(".part")
            part.write_text(json.dumps(done, indent=1), encoding="utf-8")
            os.replace(part, path)
    for line in lines(done):
        print(line, flush=True)


def lines(done: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """Yield the table of the ways to run the batch."""
    yield "| batch | jobs | makespan s | mean JCT s | gSLAs kept | mean slowdown |"
    yield "|---|--:|--:|--:|--:|--:|"
    alone: dict[str, list[float]] = {}
    for job in done.get("exclusive", ()):
        alone.setdefault(job["workload"], []).append(job["iterations_s"])
    for way, jobs in done.items():
        began_s = min(job["submitted_s"] for job in jobs)
        slow = [job["iterations_s"] / fmean(alone[job["workload"]]) for job in jobs]
        kept = sum(value <= job["gsla"] for value, job in zip(slow, jobs, strict=True))
        makespan = max(job["ended_s"] for job in jobs) - began_s
        jct = fmean(job["ended_s"] - job["submitted_s"] for job in jobs)
        figures = f"{makespan:.1f} | {jct:.1f} | {kept} of {len(jobs)} | {fmean(slow):.2f}"
        yield f"| {way} | {len(jobs)} | {figures} |"


def run(
    pool: str, options: Sequence[str], counts: Mapping[str, int], evidence: Path
) -> list[dict[str, Any]]:
    """Run the batch under a service of its own that knows which shares work; return its jobs."""
    with ExitStack() as leaving:
        folder = leaving.enter_context(tempfile.TemporaryDirectory(prefix="dove-"))
        home = Path(folder) / "home"
        home.mkdir(mode=0o700)
        if evidence.exists():
            shutil.copy(evidence, home)
        leaving.enter_context(_service(folder, pool, options))
        for name, count in counts.items():
            _say(folder, "wait", _submitted(folder, name, max(1, count), "1000", "warm"))
        _say(folder, "drain")
        ids = {
            _submitted(folder, name, count, gsla, f"{name}-{gsla}"): (name, float(gsla))
            for gsla in GSLAS
            for name, count in counts.items()
        }
        began_s = time.time()
        _say(folder, "drain", "--off")
        _say(folder, "wait", *ids)
        queued = {job["id"]: job for job in json.loads(_say(folder, "queue", "--all", "--json"))}
        return [
            {
                "workload": name,
                "gsla": gsla,
                "submitted_s": began_s,
                "started_s": queued[job]["started_s"],
                "ended_s": queued[job]["ended_s"],
                "iterations_s": _iterations_s(Path(folder) / f"{name}-{gsla:g}.txt"),
            }
            for job, (name, gsla) in ids.items()
        ]


@contextmanager
def _service(folder: str, pool: str, options: Sequence[str]) -> Iterator[None]:
    serve = (*DOVETAIL, "serve", "--pool", pool, "--watch", WATCH, *options)
    log = Path(folder) / "service.log"
    with log.open("w") as output:
        child = subprocess.Popen(
            serve, env=_env(folder), stdout=output, stderr=output, start_new_session=True
        )
    try:
        until_s = time.monotonic() + START_S
        while not (Path(folder) / "home" / "service.json").exists():
            if child.poll() is not None or time.monotonic() > until_s:
                raise SystemExit(f"batch: the service did not start: {log.read_text()[-500:]}")
            time.sleep(0.05)
        yield
    finally:
        # Only a service without jobs ends its MPS daemon.
        if left := _unfinished(folder):
            _say(folder, "cancel", *left)
            with suppress(subprocess.CalledProcessError):
                _say(folder, "wait", *left)
        child.send_signal(signal.SIGTERM)
        child.wait()


def _unfinished(folder: str) -> list[str]:
    """Return the jobs that are not over, after an interruption."""
    try:
        return [job["id"] for job in json.loads(_say(folder, "queue", "--json"))]
    except subprocess.CalledProcessError:
        return []


def _submitted(folder: str, name: str, count: int, gsla: str, as_name: str) -> str:
    options = ("--name", as_name, "--workload", name, "--gsla", gsla)
    progress = ("--progress", r"step (\d+)", "--output", str(Path(folder) / f"{as_name}.txt"))
    command = (sys.executable, str(JOB), name, str(count))
    return _say(folder, "submit", *options, *progress, "--", *command).strip()


def _say(folder: str, *command: str) -> str:
    done = subprocess.run(
        (*DOVETAIL, *command), env=_env(folder), check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def _env(folder: str) -> dict[str, str]:
    return {**os.environ, "DOVETAIL_HOME": str(Path(folder) / "home")}


def _iterations_s(output: Path) -> float:
    found = re.search(r"iterations in ([\d.]+) s", output.read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit(f"batch: {output.stem} did not end: {output.read_text()[-500:]}")
    return float(found[1])


def _rates(results: Path) -> dict[str, float]:
    """Return the iterations per second of each workload alone, as measured."""
    alone = {
        one.workload: one.throughput
        for one in read_dataset(results).profiles
        if one.share is None and one.throughput is not None
    }
    return {name: alone[name] for name in WORKLOADS if name in alone}


def _loop_s() -> float:
    began_s = time.monotonic()
    for _ in range(100):
        sum(range(20_000))
    return (time.monotonic() - began_s) / 100


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("batch: interrupted: the next call begins with the same way")
