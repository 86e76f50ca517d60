"""Build and step every built-in workload in its tiny form, and print the results.

A program for a Python with PyTorch, without Dovetail: ``python built_in.py FOLDER NAME...``, with
the folder of the workloads and the names of those that can learn.
"""

import importlib.util
import json
import sys
import time
from pathlib import Path

spec = importlib.util.spec_from_file_location("worker", Path(sys.argv[1]) / "worker.py")
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
building, loading = worker.imported("building"), worker.imported("loading")
names = sys.modules[worker.PACKAGE].BUILT_IN

import torch  # noqa: E402

torch.set_num_threads(1)


def values(step, n):
    """Return the mean result of ``n`` iterations, and whether all results are finite."""
    results = [step().float() for _ in range(n)]
    return [float(one.mean()) for one in results], all(one.isfinite().all() for one in results)


def facts(name):
    """Return the values that the test compares."""
    workload = loading.load(name, "tiny")
    first, finite = values(workload.prepare("cpu", "tiny", 1), 4)
    again, _ = values(workload.prepare("cpu", "tiny", 1), 4)
    other_step = workload.prepare("cpu", "tiny", 2)
    began = time.process_time()
    other, _ = values(other_step, 4)
    return {
        "kind": workload.kind,
        "family": workload.family,
        "open_loop": workload.gaps is not None,
        "finite": bool(finite),
        "first": first,
        "again": again,
        "other": other,
        "seconds": (time.process_time() - began) / 4,
    }


def learnt(name):
    """Return the losses before and after some steps at a rate at which models do learn."""
    building.LEARNING_RATE = 0.01
    losses, _ = values(loading.load(name, "tiny").prepare("cpu", "tiny", 1), 16)
    return sum(losses[:4]) / 4, sum(losses[-4:]) / 4


results = {
    "facts": {name: facts(name) for name in names},
    "learnt": {name: learnt(name) for name in sys.argv[2:]},
    "cublas": worker.imported("products").cublas_version(),
}
print(json.dumps(results))
