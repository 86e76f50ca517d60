"""How far the processes of a job are: counted where they run, read where they are watched."""

from dovetail.executor.live.progress.files import (
    HOOK_DIRECTORY,
    PROGRESS_VARIABLE,
    hook_environment,
    read_progress,
)

__all__ = ["HOOK_DIRECTORY", "PROGRESS_VARIABLE", "hook_environment", "read_progress"]
