"""The steps of ``isolation.py``: what the isolation of thread blocks does and costs on a GPU."""

import sys
from pathlib import Path

# Sources of kernels, and the stand-in of a GPU, are those of the tests.
sys.path.append(str(Path(__file__).parents[3]))
