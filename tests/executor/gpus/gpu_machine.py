"""A machine with made-up GPUs for tests of the service, and its real and made-up parts.

Real: the service, its journal, the processes of jobs, their launchers, the pool, ``pynvml``. Made
up: what NVML says (``injected_nvml``), MPS (the stand-in of ``mps/standin.py``), and jobs, which
attach to MPS as CUDA would (``client.py``'s protocol), compute nothing, and print iterations.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from contextlib import contextmanager
from pathlib import Path

from dovetail.executor.gpus.nvml import Nvml
from dovetail.executor.gpus.splits import Product, SplitEvidence, Splits
from dovetail.executor.jobs.journal import Journal
from dovetail.executor.live.observation.tracks import WatchOptions
from dovetail.executor.live.service import Service, ServiceOptions
from dovetail.executor.mps import processes
from dovetail.executor.mps.manager import MpsManager
from dovetail.executor.mps.processes import PIPE_DIRECTORY
from dovetail.executor.mps.recovery import RecoveryTimeouts
from dovetail.executor.pools.gpu import GpuPool
from dovetail.instances.datasets import Repository
from tests.executor.live.test_service import ME, serving, spec
from tests.executor.local_runs import cleared, unmount
from tests.executor.mps import standin
from tests.executor.waiting import LIMIT_S

PATTERN = r"iteration (?P<iteration>\d+)"
HASTY = RecoveryTimeouts(answer_s=LIMIT_S, active_s=1.0, terminate_s=1.0, quit_s=1.0)
"""The stand-in always answers, however late a busy machine starts it."""

QUICK = WatchOptions(
    warm_up_s=0.1,
    settle_s=0.1,
    profile_s=0.5,
    profile_most_s=20.0,
    window_s=0.5,
    window_most_s=0.5,
    tolerance=0.9,
    iterations=2,
)

JOB = """
import ctypes, json, os, socket, sys, threading, time
rate, *libraries = sys.argv[1:]
loaded = [ctypes.CDLL(path) for path in libraries]
for name in sorted(os.environ):
    if name.startswith("CUDA_"):
        print(name, os.environ[name], flush=True)

def listen(stream):
    for word in stream:
        print(word.strip(), flush=True)
        if not word.startswith("attached"):
            os._exit(1)

connection = socket.socket(socket.AF_UNIX)
try:
    connection.connect(os.path.join(os.environ["CUDA_MPS_PIPE_DIRECTORY"], "control"))
except OSError:
    print("no MPS", flush=True)
else:
    stream = connection.makefile("rw")
    told = {"client": os.getpid(), "partition": os.environ.get("CUDA_MPS_SM_PARTITION")}
    stream.write(json.dumps(told) + "\\n")
    stream.flush()
    threading.Thread(target=listen, args=(stream,), daemon=True).start()
k = 0
while not os.path.exists("finish"):
    time.sleep(1 / float(rate))
    k += 1
    print("iteration", k, flush=True)
# Python aborts where it ends while a thread prints: CUDA's threads do not hold a process up either.
os._exit(0)
"""


def half_is_right(cublas="130100", gpu_model="Injected H200"):
    """Return made-up evidence that 50 % computes right on the made-up GPU."""
    product = Product(dtype="float16", m=16, n=1000, k=2048, error=0.5)
    evidence = SplitEvidence(
        gpu_model=gpu_model,
        driver="580.0 (injected)",
        cublas=cublas,
        share=50,
        sms=66,
        products=(product,),
        date="2026-11-21",
    )
    return Splits(evidence=(evidence,))


class GpuMachine:
    """Directories of a machine, and how its service is started."""

    def __init__(self, place, library, gpus=1, release="580", static=False):
        self.place, self.library, self.isolation, self.static = place, library, None, static
        self.state = place / "state"
        self.uuids = [f"GPU-{uuid.uuid4()}" for _ in range(gpus)]
        self.names = [name[:12] for name in self.uuids]
        self.program = standin.install(place, release)
        self.work = place / "work"
        for path in (self.state, self.work):
            path.mkdir()
            path.chmod(0o755)
        library.gpus = gpus
        library.uuids = dict(enumerate(self.uuids))
        library.compute_modes = dict.fromkeys(range(gpus), 0)
        library.processes = {"compute": [], "mps": []}
        library.xids = []

    def pool(self, splits=None, patience=HASTY):
        """Return a pool of the made-up GPUs."""
        place = self.place / "m"
        mps = MpsManager(place, program=self.program, patience=patience, static=self.static)
        works = self.isolation is not None and self.isolation.why_not() is None
        isolation = self.isolation if works else None
        return GpuPool(self.state, Nvml(), mps, splits or Splits(), isolation=isolation)

    @contextmanager
    def service(self, splits=None, **options):
        """Serve for as long as the block takes."""
        with Journal(self.state) as journal:
            repository = Repository(self.state / "repository.db")
            chosen = ServiceOptions(**{"watching": QUICK, "sample_s": 0.1, **options})
            with serving(Service(journal, self.pool(splits), repository, chosen)) as service:
                yield service

    def job(self, *libraries, rate=50, owner=ME, **fields):
        """Return a job that is a client of MPS."""
        python = shutil.which("python3", path="/usr/bin") or sys.executable
        fields = {"memory_mib": 100.0, "grace_s": 0.5, **fields}
        return spec(owner=owner).replace(
            command=(python, "-IS", "-c", JOB, str(rate), *libraries),
            cwd=str(self.work),
            env={"PATH": os.environ["PATH"]},
            progress_pattern=PATTERN,
            **fields,
        )

    def finish(self):
        """Let all jobs end well."""
        (self.work / "finish").touch()

    def log(self, run, rank=0):
        """Return the output of a rank."""
        path = self.state / "runs" / run / f"rank{rank}" / "log"
        return path.read_text() if path.exists() else ""

    def variables(self, run, rank=0):
        """Return CUDA's variables as a rank has them."""
        lines = (line.split(" ", 1) for line in self.log(run, rank).splitlines())
        return {words[0]: words[1] for words in lines if words[0].startswith("CUDA_")}

    def pipes(self, gpu=0, uid=None):
        """Return the pipe directory of a GPU's daemon."""
        uid = os.geteuid() if uid is None else uid
        return self.place / "m" / f"{self.names[gpu].removeprefix('GPU-')}-{uid}"

    def tell_standin(self, word, gpu=0):
        """Put the stand-in daemon of a GPU into a mood."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.pipes(gpu) / "control"))
            connection.sendall(f"standin {word}\n".encode())
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)  # its end: there is no answer

    def daemons(self):
        """Return the pids of the stand-in daemons."""
        found = processes.running(standin.NAME)
        return [one.pid for one in found if "-d" in one.arguments and self._mine(one)]

    def _mine(self, process):
        given = process.environment.get(PIPE_DIRECTORY, "")
        return given.startswith(f"{self.place}/")

    def clear(self):
        """Kill whatever belongs to the machine."""
        for process in processes.every():
            if self._mine(process):
                processes.kill(process, 10)


@contextmanager
def gpu_machine(library, gpus=1, **options):
    """Make a machine in a directory with a short name (for sockets), and remove it at the end."""
    place = Path(tempfile.mkdtemp(prefix="gpu", dir="/tmp"))
    place.chmod(0o755)
    machine = GpuMachine(place, library, gpus, **options)
    try:
        with cleared(machine.state):
            yield machine
    finally:
        machine.clear()
        unmount(place)
        shutil.rmtree(place)


def stand_in_cublas(directory, version):
    """Compile a library with cuBLAS's name that only reports a version."""
    directory.mkdir()
    directory.chmod(0o755)
    source, library = directory / "x.c", directory / "libcublasLt.so.13"
    source.write_text(f"unsigned long cublasLtGetVersion(void) {{ return {version}; }}\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)
