"""Intercepted launches of real processes: their results stay the same in every case.

The driver and the GPU are made up (``made_up_gpu``): kernels run in the interpreter. The library,
the scheduler and its socket, the shared memory and the processes are real.
"""

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import pickle
import platform
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dovetail.isolation import server as server_module
from dovetail.isolation.assemble import find_ptxas
from dovetail.isolation.interception import (
    InterceptionError,
    assembler,
    environment,
    library,
)
from dovetail.isolation.ptx import parse
from dovetail.isolation.server import (
    _OUTCOMES,
    COUNTS,
    VERSION,
    Memory,
    SchedulerServer,
    status,
)
from tests.executor.waiting import LIMIT_S, wait_until
from tests.isolation import made_up_gpu
from tests.isolation.any_form import AnyForm
from tests.isolation.cuda_kernels import KERNELS
from tests.isolation.made_up_client import Task, Work
from tests.isolation.made_up_herd import answers
from tests.isolation.nvrtc import compiled
from tests.isolation.running import DATA_AT, Case, as_it_is
from tests.isolation.tasks import task as _task
from tests.isolation.test_images import container

pytestmark = [
    pytest.mark.skipif(find_ptxas() is None, reason="needs ptxas (extra isolation)"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]

_FUTEX = 202 if platform.machine() == "x86_64" else 98
QUICK = ("three_dimensions", "update_in_place", "every_other_thread_returns", "histogram")


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    return made_up_gpu.build(folder), library(folder / "cache")


@pytest.fixture
def place():
    # The path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="dv-") as folder:
        yield Path(folder)


@pytest.fixture
def serve(place):
    """Run a scheduler in a thread of the test, joined by an idle latency-critical process."""
    with contextlib.ExitStack() as closing:

        def begin(kind=AnyForm, critical=True, **options):
            server = kind(place / "socket", **options)
            thread = threading.Thread(target=server.run)
            closing.callback(thread.join)
            closing.callback(server.close)
            thread.start()
            if critical:
                closing.enter_context(_idle_critical(place / "socket"))
            return server

        yield begin


@pytest.fixture
def start(built, place):
    """Start a program with the library preloaded; processes that are left are killed at the end."""
    processes = []

    def begin(*arguments, priority="best-effort", **variables):
        cuda, shim = built
        given = {**os.environ, "LD_LIBRARY_PATH": str(cuda), **variables}
        given |= environment(shim, place / "socket", priority, given)
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield begin
    for one in processes:
        one.kill()
        one.communicate()


@pytest.fixture
def client(start, place):
    """Start a client with its work."""

    def begin(work, priority="best-effort"):
        file = place / f"work-{random.randrange(1 << 60)}"
        file.write_bytes(pickle.dumps(work))
        module = "tests.isolation.made_up_client"
        return start("-m", module, str(file), priority=priority)

    return begin


def _joined_critical(path):
    """Join a scheduler as a latency-critical process; return its socket, and its area in words."""
    joined = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    joined.connect(str(path))
    joined.sendall(struct.pack("=5I", 1, 12, VERSION, 1, os.getpid()))
    area, (header, file), _, _ = socket.recv_fds(joined, 4, 2)
    words = memoryview(mmap.mmap(file, 0)).cast("I")
    os.close(header)
    os.close(file)
    return joined, words[16384 * int.from_bytes(area, sys.byteorder) :][:16384]


def _idle_critical(path):
    """Join a scheduler as a latency-critical process that launches nothing."""
    return _joined_critical(path)[0]


def _stands(count):
    """Return whether a count does not grow for a while in which it otherwise would."""
    before = count()
    time.sleep(1.5)
    return count() == before


class Announcer:
    """A latency-critical process as the others see it, whose launches the test makes and ends."""

    def __init__(self, server):
        self._memory = server._memory
        self.area = self._memory.take(critical=True)
        self._words = self._memory.area(self.area)
        self._words[15] = 1

    def launch(self):
        """Count a launch and close all gates, as ``close_gates`` in ``guard.h``."""
        self._words[16] += 1
        best_effort = self._memory.header[2] | self._memory.header[3] << 32
        for number in range(64):
            if best_effort >> number & 1:
                gate = self._memory.gate(number)
                gate[0] = 0
                place = ctypes.c_uint32.from_buffer(gate)
                ctypes.CDLL(None).syscall(_FUTEX, ctypes.byref(place), 1, 64, None, None, 0)

    def end(self):
        self._words[17] = self._words[16]


def _done(process):
    out, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    return json.loads(out), errors


def _forms(done):
    return {name.partition("__dovetail_")[2] or "whole" for name in done["launches"]}


class BrokenSlices(AnyForm):
    """A scheduler whose slices all run the first of their blocks."""

    def _prepare(self, image, architecture):
        made = super()._prepare(image, architecture)
        added = "add.u32 %dovetail_block, %dovetail_block, %dovetail_rest;"
        assert added in made.text
        return replace(made, text=made.text.replace(added, ""))


class SlowModules(AnyForm):
    """A scheduler that prepares some modules only once it is told to."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.asked, self.told = threading.Event(), threading.Event()

    def _module(self, client, request):
        if b"// slow" in request:
            self.asked.set()
            self.told.wait(LIMIT_S)
        return super()._module(client, request)


# Which thread gets which place is up to the GPU.
_VARYING = Task(
    "varying",
    compiled(
        """extern "C" __global__ void k(int* y) {
        y[1 + atomicAdd(y, 1)] = threadIdx.x + blockDim.x * blockIdx.x; }"""
    ).encode(),
    Case((4, 1, 1), (16, 1, 1), bytes(4 * 65), (DATA_AT,)),
    (True,),
    b"",
)


def _made(name, source, arguments, **case):
    """Return the task of a kernel ``k`` whose first argument is its memory."""
    text = compiled(f'extern "C" __global__ void k({source}')
    module = parse(text)
    given = Case((4, 1, 1), (16, 1, 1), bytes(4 * 65), (DATA_AT, *arguments), **case)
    expected = as_it_is(module, module.functions["k"], given, random.Random(0))
    return Task(name, text.encode(), given, (True, *(False for _ in arguments)), expected)


def _adding(number):
    """Return the task of a kernel that can be cut, as an SM holds one of its blocks."""
    source = f"int* y) {{ y[threadIdx.x + blockDim.x * blockIdx.x] += {number}; }}"
    return _made("adding", source, (), dynamic_shared=40_000)


def _with_number(number):
    source = "int* y, long long n) { y[threadIdx.x + blockDim.x * blockIdx.x] += (int)(n >> 3); }"
    return _made("number", source, (number,))


class TestOneClient:
    @pytest.mark.parametrize("way", ["address", "dlsym", "linked"])
    @pytest.mark.parametrize("call", ["cuLaunchKernel", "cuLaunchKernelEx"])
    def test_launches_are_found(self, serve, client, way, call):
        server = serve()
        tasks = tuple(map(_task, QUICK[:2]))
        done, errors = _done(client(Work(tasks, 4, way=way, call=call)))
        assert (done["wrong"], errors) == ([], "")
        assert server.status()["launches"]["isolated"] > 0

    def test_nothing_changes_until_a_latency_critical_process_joins(self, serve, client):
        server = serve(critical=False)
        done, _ = _done(client(Work((_task("update_in_place"),), 12)))
        assert (done["wrong"], done["launches"]) == ([], {"k": 12})
        assert {name: n for name, n in server.status()["launches"].items() if n} == {"whole": 12}

    def test_every_kernel_in_every_form(self, serve, client):
        serve(seed=3)
        done, _ = _done(client(Work(tuple(map(_task, KERNELS)), 3, streams=2)))
        assert done["wrong"] == []
        assert _forms(done) == {"whole", "slices", "workers"}

    def test_forms_are_chosen_by_measuring(self, serve, client, place):
        server = serve(SchedulerServer, samples=1, unproven=True)
        done, _ = _done(client(Work((_task("update_in_place"),), 12)))
        assert done["wrong"] == []
        assert {"whole", "slices"} <= _forms(done)
        assert server.status()["launches"]["isolated"] >= 4

    def test_launches_go_on_while_another_thread_waits_for_its_module(self, serve, start, place):
        server, file = serve(SlowModules), place / "task"
        file.write_bytes(pickle.dumps(_task("update_in_place")))
        ran = start("-m", "tests.isolation.made_up_programs", "preparing", str(file))

        def launches():
            return sum(server.status()["launches"].values())

        assert server.asked.wait(LIMIT_S)
        seen = launches()
        wait_until(lambda: launches() > seen + 3, "launches go on")
        server.told.set()
        out, errors = ran.communicate(timeout=LIMIT_S)
        assert (ran.returncode, out.strip()) == (0, "right"), errors

    def test_what_is_not_proven_on_hardware_is_off_and_says_so(self, serve, client):
        server, tasks = (
            serve(SchedulerServer, samples=1),
            (_task("update_in_place"), _task("votes")),
        )
        running, found = client(Work(tasks, 12, pause_s=0.05)), {}

        def told():
            found.update(server.status()["escapes"])
            return len(found) == 2

        wait_until(told, "kernels that are off are listed")
        done, _ = _done(running)
        assert done["wrong"] == []
        assert _forms(done) == {"whole", "slices"}
        assert set(found.values()) == {
            "workers are not proven on sm_90",
            "slices with vote are not proven on sm_90",
        }

    def test_a_form_that_is_wrong_on_copies_is_not_used(self, serve, client):
        server, found = serve(BrokenSlices, forms=("slices",), sizes=(2,)), {}
        running = client(Work((_task("update_in_place"),), 12, pause_s=0.05))

        def told():
            found.update(server.status()["escapes"])
            return found

        wait_until(told, "the wrong form is listed")
        done, _ = _done(running)
        assert done["wrong"] == []
        assert found == {"k: slices": _OUTCOMES[4]}
        launches = server.status()["launches"]
        # The check itself launches one form in three parts.
        assert (done["launches"]["k__dovetail_slices"], launches["isolated"]) == (3, 0)
        assert done["allocated"] == 1

    @pytest.mark.parametrize("outcome", [1, 3])
    def test_a_kernel_that_cannot_be_compared_is_not_cut(self, serve, client, outcome):
        server, found = serve(forms=("slices",), sizes=(2,)), {}
        # Memory that nobody has allocated, or results that are up to the GPU.
        elsewhere = replace(_VARYING.case, arguments=(900_000,))
        task = _VARYING if outcome == 3 else replace(_VARYING, case=elsewhere, pointers=(False,))
        running = client(Work((task,), 12, pause_s=0.05))

        def told():
            found.update(server.status()["escapes"])
            return found

        wait_until(told, "the kernel is listed")
        _done(running)
        assert found == {"k: slices": _OUTCOMES[outcome]}
        assert server.status()["launches"]["isolated"] == 0

    @pytest.mark.parametrize(
        ("gpu", "number", "outcome"),
        [
            # Before or behind the memory that it leads to, or of the host.
            ((), 1 << 40, 1),
            ((("in_pieces", True),), 1, 1),
            ((("used_by_others", (1 << 20) - 2048),), 1, 2),
            ((("copies_fail", True),), 1, 5),
        ],
    )
    def test_memory_that_is_not_copied(self, serve, client, gpu, number, outcome):
        server, found = serve(forms=("slices",), sizes=(2,)), {}
        running = client(Work((_with_number(number),), 4, pause_s=0.1, gpu=gpu))

        def told():
            found.update(server.status()["escapes"])
            return found

        wait_until(told, "the kernel is listed")
        done, _ = _done(running)
        assert done["wrong"] == []
        assert found == {"k: slices": _OUTCOMES[outcome]}
        # Nothing ran but what the program launched.
        assert (done["launches"], done["allocated"]) == ({"k": 4}, 1)

    @pytest.mark.parametrize("number", [0, 5_000_000, (1 << 64) - 7, 0x3FF0 << 48])
    def test_numbers_are_no_addresses(self, serve, client, number):
        server = serve(forms=("slices",), sizes=(2,))
        done, _ = _done(client(Work((_with_number(number),), 3)))
        assert (done["wrong"], server.status()["launches"]["isolated"]) == ([], 3)

    def test_a_structure_without_addresses(self, serve, client):
        server = serve(forms=("slices", "workers"), sizes=(2,))
        source = """int* y, int3 s) {
            y[threadIdx.x + blockDim.x * blockIdx.x] += s.x * (blockIdx.x % 2 ? s.y : s.z); }"""
        task = _made("structure", source, (struct.pack("=3i", -7, 20, 300),))
        done, _ = _done(client(Work((task,), 6)))
        assert (done["wrong"], server.status()["launches"]["isolated"]) == ([], 6)

    def test_shared_memory_up_to_the_limit_without_leave(self, serve, client):
        server = serve(forms=("workers",), sizes=(2,))
        source = """int* y) { extern __shared__ int d[]; __shared__ volatile int s[1000];
            int at = threadIdx.x + 11000;
            s[threadIdx.x] = d[at] = threadIdx.x + blockIdx.x;
            __syncthreads();
            y[threadIdx.x + blockDim.x * blockIdx.x] = s[15 - threadIdx.x] + d[at]; }"""
        task = _made("full", source, (), dynamic_shared=49152 - 4000)
        done, _ = _done(client(Work((task,), 3)))
        assert (done["wrong"], server.status()["launches"]["isolated"]) == ([], 3)

    def test_copies_that_are_late_are_freed(self, serve, start, place):
        server = serve(forms=("slices",), sizes=(2,))
        file = place / "task"
        file.write_bytes(pickle.dumps(_task("update_in_place")))
        ran = start("-m", "tests.isolation.made_up_programs", "late_copies", str(file))
        out, errors = ran.communicate(timeout=LIMIT_S)
        assert (ran.returncode, out.strip()) == (0, "right"), errors
        assert server.status()["launches"]["isolated"] == 0

    def test_each_form_is_checked_once(self, serve, client):
        server = serve(forms=("slices", "workers"), sizes=(5,))
        done, _ = _done(client(Work((_task("three_dimensions"),), 12)))
        launches = server.status()["launches"]
        assert (done["wrong"], launches["isolated"]) == ([], 12)
        # A whole one beside each form's first use.
        assert done["launches"]["k"] == 2

    def test_what_it_allocated_and_loaded_is_freed(self, serve, client):
        serve()
        done, _ = _done(client(Work(tuple(map(_task, QUICK)), 2)))
        # The counters of workers are kept as long as the process lives.
        assert (done["allocated"], done["loaded"]) == (1, 0)

    def test_containers(self, serve, client):
        server = serve()
        task = _task("update_in_place")
        image = container((70, 0x11, 0, task.image))
        done, _ = _done(client(Work((replace(task, image=image),), 6)))
        assert done["wrong"] == []
        assert server.status()["launches"]["isolated"] > 0

    @pytest.mark.parametrize("kept", [True, False])
    def test_machine_code(self, serve, client, place, monkeypatch, kept):
        """As with Triton, the PTX is known if the assembler of the code keeps its input."""
        task, keeper = _task("update_in_place"), assembler(place / "kept", find_ptxas())
        server = serve(kept=place / "kept" if kept else None)
        source, made = place / "k.ptx", place / "k.ptx.o"
        source.write_bytes(task.image)
        command = [keeper, "-v", "--gpu-name=sm_80", source, "-o", made]
        subprocess.run(command, check=True, capture_output=True)
        monkeypatch.setenv("MADE_UP_PTX", str(place / "kept"))
        done, _ = _done(client(Work((replace(task, image=made.read_bytes()),), 6)))
        assert done["wrong"] == []
        launches = server.status()["launches"]
        assert (launches["isolated"] > 0, launches["no PTX"] > 0) == (kept, not kept)

    @pytest.mark.parametrize(
        "way", ["threads", "waiting", "reset", "signals", "reloaded", "host_last"]
    )
    def test_programs(self, serve, start, place, way):
        server = serve(seed=1)
        file = place / "task"
        file.write_bytes(pickle.dumps(_task("update_in_place")))
        ran = start("-m", "tests.isolation.made_up_programs", way, str(file))
        out, errors = ran.communicate(timeout=LIMIT_S)
        assert (ran.returncode, out.strip(), errors) == (0, "right", "")
        launches = server.status()["launches"]
        # On a busy machine others may be late, too.
        assert launches["late"] or way != "waiting"
        assert not launches["no PTX"]
        assert launches["isolated"] > 0


class TestTwoClients:
    def test_each_is_right(self, serve, client):
        server = serve()
        other = client(Work(tuple(map(_task, ("tiled_product", "block_scan"))), 6, seed=1))
        first = client(Work((_task("update_in_place"),), 40, seed=2, pause_s=0.005), "latency")
        (done, errors), (other_done, other_errors) = _done(first), _done(other)
        assert done["wrong"] == other_done["wrong"] == []
        assert errors == other_errors == ""
        # Latency-critical kernels run as they are.
        assert _forms(done) == {"whole"}
        launches = server.status()["launches"]
        assert (launches["announced"], launches["not announced"]) == (40, 0)

    def test_latency_critical_launches_are_announced(self, serve, client):
        server = serve(critical=False)
        assert _done(client(Work((_task("update_in_place"),), 5), "latency"))[0]["wrong"] == []
        assert [*server._memory.area(0)[16:18]] == [5, 5]

    def test_launches_of_a_destroyed_stream_end(self, serve, start, place):
        server = serve(critical=False)
        file = place / "task"
        file.write_bytes(pickle.dumps(_task("update_in_place")))
        way = "destroyed_stream"
        ran = start("-m", "tests.isolation.made_up_programs", way, str(file), priority="latency")
        out, errors = ran.communicate(timeout=LIMIT_S)
        assert (ran.returncode, out.strip(), errors) == (0, "right", "")
        words = server._memory.area(0)
        lanes = [[*words[at : at + 2]] for at in range(16, 16 + 4 * words[15], 4)]
        assert lanes == [[1, 1], [1, 1]]

    def test_workers_give_way_and_go_on(self, serve, client):
        server = serve(forms=("workers",), sizes=(1, 2))
        announcer = Announcer(server)
        other = client(Work(tuple(map(_task, ("tiled_product", "block_scan"))), 6))
        while other.poll() is None:
            announcer.launch()
            time.sleep(0.01)
            announcer.end()
            time.sleep(0.02)
        assert _done(other)[0]["wrong"] == []
        assert server.status()["launches"]["preempted"] > 0

    @pytest.mark.parametrize("ends", ["the launch", "the process"])
    def test_best_effort_waits_while_a_launch_is_announced(self, serve, client, ends):
        server = serve(critical=False)
        announcer = Announcer(server)
        announcer.launch()
        waiting = client(Work((_task("update_in_place"),), 2))
        wait_until(lambda: server.status()["launches"]["whole"], "a launch is put into its stream")
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.communicate(timeout=1)
        if ends == "the launch":
            announcer.end()
        else:
            server._memory.give_back(announcer.area)
        done, _ = _done(waiting)
        assert done["wrong"] == []

    def test_what_a_dead_client_announced_is_forgotten(self, serve, client, place):
        server = serve(critical=False)
        first = client(Work((_task("tiled_product"),), 1000), "latency")
        wait_until(lambda: server.status()["launches"]["announced"] > 2, "it launches")
        first.kill()
        other = client(Work((_task("update_in_place"),), 4))
        assert _done(other)[0]["wrong"] == []
        wait_until(lambda: not server.status()["clients"], "their areas are taken back")

    @pytest.mark.parametrize("way", ["slower", "many_sizes"])
    def test_a_kernel_waits_by_the_time_that_it_takes_now(self, serve, start, place, way):
        serve()
        file = place / "task"
        file.write_bytes(pickle.dumps(_task("update_in_place")))
        ran = start("-m", "tests.isolation.made_up_programs", way, str(file))
        out, errors = ran.communicate(timeout=LIMIT_S)
        assert (ran.returncode, out.strip(), errors) == (0, "right", "")

    def test_a_forked_process_is_not_taken_for_its_parent(self, serve, start, place):
        server = serve()
        file = place / "task"
        file.write_bytes(pickle.dumps(_task("update_in_place")))
        ran = start("-m", "tests.isolation.made_up_programs", "forking", str(file))
        out, errors = ran.communicate(timeout=LIMIT_S)
        assert (ran.returncode, out.strip()) == (0, "right"), errors
        wait_until(lambda: len(server.status()["clients"]) == 1, "the area is taken back")
        assert server.status()["launches"]["isolated"] + server.status()["launches"]["whole"] == 1


class TestItFailsOpen:
    def test_no_scheduler(self, client):
        done, errors = _done(client(Work(tuple(map(_task, QUICK)), 1)))
        assert done["wrong"] == []
        assert _forms(done) == {"whole"}
        assert errors.count("\n") == 1
        assert "are not isolated: no scheduler answers" in errors

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
    def test_the_scheduler_ends_or_hangs(self, client, start, place, number):
        scheduler = start("-m", "dovetail.isolation.server", str(place / "socket"))
        wait_until(lambda: answers(place / "socket"), "the scheduler answers")
        with _idle_critical(place / "socket"):
            # Of several kernels, so that some forms are still asked for.
            running_client = client(Work(tuple(map(_adding, range(8))), 20))
            wait_until(
                lambda: status(place / "socket")["launches"]["isolated"] > 3, "some are isolated"
            )
            scheduler.send_signal(number)
            done, errors = _done(running_client)
        assert done["wrong"] == []
        assert "are not isolated: the scheduler" in errors

    @pytest.mark.parametrize(
        "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)]
    )
    def test_a_closed_gate_opens_when_the_scheduler_ends(self, client, start, place, number):
        """One that hangs is seen when it ought to have ignored the launch."""
        scheduler = start("-m", "dovetail.isolation.server", str(place / "socket"))
        wait_until(lambda: answers(place / "socket"), "the scheduler answers")
        joined, words = _joined_critical(place / "socket")
        with joined:
            words[15] = words[16] = 1
            call = "cuLaunchCooperativeKernel"
            waiting = client(Work((_task("update_in_place"),), 2, call=call))
            wait_until(
                lambda: status(place / "socket")["launches"]["cooperative"],
                "a launch is put into its stream",
            )
            with pytest.raises(subprocess.TimeoutExpired):
                waiting.communicate(timeout=1)
            scheduler.send_signal(number)
            done, errors = _done(waiting)
        assert done["wrong"] == []
        assert "are not isolated: the scheduler" in errors

    @pytest.mark.parametrize("priority", ["best-effort", "latency"])
    def test_a_process_joins_the_scheduler_in_place_of_one_that_has_ended(
        self, client, start, place, priority
    ):
        def launches():
            return sum(status(place / "socket")["launches"].values())

        def scheduler():
            begun = start("-m", "dovetail.isolation.server", str(place / "socket"))
            wait_until(lambda: answers(place / "socket"), "the scheduler answers")
            return begun

        first = scheduler()
        other = _idle_critical(place / "socket")
        tasks = (_task("update_in_place"), _task("three_dimensions"))
        running = client(Work(tasks, 400, pause_s=0.02), priority)
        wait_until(lambda: launches() > 3, "it has joined the first")
        first.kill()
        first.wait()
        other.close()
        scheduler()
        joined, words = _joined_critical(place / "socket")
        with joined:
            wait_until(lambda: launches() > 10, "it has joined the second")
            if priority == "best-effort":
                words[15] = words[16] = 1
                wait_until(lambda: _stands(launches), "its gate is closed")
                words[17] = 1
                seen = launches()
                wait_until(lambda: launches() > seen + 3, "its gate is open again")
            done, errors = _done(running)
        assert done["wrong"] == []
        assert "are not isolated: the scheduler" in errors
        assert "are isolated again" in errors

    def test_a_gpu_that_cannot_wait(self, serve, client):
        server = serve()
        work = Work((_task("update_in_place"),), 5, gpu=(("waits_fail", True),))
        running = client(replace(work, pause_s=0.3))
        wait_until(lambda: server.status()["launches"]["left alone"], "launches are left alone")
        done, errors = _done(running)
        assert (done["wrong"], done["launches"]) == ([], {"k": 5})
        assert errors.count("are not isolated: the GPU cannot wait") == errors.count("\n") == 1
        assert server.status()["launches"]["left alone"] == 4

    def test_another_version(self, client, place):
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(place / "socket"))
            listening.listen()
            begun = client(Work((_task("update_in_place"),), 1))
            listening.accept()[0].close()
            done, errors = _done(begun)
        assert done["wrong"] == []
        assert "no scheduler answers" in errors

    def test_calls_that_cannot_be_cut_up(self, serve, start, place):
        server = serve()
        file = place / "task"
        file.write_bytes(pickle.dumps(_task("update_in_place")))
        ran = start("-m", "tests.isolation.made_up_programs", "escapes", str(file))
        out, errors = ran.communicate(timeout=LIMIT_S)
        assert (ran.returncode, out.strip()) == (0, "right"), errors
        launches = server.status()["launches"]
        names = ("cooperative", "graph", "launch attributes", "arguments in a buffer", "no PTX")
        assert {name: launches[name] for name in names} == dict.fromkeys(names, 1)
        assert launches["isolated"] == 0


class TestHostileClients:
    """A process of the user cannot end the scheduler, nor flood who asks for its status."""

    @pytest.mark.parametrize("size", [0, 4096, 1 << 20])
    def test_the_memory_keeps_its_size_and_only_the_scheduler_says_who_is_there(
        self, serve, place, size
    ):
        server = serve(critical=False)
        with socket.socket(socket.AF_UNIX) as joined:
            joined.connect(str(place / "socket"))
            joined.sendall(struct.pack("=IIIII", 1, 12, server_module.VERSION, 1, os.getpid()))
            _, files, _, _ = socket.recv_fds(joined, 4, 2)
            for file in files:
                with pytest.raises(PermissionError):
                    os.ftruncate(file, size)
                with pytest.raises(PermissionError):
                    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
            with pytest.raises(PermissionError):
                mmap.mmap(files[0], 0)
            with pytest.raises(PermissionError):
                os.pwrite(files[0], b"x", 0)
            # A word that all processes read is where it was.
            for file in files:
                os.close(file)
            server._memory.ignore_stale()
            assert len(server.status()["clients"]) == 1

    @pytest.mark.parametrize(("priority", "gates"), [("best-effort", 1), ("latency", 64)])
    def test_a_process_can_write_its_own_area_and_the_gates_it_closes(
        self, serve, client, priority, gates
    ):
        server = serve()
        running = client(Work((_task("update_in_place"),), 10_000, pause_s=0.05), priority)
        wait_until(lambda: sum(server.status()["launches"].values()) > 2)
        lines = Path(f"/proc/{running.pid}/maps").read_text().splitlines()
        writable = 0
        for line in lines:
            if "memfd:dovetail" in line:
                span, way, *_ = line.split()
                begin, end = (int(place, 16) for place in span.split("-"))
                writable += (end - begin) * ("w" in way)
        assert writable == (1 + gates) * 65536

    def test_the_status_is_short(self, serve, place):
        server = serve(critical=False)
        names = {f"k{number}\n\x1b[2J" + "x" * 5000: "why\u202e" * 1000 for number in range(1000)}
        made = server_module._PreparedModule("key", "", escapes=names)
        server._joined[0] = server_module._ClientProcess(1, False, 0, modules=[made])
        found = status(place / "socket")["escapes"]
        assert 0 < len(found) <= 64
        assert all(
            len(text) <= 200 and text.isprintable() for pair in found.items() for text in pair
        )


class TestModules:
    """The forms that the scheduler prepares of modules."""

    def _prepared(self, place, image):
        server = SchedulerServer(place / "socket", unproven=True)
        server.close()
        return server._prepare(image, 80)

    def test_forms(self, place):
        made = self._prepared(place, _task("update_in_place").image)
        assert set(made.kernels[0].forms) == {"slices", "workers"}
        assert made.parameters == (2,)
        assert made.escapes == {}

    def test_a_variable_would_be_there_twice(self, place):
        text = _task("update_in_place").image.decode()
        text = text.replace(".visible", ".global .align 4 .u32 total;\n.visible", 1)
        made = self._prepared(
            place, text.replace("ret;", "mov.u64 %rd1, total;\n\tret;", 1).encode()
        )
        assert (made.text, made.kernels[0].forms) == ("", {})
        assert "variable total" in made.escapes["k: slices"]
        # One that a kernel does not name does no harm.
        assert self._prepared(place, text.encode()).kernels[0].forms

    def test_a_kernel_with_many_pointers(self, place):
        """As of lists of tensors: a module of it has forms of its other kernels."""
        many = ", ".join(f".param .u64 p{number}" for number in range(65))
        text = f"{_task('update_in_place').image.decode()}\n.visible .entry many({many}) {{ ret; }}"
        server = SchedulerServer(place / "socket", unproven=True)
        server.close()
        client = server_module._ClientProcess(1, False, 0)
        assert server._module(client, struct.pack("=I", 80) + text.encode())
        _, many = client.modules[0].kernels
        assert many.refused["slices"] == "it has more than 64 parameters"
        assert client.modules[0].kernels[0].forms

    def test_what_failed_in_a_process_is_said_of_it_only(self, place):
        server = SchedulerServer(place / "socket", unproven=True)
        server.close()
        made = server._prepare(_task("update_in_place").image, 80)
        first, other = (
            server_module._ClientProcess(1, False, area, modules=[made]) for area in (0, 1)
        )
        server._failed(first, struct.pack("=4I", 0, 0, 1, 2))
        request = struct.pack("=12I", 0, 0, 4, 1, 1, 16, 1, 1, 0, 65536, 4, 0)
        for client in (first, other):
            server._form(client, request)
        assert first.escapes() == {"k: slices": _OUTCOMES[2]}
        assert other.escapes() == {}

    def test_what_cannot_be_tried_on_copies_has_no_forms(self, place):
        text = _task("update_in_place").image.decode()
        made = self._prepared(
            place, text.replace(".param .u64 k_param_0", ".param .b8 k_param_0[8]", 1).encode()
        )
        assert not made.kernels[0].forms
        assert "structure" in made.escapes["k: workers"]

    @pytest.mark.parametrize(
        ("image", "why"),
        [
            (b"\x7fELF" + bytes(60), "machine code without PTX"),
            (b".version 7.0\n.target sm_80\nnonsense", "ptxas"),
            (b".version 7.0\n", ".target"),
        ],
    )
    def test_without_forms(self, place, image, why):
        made = self._prepared(place, image)
        assert (made.text, made.kernels) == ("", ())
        assert why in str(made.escapes)


class TestCampaign:
    """Clients and schedulers are killed at random moments."""

    def test_short(self, start, place):
        self._campaign(start, place, 20, seed=1)

    @pytest.mark.long
    @pytest.mark.parametrize("seed", range(10))
    def test_many(self, start, place, seed):
        self._campaign(start, place, 1000, seed=seed)

    def _campaign(self, start, place, kills, seed):
        names = (*QUICK, "row_sums_with_early_returns", "dynamic_shared_memory", "votes")
        file = place / "tasks"
        file.write_bytes(pickle.dumps([_task(name) for name in names]))
        herd = "tests.isolation.made_up_herd"
        ran = start("-m", herd, str(file), str(place / "socket"), str(kills), str(seed))
        out, errors = ran.communicate()
        assert ran.returncode == 0, errors
        found = json.loads(out)
        assert found["faults"] == [], errors
        assert found["counts"]["finished"] > kills / 20


class TestBuilding:
    def test_it_is_built_once(self, tmp_path):
        made = library(tmp_path)
        since = made.stat().st_mtime_ns
        assert library(tmp_path) == made
        assert made.stat().st_mtime_ns == since
        assert [one.name for one in tmp_path.iterdir()] == [made.name]

    def test_no_compiler(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(InterceptionError, match="isolation is not available: no C compiler"):
            library(tmp_path)

    def test_a_compiler_that_fails(self, tmp_path, monkeypatch):
        (tmp_path / "cc").write_text(
            "#!/bin/sh\necho 'fatal error: stdio.h: no such file' >&2\nexit 1\n"
        )
        (tmp_path / "cc").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        with pytest.raises(InterceptionError, match=r"not available: .*stdio"):
            library(tmp_path / "cache")

    def test_a_command_that_is_intercepted(self, tmp_path):
        module = "dovetail.isolation.interception"
        command = [sys.executable, "-m", module, "--kept", tmp_path / "kept", tmp_path / "s"]
        given = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
        asked = [*command, "latency", "sh", "-c", "echo $LD_PRELOAD; echo $TRITON_PTXAS_PATH"]
        ran = subprocess.run(asked, env=given, capture_output=True, text=True, check=True)
        preloaded, ptxas = ran.stdout.split()
        assert Path(preloaded).parent == tmp_path / "dovetail"
        assert ptxas == str(tmp_path / "kept" / "ptxas")
        ran = subprocess.run([*command, "latency", "missing"], env=given, capture_output=True)
        assert (ran.returncode, b"missing" in ran.stderr) == (1, True)

    def test_what_a_job_preloads_is_kept(self, tmp_path):
        made = environment(tmp_path / "a.so", tmp_path / "s", "latency", {"LD_PRELOAD": "b.so"})
        assert made["LD_PRELOAD"] == f"{tmp_path / 'a.so'} b.so"
        assert made["DOVETAIL_ISOLATION_PRIORITY"] == "latency"

    def test_an_assembler_that_keeps_ptx(self, tmp_path):
        ptxas = find_ptxas()
        program = assembler(tmp_path, ptxas)
        since = program.stat().st_mtime_ns
        assert assembler(tmp_path, ptxas).stat().st_mtime_ns == since
        asked = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        assert "release" in asked.stdout
        assert asked.stdout.endswith("PTX is kept by Dovetail\n")
        broken = tmp_path / "broken.ptx"
        broken.write_text("nothing")
        ran = subprocess.run(
            [program, broken, "-o", tmp_path / "o"], capture_output=True, text=True
        )
        assert ran.returncode
        assert "broken.ptx" in ran.stderr
        assert {one.name for one in tmp_path.iterdir()} == {"ptxas", "broken.ptx"}

    def test_a_job_may_have_an_assembler_of_its_own(self, tmp_path):
        given = (tmp_path, tmp_path, "best-effort")
        assert environment(*given, {}, tmp_path)["TRITON_PTXAS_PATH"] == str(tmp_path)
        assert "TRITON_PTXAS_PATH" not in environment(*given, {"TRITON_PTXAS_PATH": "a"}, tmp_path)

    def test_other_libraries_find_what_comes_after_them(self, start, tmp_path):
        source = tmp_path / "next.c"
        source.write_text(
            "#define _GNU_SOURCE\n#include <dlfcn.h>\n"
            "int getppid(void) {\n"
            '    return 1000000 + ((int (*)(void))dlsym(RTLD_NEXT, "getppid"))();\n}\n'
        )
        made = tmp_path / "next.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", made, source], check=True)
        ran = start("-c", "import os; print(os.getppid())", LD_PRELOAD=str(made))
        out, errors = ran.communicate(timeout=LIMIT_S)
        assert int(out) == 1000000 + os.getpid(), errors


class TestMemory:
    def test_areas_are_taken_in_turn(self):
        memory = Memory()
        first = memory.take(critical=True)
        memory.give_back(first)
        assert [memory.take(critical=False) for _ in range(63)] == [*range(1, 64)]
        assert memory.take(critical=False) == first
        assert memory.take(critical=False) is None

    def test_who_has_joined_is_in_the_header(self):
        memory = Memory()
        taken = [memory.take(critical=number % 3 == 0) for number in range(40)]
        header = [*memory.header[:4]]
        assert header[0] | header[1] << 32 == sum(1 << area for area in taken if area % 3 == 0)
        assert header[2] | header[3] << 32 == sum(1 << area for area in taken if area % 3)
        for area in taken:
            memory.give_back(area)
        assert [*memory.header[:4]] == [0, 0, 0, 0]

    def test_announcements_that_never_end_are_ignored(self):
        memory = Memory()
        words = memory.area(memory.take(critical=True))
        words[15] = 2
        words[16], words[20] = 5, 7
        for _ in range(20):
            words[20] += 1
            memory.ignore_stale()
        assert words[18] == 5
        assert words[22] == 0

    def test_a_queue_that_gets_shorter_is_not_ignored(self):
        memory = Memory()
        words = memory.area(memory.take(critical=True))
        words[15], words[16] = 1, 50
        for _ in range(40):
            words[17] += 1
            memory.ignore_stale()
        assert words[18] == 0
        for _ in range(20):
            memory.ignore_stale()
        assert words[18] == 50

    def test_counts_have_the_order_of_the_source(self):
        source = Path(sys.modules[library.__module__].__file__).with_name("process.h").read_text()
        names = source.partition("enum count {")[2].partition("}")[0]
        assert len(names.split(",")) == len(COUNTS) == 15
