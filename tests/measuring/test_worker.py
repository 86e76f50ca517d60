"""The worker's protocol, spoken with real processes that compute on a processor core."""

import itertools
import re
import subprocess
from pathlib import Path

import pytest

from dovetail.measuring.workloads.session import text, why
from tests.executor.waiting import LIMIT_S
from tests.measuring.driving import WITH_TORCH, Worker, worker_command
from tests.pytorch import needs_torch

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "workloads.md"

OWN = """
import pathlib, time
KIND, FAMILY, BATCH = "training", "own", {"tiny": 1}
warm = pathlib.Path(__file__).with_name("warm")
def prepare(device, size, seed):
    BUILDING
    def step():
        time.sleep(0.001)
        if warm.exists(): RUNNING
    return step
"""


@pytest.fixture
def own(tmp_path):
    """Return a way to write a workload with lines of a test's; the last waits for a file."""

    def written(building="pass", running="pass"):
        path = tmp_path / "mine.py"
        path.write_text(OWN.replace("BUILDING", building).replace("RUNNING", running))
        return path

    return written


@needs_torch
def test_the_example_of_the_documentation_runs_in_chunks_again_and_until_a_signal(tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    code = re.search(r"^`(\S+)`:\n\n```py\n(.*?)^```$", text, re.M | re.S)
    path = tmp_path / code[1]
    path.write_text(code[2])
    with Worker(path, python=WITH_TORCH) as worker:
        ready = worker.event()
        first, again = worker.run(5), worker.run(3)
        worker.tell("run")
        worker.event()
        worker.process.terminate()
        assert worker.end() == (0, "")
    assert ready["event"] == "ready"
    assert {name: ready[name] for name in ("workload", "kind", "family", "batch_size")} == {
        "workload": str(path),
        "kind": "training",
        "family": "autoencoder",
        "batch_size": 64,
    }
    assert {name: ready[name] for name in ("cublas", "sms", "mps")} == {
        "cublas": None,
        "sms": None,
        "mps": None,
    }
    assert ready["pid"] == worker.process.pid
    assert ready["memory_mib"] > 10
    for run in (first, again):
        *steps, stopped = run
        assert {event["event"] for event in steps} == {"steps"}
        assert len({event["n"] for event in steps}) == 1
        assert stopped["memory_mib"] >= ready["memory_mib"]
        for before, after in itertools.pairwise(steps):
            # without a pause: a chunk's time is that since the chunk before
            assert after["at"] - before["at"] == pytest.approx(after["busy_s"], abs=1e-6)
            assert after["busy_s"] > 0
    assert again[0]["at"] > first[-2]["at"]


@needs_torch
def test_requests_arrive_at_the_same_times_in_every_run():
    with Worker("burst", python=WITH_TORCH) as worker:
        worker.event()
        runs = [worker.run(25)[:25] for _ in range(2)]
        worker.tell("quit")
        assert worker.end() == (0, "")
    gaps = []
    for run in runs:
        assert {event["event"] for event in run} == {"answered"}
        arrivals = [event["arrived"] for event in run]
        gaps.append([b - a for a, b in itertools.pairwise(arrivals)])
        for event in run:
            assert event["arrived"] <= event["started"] < event["at"]
        for before, after in itertools.pairwise(run):
            # one at a time, in order of arrival
            assert before["at"] <= after["started"]
            assert before["arrived"] < after["arrived"]
    # open loop: how long answers took, which differs between runs, moves no arrival
    assert gaps[0] == pytest.approx(gaps[1], abs=1e-6)


def test_a_client_that_arrives_while_another_is_answered_waits_and_the_end_of_input_ends_all(
    tmp_path,
):
    path = tmp_path / "slow.py"
    path.write_text(
        "import time\n"
        "KIND, FAMILY, BATCH = 'inference', 'slow', {'tiny': 1}\n"
        "def prepare(device, size, seed): return lambda: time.sleep(0.02)\n"
        "def gaps(draw, size):\n    while True: yield 0.01\n"
    )
    with Worker(path) as worker:
        worker.event()
        worker.tell("run")
        events = [worker.event() for _ in range(10)]
        worker.process.stdin.close()
        assert worker.end() == (0, "")
    # They come every 10 ms and take 20 ms: the k-th (from 0) waits for k * 10 ms at least.
    for k, event in enumerate(events):
        assert event["arrived"] == pytest.approx(events[0]["arrived"] + 0.01 * k, abs=1e-6)
        assert event["started"] - event["arrived"] > 0.0099 * k


def test_requests_of_a_load_are_due_whatever_the_answers_take(tmp_path):
    path = tmp_path / "slow.py"
    path.write_text(
        "import time\n"
        "KIND, FAMILY, BATCH = 'training', 'slow', {'tiny': 1}\n"
        "def prepare(device, size, seed): return lambda: time.sleep(0.01)\n"
    )
    runs = []
    with Worker(path) as worker:
        worker.event()
        for asked in ({"arrivals": "fixed"}, {}, {}):
            worker.tell("run", requests_s=200, **asked)
            runs.append([worker.event() for _ in range(20)])
            worker.tell("stop")
            worker.until("stopped")
        plain = worker.run(3)
        worker.tell("quit")
        assert worker.end() == (0, "")
    # 200 a second of which half can be answered: the k-th waits for k * 5 ms at least.
    for k, event in enumerate(runs[0]):
        assert event["arrived"] == pytest.approx(runs[0][0]["arrived"] + 0.005 * k, abs=1e-6)
        assert event["started"] - event["arrived"] > 0.0049 * k
    # Random arrivals are the same in every run, so that all settings are asked the same.
    gaps = [[b["arrived"] - a["arrived"] for a, b in itertools.pairwise(run)] for run in runs]
    assert gaps[1] == pytest.approx(gaps[2], abs=1e-6)
    assert max(gaps[1]) > 2 * min(gaps[1])
    assert {event["event"] for event in plain[:-1]} == {"steps"}


@pytest.mark.parametrize("odd", [{"requests_s": -1}, {"requests_s": "2"}, {"arrivals": "often"}])
def test_odd_requests_are_no_command(own, odd):
    with Worker(own()) as worker:
        worker.event()
        worker.tell("run", **odd)
        failed = worker.until("failed")[-1]
        assert worker.end()[0] == 1
    assert failed["text"].startswith("ValueError: no command: ")


def test_what_a_workload_prints_is_no_event(own):
    path = own(building="print('built'); import os; os.system('echo output of a child')")
    with Worker(path) as worker:
        assert worker.event()["event"] == "ready"
        worker.tell("quit")
        assert worker.event() is None
        assert worker.end() == (0, "output of a child\nbuilt\n")


def test_it_ends_when_its_reader_is_gone(own):
    process = subprocess.Popen(
        worker_command(own()), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.readline()
    process.stdout.close()
    process.stdin.write(b'{"do": "run"}\n')
    process.stdin.flush()
    assert process.wait(timeout=LIMIT_S) == 1
    assert process.communicate()[1] == b""


@needs_torch
def test_a_built_in_workload_that_does_not_fit_says_so():
    # Its three vectors of 512 MiB do not fit next to PyTorch in the 1.5 GiB that it may map.
    limited = ("bash", "-c", f'ulimit -v {1536 * 1024}; exec "$@"', "limited")
    with Worker("stream", before=limited, python=WITH_TORCH, size="full") as worker:
        failed = worker.event()
        assert worker.end() == (1, "")
    assert (failed["event"], failed["why"]) == ("failed", "out-of-memory")


@pytest.mark.parametrize(
    ("running", "why", "said"),
    [
        ("bytearray(2**60)", "out-of-memory", "MemoryError"),
        ("raise RuntimeError('CUDA error: x\\nCompile')", "error", "RuntimeError: CUDA error: x"),
    ],
)
def test_a_failure_while_it_runs_is_reported_in_a_line(own, tmp_path, running, why, said):
    with Worker(own(running=running)) as worker:
        assert worker.event()["event"] == "ready"
        worker.tell("run")
        (tmp_path / "warm").touch()
        failed = worker.until("failed")[-1]
        assert worker.end() == (1, "")
    assert (failed["why"], failed["text"]) == (why, said)


def test_an_exit_while_it_is_built_is_reported(own):
    with Worker(own(building="raise SystemExit('enough')")) as worker:
        failed = worker.event()
        assert worker.end() == (1, "")
    assert (failed["event"], failed["why"]) == ("failed", "error")
    assert failed["text"] == "SystemExit: enough"


def test_an_unknown_name_is_reported():
    with Worker("nothing") as worker:
        failed = worker.event()
        assert worker.end() == (1, "")
    assert failed["why"] == "error"
    assert failed["text"].startswith("WorkloadError: 'nothing': no built-in workload (bulk, ")


@needs_torch
def test_a_missing_gpu_is_reported():
    with Worker("gemm", "--device", "cuda", python=WITH_TORCH) as worker:
        event = worker.event()
    if event["event"] == "ready":
        pytest.skip("there is a GPU")
    assert event["why"] == "error"
    assert "no built-in workload" not in event["text"]


@pytest.mark.parametrize(
    "said",
    [
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.18 GiB",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory",
    ],
)
def test_what_says_that_memory_is_short(said):
    assert why(RuntimeError(said)) == "out-of-memory"


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might",
        "CUDA error: MPS client failed to connect to the MPS control daemon",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "",
    ],
)
def test_what_says_something_else(said):
    assert why(RuntimeError(said)) == "error"
    assert text(RuntimeError(said)) == f"RuntimeError: {said.partition(chr(10))[0]}".rstrip(": ")


def test_memory_that_python_lacks():
    assert why(MemoryError()) == "out-of-memory"
    assert text(MemoryError()) == "MemoryError"


@needs_torch
def test_kernels_are_profiled_into_the_file_that_is_named(tmp_path):
    trace = tmp_path / "trace.json"
    with Worker("gemm", python=WITH_TORCH) as worker:
        chunk = worker.event()["chunk"]
        worker.run(2)
        worker.tell("profile", trace=str(trace))
        found = worker.event()
        again = worker.run(2)
        worker.tell("quit")
        assert worker.end()[0] == 0
    assert found["event"] == "profiled"
    assert found["iterations"] % chunk == 0
    assert found["iterations"] > 0
    assert found["cost_s"] > 0
    assert "traceEvents" in trace.read_text()
    assert again[-1]["event"] == "stopped"


def test_without_pytorch_nothing_is_profiled(own):
    with Worker(own()) as worker:
        worker.event()
        worker.tell("profile", trace="t.json")
        assert worker.event() == {"event": "profiled", "text": "needs PyTorch"}
        worker.tell("quit")
        assert worker.end() == (0, "")


def test_profile_needs_a_file_and_an_idle_worker(own):
    with Worker(own()) as worker:
        worker.event()
        worker.tell("profile")
        assert "no command" in worker.event()["text"]
    with Worker(own()) as worker:
        worker.event()
        worker.tell("run")
        worker.tell("profile", trace="t.json")
        assert "profile was commanded during a run" in worker.until("failed")[-1]["text"]
