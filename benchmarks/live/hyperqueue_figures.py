"""The figures of ``overhead.py`` for HyperQueue, run by a Python that has it.

    python hyperqueue_figures.py FOLDER JOBS SUBMISSIONS SECONDS

One server and one worker with one core, in this process, by ``hyperqueue.LocalCluster``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

STAMP = 'echo $EPOCHREALTIME >> "$1"; sleep 0.05; echo $EPOCHREALTIME >> "$1"'

FIGURES = "figures.json"
"""The file in the folder in which they are left."""


def main(folder: Path, jobs: int, submissions: int, seconds: float) -> dict[str, object]:
    """Return times in seconds, as written by the jobs, and CPU time as a part of a core."""
    from hyperqueue import Job, LocalCluster
    from hyperqueue.cluster import WorkerConfig

    def program(*arguments: str) -> Job:
        job = Job()
        job.program(arguments, stdout=None, stderr=None)
        return job

    with LocalCluster(str(folder / "server"), WorkerConfig(cores=1)) as cluster:
        client = cluster.client()
        time.sleep(1.0)
        one_by_one, submitted = folder / "launch", []
        for _ in range(jobs):
            submitted.append(time.time())
            done = client.submit(program("bash", "-c", STAMP, "bash", str(one_by_one)))
            client.wait_for_jobs([done])
        queued = folder / "gaps"
        stamped = program("bash", "-c", STAMP, "bash", str(queued))
        client.wait_for_jobs([client.submit(stamped) for _ in range(jobs)])
        client.submit(program("sleep", "600"))
        began = time.perf_counter()
        for _ in range(submissions):
            client.submit(program("true"))
        took = time.perf_counter() - began
        time.sleep(2.0)
        before = sum(os.times()[:2])
        time.sleep(seconds)
        idle = (sum(os.times()[:2]) - before) / seconds
        return {
            "version": version("hyperqueue"),
            "submitted": submitted,
            "launch": one_by_one.read_text().split(),
            "gaps": queued.read_text().split(),
            "submissions_s": took,
            "idle": idle,
        }


if __name__ == "__main__":
    found = main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    (Path(sys.argv[1]) / FIGURES).write_text(json.dumps(found))
    # Its server waits for the job that sleeps.
    os._exit(0)
