"""Workloads for measuring: programs of PyTorch alone, with made-up data and weights.

They run under whatever Python has the PyTorch that jobs use, which need not have Dovetail: no
file of this folder imports anything of it but its neighbours, and 3.10 is enough. ``worker.py``
runs a workload, ``products.py`` compares matrix products under a share.

A workload of the user's is a file with

``KIND``
    ``training`` or ``inference``.
``FAMILY``
    What it is one of; workloads of a family differ in size or batch only.
``BATCH``
    Batch size of each size: ``{"full": 64, "tiny": 4}``.
``prepare(device, size, seed)``
    Builds it on ``cuda`` or ``cpu`` and returns a function that does one iteration, or queues it
    on the current stream of the device. What this function returns is not looked at.
``gaps(draw, size)``, only for inference that answers requests
    Yields the seconds from one request's arrival to the next one's, drawn from a
    ``random.Random``. An iteration then answers a request.

The built-in ones are functions marked ``@built_in`` in ``kernels.py``, ``networks.py`` and
``transformers.py``.
"""

from pathlib import Path
from types import MappingProxyType
from typing import Final

MODULES: Final = MappingProxyType(
    {
        "burst": "transformers",
        "convnet": "networks",
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

WORKER: Final = Path(__file__).with_name("worker.py")
"""The program that runs one workload, and is told by lines of JSON when."""
