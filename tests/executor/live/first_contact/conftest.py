"""A bench without a GPU: made-up NVML, the stand-in for MPS, and a libcuda that is no CUDA.

What passes here shows that the checks run, tell what they saw and clear up; nothing about GPUs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest

from dovetail.executor.live.first_contact import breaking, sharing, watching
from dovetail.executor.live.first_contact.bench import Bench
from dovetail.executor.live.mps import processes
from dovetail.executor.live.mps.control import PROGRAM, SERVER
from dovetail.executor.live.nvml import Nvml

from ..injected_nvml import injected
from ..mps import standin

SOURCE = Path(__file__).with_name("standin_cuda.c")


@pytest.fixture(scope="session")
def cuda(tmp_path_factory):
    """A folder with the stand-in for libcuda, compiled."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in for libcuda")
    place = tmp_path_factory.mktemp("cuda")
    options = ["-Wall", "-Werror", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1"]
    library = place / "libcuda.so.1"
    subprocess.run([compiler, *options, "-o", str(library), str(SOURCE)], check=True)
    return place


@pytest.fixture
def with_cuda(cuda, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(cuda))


def left_on(uuid):
    """The processes of MPS and of clients that checks have left on a made-up GPU."""
    return [
        found
        for found in processes.every()
        if (found.environment() or {}).get("CUDA_VISIBLE_DEVICES") == uuid
        and found.pid != os.getpid()
    ]


@pytest.fixture
def nvml():
    """A session with one made-up GPU that nobody uses."""
    with injected() as library:
        library.gpus, library.xids = 1, []
        library.processes = {"compute": [], "mps": []}
        library.uuids[0] = f"GPU-{uuid.uuid4()}"
        with Nvml() as session:
            session.library = library
            yield session


@pytest.fixture
def make_bench(nvml, with_cuda, tmp_path, monkeypatch):
    """Make benches on the stand-in for 555; nothing of theirs is left at the end."""
    program = standin.install(tmp_path, "555")
    monkeypatch.setenv("PATH", str(Path(program).parent), prepend=os.pathsep)
    gpu = nvml.gpus()[0]
    yield lambda: Bench(gpu, nvml, program, None)
    assert left_on(gpu.uuid) == []


@pytest.fixture
def real_bench(nvml):
    """A bench with NVIDIA's control program, whose servers cannot start without a GPU."""
    program = shutil.which(PROGRAM)
    if program is None or shutil.which(SERVER, path="/usr/sbin:/usr/bin") is None:
        pytest.skip(f"{PROGRAM} is not installed (Debian: nvidia-cuda-mps, non-free)")
    gpu = nvml.gpus()[0]
    yield Bench(gpu, nvml, program, None)
    assert left_on(gpu.uuid) == []


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(sharing, "WINDOW_S", 0.6)
    monkeypatch.setattr(watching, "COUNTED_S", 0.3)
    monkeypatch.setattr(breaking, "NOTICES_S", 1.5)
    quick = breaking.Patience(
        answer_s=1.0, active_s=3.0, terminate_s=1.0, shutdown_s=1.0, quit_s=1.0
    )
    monkeypatch.setattr(breaking, "QUICK", quick)
