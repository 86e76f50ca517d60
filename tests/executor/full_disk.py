"""A file system of 32 MiB, and a file that takes all of its free space."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager

import pytest

from tests.executor.local_runs import cleared

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@contextmanager
def small_disk(folder):
    """Yield a directory on that disk; processes started from it are killed at the end."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32m", "none", str(folder)], check=False
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    with cleared(folder / "home"):
        yield folder / "home"
    subprocess.run(["umount", str(folder)], check=True)


class Filler:
    """The file."""

    def __init__(self, path):
        self.path = path

    def fill(self, left_bytes=0):
        with open(self.path, "ab", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                file.truncate(file.tell() - left_bytes)

    def empty(self):
        self.path.unlink()
