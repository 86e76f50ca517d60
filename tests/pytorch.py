"""A Python that has PyTorch, for tests of programs that need it; the project's own need not."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest

TORCH_PYTHON = os.environ.get("DOVETAIL_TORCH_PYTHON") or (
    sys.executable if importlib.util.find_spec("torch") else None
)

needs_torch = pytest.mark.skipif(
    TORCH_PYTHON is None,
    reason="needs PyTorch; DOVETAIL_TORCH_PYTHON may name a Python that has it",
)
