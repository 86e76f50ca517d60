"""The Python that runs workloads: whether it has PyTorch, and which cuBLAS comes with it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.executor.live import split_measuring
from dovetail.instances.errors import InputError

_PATIENCE_S: Final = 120.0

# Some builds of PyTorch load cuBLAS with the first product only.
_ASK: Final = """
import json, sys
sys.path.insert(0, sys.argv[1])
import products
del sys.path[0]
try:
    import torch
except ImportError:
    torch = None
cublas = products.cublas_version()
if torch is not None and cublas is None and torch.cuda.is_available():
    torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")
    cublas = products.cublas_version()
print(json.dumps([getattr(torch, "__version__", None), cublas]))
"""


class Versions(NamedTuple):
    """What a Python has: versions of PyTorch and of cuBLAS, None where it has none."""

    torch: str | None
    cublas: str | None


def versions_of(python: str, environment: Mapping[str, str]) -> Versions:
    """Ask a Python what it has.

    Raises
    ------
    InputError
        When it cannot be run, or does not answer.
    """
    folder = Path(split_measuring.PROGRAM).parent
    command = [python, "-I", "-c", _ASK, str(folder)]
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        return Versions(*json.loads(done.stdout.splitlines()[-1]))
    except OSError as error:
        raise InputError(f"cannot be run: {error.strerror}", "--python", python) from None
    except subprocess.TimeoutExpired:
        raise InputError(f"did not answer in {_PATIENCE_S:g} s", "--python", python) from None
    except (ValueError, TypeError, IndexError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise InputError(
            f"must be a Python that can import PyTorch: {last}", "--python", python
        ) from None
