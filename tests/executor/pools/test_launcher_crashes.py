"""The launcher is killed at random moments: no rank starts twice or is left behind.

Each run appends a line to a file when it starts, so starts are counted by the jobs themselves.
"""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from dovetail.executor.pools.local import LocalPool
from tests.executor.local_runs import Watched, a_run, cleared, left_over
from tests.executor.waiting import wait_until

RUNS = 3
SERVICE = """
import sys
from pathlib import Path
from dovetail.executor.jobs.specs import Run
from dovetail.executor.pools.local import LocalPool
runs = [Run.model_validate_json(line) for line in sys.argv[2:]]
pool = LocalPool(Path(sys.argv[1]))
pool.resume(runs)
print("up", flush=True)
sys.stdin.readline()
for run in runs:
    pool.launch(run)
print("ordered", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("seed", range(5))
def test_a_kill_while_runs_are_being_launched(tmp_path, seed):
    runs = [
        a_run(
            f"echo started >> {tmp_path}/starts-j{k}-$RANK; exec sleep 600",
            name=f"j{k}.1",
            gpus=("a", "b"),
        )
        for k in range(RUNS)
    ]
    state = tmp_path / "state"
    with cleared(state):
        _launch_and_kill(state, runs, random.Random(seed).uniform(0.0, 0.4))
        pool = Watched(LocalPool(state))
        assert pool.pool.resume(runs) == []
        for run in runs:
            pool.pool.launch(run)
        ranks = [(run.id, rank) for run in runs for rank in (0, 1)]
        for run, rank in ranks:
            pool.wait_for("rank_ready", rank, run)
        # A start that a killed service left at the start barrier has given up meanwhile.
        wait_until(lambda: len(left_over(state)) == 2 * len(ranks))

        def started():
            return {
                path.name: path.read_text().count("started") for path in tmp_path.glob("starts-*")
            }

        # A rank is ready a moment before its program has written.
        wait_until(lambda: sum(started().values()) >= len(ranks))
        counts = started()
        assert counts == {f"starts-j{k}-{rank}": 1 for k in range(RUNS) for rank in (0, 1)}
        for run in runs:
            pool.pool.stop(run.id, 20.0)
        for run, rank in ranks:
            assert pool.wait_for("rank_ended", rank, run).status == -15
        wait_until(lambda: left_over(state) == [])
        pool.pool.close()


def _launch_and_kill(state, runs, after_s):
    service = subprocess.Popen(
        [sys.executable, "-c", SERVICE, str(state), *(run.model_dump_json() for run in runs)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    with service:
        try:
            assert service.stdout.readline() == "up\n"
            service.stdin.write("go\n")
            service.stdin.flush()
            time.sleep(after_s)
        finally:
            service.send_signal(signal.SIGKILL)
