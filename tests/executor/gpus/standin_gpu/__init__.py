"""A stand-in for a GPU, for ``pytest -p tests.executor.gpus.standin_gpu``: made-up NVML.

With the stand-ins for MPS and for libcuda (``cuda.c``) on the paths, the acceptance suite runs
from end to end. What it then sees shows that it runs, tells and clears up; nothing about GPUs.
``STANDIN_PIDS`` are processes that the GPU is in use by.
"""

import os
import uuid

from dovetail.executor.gpus.nvml import GPM_METRICS
from dovetail.executor.mps.recovery import RecoveryTimeouts
from tests.executor.gpus.injected_nvml import injected
from tests.gpu import bench


def pytest_configure(config):
    made_up = injected()
    library = made_up.__enter__()
    config.add_cleanup(lambda: made_up.__exit__(None, None, None))
    pids = os.environ.get("STANDIN_PIDS", "").split()
    library.gpus, library.xids = 1, []
    library.processes = {"compute": [(int(pid), 1 << 20) for pid in pids], "mps": []}
    # Most metrics of a kernel that uses one pipe are 0, which is an answer.
    idle = dict.fromkeys((number for number, _ in GPM_METRICS.values()), 0.0)
    library.gpm_values = idle | library.gpm_values
    library.uuids[0] = os.environ.get("STANDIN_UUID") or f"GPU-{uuid.uuid4()}"
    bench.WINDOW_S, bench.COUNTED_S, bench.NOTICES_S = 0.6, 0.3, 1.5
    # Short is what passes in any case; stand-ins are programs, which a busy machine starts late.
    bench.ANSWER_S = bench.GOES_S = 30.0
    bench.QUICK = RecoveryTimeouts(answer_s=20.0, active_s=3.0, terminate_s=30.0, quit_s=1.0)
