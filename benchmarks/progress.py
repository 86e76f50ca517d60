"""The cost of counting iterations to a job: processor time of a step, and of Python's start.

``python benchmarks/progress.py``; also the hook of PyTorch's optimizer, if PyTorch is installed or
DOVETAIL_TORCH_PYTHON names a Python that has it. Each figure is the least of several.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable

from dovetail.executor.pools.runs.progress import hook_environment, read_progress

_CALLS = """
import time, timeit
from dovetail_progress import latency, step
n = 1_000_000
call = "{call}"
times = timeit.repeat(call, timer=time.process_time, number=n, repeat=9, globals=globals())
print(min(times) / n)
"""
_WRITES = """
import time, timeit
import dovetail_progress
dovetail_progress.INTERVAL_S = 0.0
{before}
n = 100_000
print(min(timeit.repeat(dovetail_progress.step, timer=time.process_time, number=n, repeat=9)) / n)
"""
_OPTIMIZER = """
import time, timeit, torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 8)).sum().backward()
n = 5_000
print(min(timeit.repeat(optimizer.step, timer=time.process_time, number=n, repeat=15)) / n)
"""
_STARTS = 30
TORCH_PYTHON = os.environ.get("DOVETAIL_TORCH_PYTHON") or (
    sys.executable if importlib.util.find_spec("torch") else None
)


def main() -> None:
    """Print a line for each figure."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "progress")
        hooked = hook_environment(path, {"PATH": os.environ["PATH"]})
        plain = {"PATH": os.environ["PATH"]}
        for call in ("step()", "latency(0.0123)"):
            _tell(call, _seconds(_CALLS.format(call=call), hooked))
        for before in ("", "dovetail_progress.latency(0.0123)"):
            what = " with latencies" if before else ""
            os.unlink(path)
            _tell(
                f"step() that writes the file{what} (10 a second do)",
                _seconds(_WRITES.format(before=before), hooked),
            )
            _tell(f"reading the file{what}", _best(lambda: read_progress(path)))
        _tell("start of Python without the hook", _start(plain))
        _tell("start of Python with the hook", _start(hooked))
        if TORCH_PYTHON:
            for name, env in (("without", plain), ("with", hooked)):
                what = f"optimizer.step() of a tiny model {name} the hook"
                _tell(what, _seconds(_OPTIMIZER, env, TORCH_PYTHON))


def _tell(what: str, seconds: float) -> None:
    print(f"{what:60} {seconds * 1e6:10.2f} us")


def _seconds(code: str, env: dict[str, str], python: str = sys.executable) -> float:
    command = [python, "-c", code]
    return float(subprocess.run(command, env=env, check=True, capture_output=True).stdout)


def _best(call: Callable[[], object]) -> float:
    count = 10_000
    return min(timeit.repeat(call, timer=time.process_time, number=count, repeat=9)) / count


def _start(env: dict[str, str]) -> float:
    return min(_of_one_start(env) for _ in range(_STARTS))


def _of_one_start(env: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", ""], env=env, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


if __name__ == "__main__":
    main()
