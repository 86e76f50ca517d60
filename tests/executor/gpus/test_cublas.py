"""Which cuBLAS a program has loaded: a compiled stand-in of that name, in real processes."""

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import wait
from contextlib import contextmanager

import pytest

from dovetail.executor.gpus.cublas import CublasVersions

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

LOAD = "import ctypes, sys, time; [ctypes.CDLL(p) for p in sys.argv[1:]]; print(); time.sleep(600)"


def stand_in(directory, version):
    directory.mkdir(parents=True)
    source, library = directory / "x.c", directory / "libcublasLt.so.13"
    source.write_text(f"unsigned long cublasLtGetVersion(void) {{ return {version}; }}\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)


@contextmanager
def loading(*libraries):
    command = [sys.executable, "-S", "-u", "-c", LOAD, *libraries]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def version_of(*pids, versions=None):
    versions = versions or CublasVersions()
    versions.of(pids, os.geteuid(), os.getegid())
    wait(versions._answers.values())
    return versions.of(pids, os.geteuid(), os.getegid())


def test_the_version_of_what_is_loaded(tmp_path):
    with loading(stand_in(tmp_path / "a", 130100)) as pid:
        assert version_of(pid) == "130100"


def test_nothing_loaded_is_not_known(tmp_path):
    with loading() as pid:
        assert version_of(pid) is None
    assert version_of(pid) is None  # and the process is gone


def test_two_versions_are_not_known(tmp_path):
    with loading(stand_in(tmp_path / "a", 130100), stand_in(tmp_path / "b", 120600)) as pid:
        assert version_of(pid) is None


def test_processes_with_one_version_each_agree_or_do_not(tmp_path):
    first, second = stand_in(tmp_path / "a", 130100), stand_in(tmp_path / "b", 120600)
    with loading(first) as one, loading(second) as other, loading(first) as third:
        assert version_of(one, third) == "130100"
        assert version_of(one, other) is None


def test_no_caller_waits_for_an_answer(tmp_path):
    versions = CublasVersions()
    with loading(stand_in(tmp_path / "a", 130100)) as pid:
        versions._asking.submit(time.sleep, 1.0)
        assert versions.of([pid], os.geteuid(), os.getegid()) is None
        assert version_of(pid, versions=versions) == "130100"


def test_a_library_without_a_version_is_unknown(tmp_path):
    library = stand_in(tmp_path / "a", 130100)
    with loading(library) as pid:
        versions = CublasVersions()
        os.remove(library)
        assert version_of(pid, versions=versions) is None
