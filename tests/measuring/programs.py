"""Workloads of pure Python, for campaigns on a processor core without PyTorch."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from textwrap import dedent

from dovetail.measuring.ledger import Ledger
from dovetail.measuring.runner import Runner
from dovetail.measuring.worker_pool import WorkerLimits, WorkerPool
from dovetail.measuring.workloads import WORKER
from tests.executor.waiting import LIMIT_S

from .made import campaign, machine

HASTY = WorkerLimits(ready_s=LIMIT_S, obey_s=3.0)
BRIEF = {"settle_s": 0.1, "least_s": 0.4, "most_s": 1.0, "relative_error": 0.5}

SPIN = """
    KIND, FAMILY, BATCH = "training", "spin", {"full": 1, "tiny": 8}

    def prepare(device, size, seed):
        return lambda: sum(range(20_000))
"""

# An iteration is so much processor time, not work: the core's speed, which others change where two
# cores are the threads of one, says nothing about the pace.
STEADY = """
    import time
    KIND, FAMILY, BATCH = "training", "steady", {"full": 1, "tiny": 1}

    def prepare(device, size, seed):
        def step():
            until_s = time.process_time() + 0.001
            while time.process_time() < until_s:
                pass
        return step
"""

REQUESTS = """
    import time
    KIND, FAMILY, BATCH = "inference", "requests", {"full": 1, "tiny": 1}

    def prepare(device, size, seed):
        return lambda: time.sleep(0.002)

    def gaps(draw, size):
        while True:
            yield 0.02 * draw.random()
"""

# The first slows the second 300 times, as one with long kernels does one with short ones.
HOG = """
    import pathlib, time
    KIND, FAMILY, BATCH = "training", "hog", {"full": 1, "tiny": 1}

    def prepare(device, size, seed):
        def step():
            pathlib.Path(__file__).with_name("hogged").touch()
            time.sleep(0.001)
        return step
"""

VICTIM = """
    import os, pathlib, time
    KIND, FAMILY, BATCH = "training", "victim", {"full": 1, "tiny": 1}

    def prepare(device, size, seed):
        hogged = pathlib.Path(__file__).with_name("hogged")
        def step():
            recent = hogged.exists() and time.time() - os.stat(hogged).st_mtime < 0.1
            time.sleep(0.3 if recent else 0.001)
        return step
"""

GREEDY = """
    KIND, FAMILY, BATCH = "training", "greedy", {"full": 1, "tiny": 1}

    def prepare(device, size, seed):
        raise MemoryError("not so much")
"""

GREEDY_LATER = """
    import time
    KIND, FAMILY, BATCH = "training", "greedy", {"full": 1, "tiny": 1}

    def prepare(device, size, seed):
        begun = time.monotonic()
        def step():
            time.sleep(0.001)
            if time.monotonic() - begun > 1:
                raise MemoryError("not so much")
        return step
"""

HOLDS = """
    import atexit, pathlib
    KIND, FAMILY, BATCH = "training", "holds", {"full": 1, "tiny": 1}

    def prepare(device, size, seed):
        held = pathlib.Path(__file__).with_name("held")
        held.touch()
        atexit.register(held.unlink)
        return lambda: sum(range(20_000))
"""

NEEDS = """
    import pathlib
    KIND, FAMILY, BATCH = "training", "needs", {"full": 1, "tiny": 1}

    def prepare(device, size, seed):
        if pathlib.Path(__file__).with_name("held").exists():
            raise MemoryError("it is held")
        return lambda: sum(range(20_000))
"""

DIES = """
    import os
    KIND, FAMILY, BATCH = "training", "dies", {"full": 1, "tiny": 1}

    def prepare(device, size, seed):
        print("goodbye", flush=True)
        os._exit(7)
"""

HANGS = """
    import time
    KIND, FAMILY, BATCH = "training", "hangs", {"full": 1, "tiny": 1}

    def prepare(device, size, seed):
        while True:
            time.sleep(1)
"""

BROKEN = """
    KIND, FAMILY, BATCH = "training", "broken", {"full": 1, "tiny": 1}

    def prepare(device, size, seed):
        raise ValueError("no such layer")
"""


# In place of PyTorch: its profiler writes the trace of a file, which is in the shape of a GPU's.
TORCH = {
    "__init__.py": """
        __version__ = "0"

        def set_num_threads(number):
            pass

        class backends:
            class cudnn:
                benchmark = False
    """,
    "profiler.py": """
        import pathlib, shutil

        class ProfilerActivity:
            CPU, CUDA = "cpu", "cuda"

        class profile:
            def __init__(self, activities):
                assert activities == ["cpu"]

            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def export_chrome_trace(self, path):
                shutil.copy(pathlib.Path(__file__).with_name("trace.json"), path)
    """,
}


def write(folder, **programs):
    """Write programs, and return the campaign's list of workloads."""
    for name, text in programs.items():
        (folder / f"{name}.py").write_text(dedent(text))
    return [{"name": name, "program": str(folder / f"{name}.py")} for name in programs]


def worker_command(of, python=sys.executable):
    """Return how the workers of a campaign are started on a core."""
    own = {one.name: one.program for one in of.workloads if not isinstance(one, str)}

    def command(seat):
        name = own.get(seat.workload, seat.workload)
        return [python, "-I", str(WORKER), name, "--device", "cpu", "--size", of.size]

    return command


class Heard:
    """An audience that remembers."""

    def __init__(self):
        self.begun, self.ended = [], []

    def begins(self, experiment, left):
        self.begun.append((experiment.key, left))

    def ends(self, result):
        self.ended.append(result)


def a_campaign(workloads, *stages, **fields):
    """Return a campaign of brief windows."""
    fields = {"windows": BRIEF, "size": "tiny", **fields}
    return campaign(*stages, workloads=workloads, **fields)


class Sitting:
    """A ledger, a worker pool and a runner, opened to measure a campaign."""

    def __init__(self, device, of, ledger, workers, until_s, kernels):
        self.heard, self.workers, self.ledger = Heard(), workers, ledger
        self.runner = Runner(of, ledger, device, workers, until_s, self.heard, kernels=kernels)


@contextmanager
def sitting(device, of, folder, command, until_s=float("inf"), limits=HASTY, kernels=False):
    """Open all parts, and remove everything at the end."""
    with Ledger(folder) as ledger, WorkerPool(device, command, limits) as workers:
        ledger.begin(machine(of), of)
        yield Sitting(device, of, ledger, workers, until_s, kernels)
