"""Fit a model on a repository and write it to a file, in a separate process at low priority.

``python -m dovetail.executor.live.observation.fitting KIND MODE REPOSITORY FILE GPU_MODEL...``; if
the fit fails, it prints one line and exits with status 2.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, cast

from dovetail.instances._children import module_command
from dovetail.instances.datasets.repository import Repository
from dovetail.instances.errors import DovetailError
from dovetail.instances.slowdowns.entry import SharingMode
from dovetail.predictors.fitted.model_file import save_model

_LOW_PRIORITY: Final = 19


class FitProcess:
    """A fit in a separate process, so that it costs the service neither time nor memory.

    Parameters
    ----------
    kind, mode, repository, into, gpu_models
        The arguments of the program.
    wake : callable
        Called from another thread when the fit has ended.
    """

    def __init__(
        self,
        kind: str,
        mode: SharingMode,
        repository: Path,
        into: Path,
        gpu_models: Sequence[str],
        wake: Callable[[], None],
    ) -> None:
        program = module_command("dovetail.executor.live.observation.fitting")
        self._process = subprocess.Popen(
            [*program, kind, mode, repository, into, *gpu_models],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._wake = wake
        self._said: str | None = None
        self._reader = threading.Thread(target=self._read_out, daemon=True)
        self._reader.start()

    @property
    def ended(self) -> bool:
        """Whether the fit has ended."""
        return self._said is not None

    @property
    def fault(self) -> str:
        """Why a fit that has ended failed; empty if it did not."""
        status = self._process.returncode
        if status == 0:
            return ""
        lines = (self._said or "").strip().splitlines()
        return lines[-1] if lines else f"it ended with status {status}"

    def close(self) -> None:
        """End the fit."""
        self._process.kill()
        self._reader.join()

    def _read_out(self) -> None:
        """Read the output of the fit until it ends: a full pipe would block it."""
        _, self._said = self._process.communicate()
        self._wake()


def main(arguments: Sequence[str]) -> int:
    """Fit, and return the exit status."""
    kind, mode, repository, path, *gpu_models = arguments
    try:
        from dovetail.predictors.fitted.training import fit

        data = Repository(repository).data_set()
        save_model(fit(data, kind, gpu_models, mode=cast(SharingMode, mode)), path)
    except (DovetailError, ImportError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    os.nice(_LOW_PRIORITY)
    sys.exit(main(sys.argv[1:]))
