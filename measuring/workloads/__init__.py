"""Workloads for measuring, which need PyTorch only and use synthetic data and weights.

They run under the jobs' Python (3.10 or later), which may lack Dovetail, so the files of this
folder import nothing else of Dovetail. ``worker.py`` runs a workload, ``products.py`` compares
matrix products under a share.

A user's workload is a file with

``KIND``
    ``training`` or ``inference``.
``FAMILY``
    Its family; workloads of a family differ only in size or batch.
``BATCH``
    Batch size by size: ``{"full": 64, "tiny": 4}``.
``prepare(device, size, seed)``
    Builds it on ``cuda`` or ``cpu``, and returns a function that does one iteration or queues it on
    the device's current stream. The function's return value is ignored.
``gaps(draw, size)``, only for inference that answers requests
    Yields the seconds between arrivals of requests, drawn from a ``random.Random``. An iteration
    then answers one request.

The built-in workloads are functions marked ``@built_in`` in ``kernels.py``, ``networks.py`` and
``transformers.py``.
"""

from pathlib import Path
from types import MappingProxyType
from typing import Final

MODULES: Final = MappingProxyType(
    {
        "bulk": "transformers",
        "burst": "transformers",
        "convnet": "networks",
        "encoder": "transformers",
        "gemm": "kernels",
        "gpt": "transformers",
        "graph": "networks",
        "lstm": "networks",
        "recommender": "networks",
        "stream": "kernels",
        "tiny": "kernels",
        "transformer": "transformers",
    }
)
BUILT_IN: Final = tuple(MODULES)
"""Names of the built-in workloads."""

LAUNCHES: Final = MappingProxyType(
    {
        "bulk": 383,
        "burst": 245,
        "convnet": 235,
        "encoder": 245,
        "gemm": 8,
        "gpt": 391,
        "graph": 66,
        "recommender": 55,
        "stream": 20,
        "tiny": 3000,
        "transformer": 383,
    }
)
"""Kernels that an iteration of full size launches on a GPU, as
``benchmarks/measuring/count_launches.py`` counts them; it cannot count those of ``lstm``."""

WORKER: Final = Path(__file__).with_name("worker.py")
"""The program that runs one workload, controlled by lines of JSON."""
