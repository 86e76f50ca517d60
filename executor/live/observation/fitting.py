"""Fit a model on a repository and write it to a file, as a separate process at low priority.

``python -m dovetail.executor.live.observation.fitting KIND MODE REPOSITORY FILE GPU_MODEL...``; if
the fit fails, it prints one line and exits with status 2.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final, cast

from dovetail.instances.datasets.repository import Repository
from dovetail.instances.errors import DovetailError
from dovetail.instances.slowdowns.entry import SharingMode
from dovetail.predictors.fitted.model_file import save_model

_LOW_PRIORITY: Final = 19


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
