"""Progress, counted by real processes and read from their files."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.executor.jobs.specs import JobSpec
from dovetail.executor.pools.pool import Progress
from dovetail.executor.pools.progress_hook.dovetail_progress import (
    BUCKETS,
    LATENCIES_SIZE,
    SIZE,
    bucket_of,
    decode,
    decode_latencies,
    encode,
    encode_latencies,
    latency_at,
)
from dovetail.executor.pools.runs.progress import HOOK_DIRECTORY, hook_environment, read_progress
from dovetail.executor.system.clock import boot_s
from dovetail.instances.errors import InputError
from tests.executor.live.telling import ANN
from tests.executor.waiting import LIMIT_S
from tests.pytorch import TORCH_PYTHON, needs_torch

counts = st.tuples(st.floats(0, 1e15), st.floats(0, 1e15), st.none() | st.floats(1e-3, 1e15))


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "progress")


def environment(path, **more):
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return hook_environment(path, {**kept, "PYTHONWARNINGS": "error", **more})


def run(path, code, *args, python=sys.executable, **env):
    """Run a program as a job; check its exit status and return its output."""
    command = [python, "-c", textwrap.dedent(code), *args]
    done = subprocess.run(
        command, env=environment(path, **env), capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    return done


# The file.


@given(counts)
def test_what_is_written_is_read(count):
    assert len(encode(count)) == SIZE
    assert decode(encode(count)) == count


@given(counts, counts, st.integers(1, SIZE - 1))
def test_a_torn_file_is_distinguished_from_a_whole_one(old, new, cut):
    torn = encode(new)[:cut] + encode(old)[cut:]
    assert decode(torn) in (None, old, new)
    assert decode(encode(new)[:cut]) is None


@pytest.mark.parametrize(
    ("magic", "iterations", "at_s"),
    [
        (b"DTPROG2\n", 1.0, 1.0),
        (b"DTPROG1\n", float("nan"), 1.0),
        (b"DTPROG1\n", -1.0, 1.0),
        (b"DTPROG1\n", float("inf"), 1.0),
        (b"DTPROG1\n", 1.0, float("nan")),
    ],
)
def test_impossible_counts_are_not_believed(magic, iterations, at_s):
    body = struct.pack("<8sddd", magic, iterations, at_s, 1.0)
    assert decode(body + struct.pack("<I4x", zlib.crc32(body))) is None


def test_what_is_no_progress_file_reads_as_nothing(tmp_path):
    real, pipe, link = tmp_path / "real", tmp_path / "pipe", tmp_path / "link"
    real.write_bytes(encode((1.0, boot_s(), None)))
    os.mkfifo(pipe)
    link.symlink_to(real)
    (tmp_path / "short").write_bytes(b"DTPROG1\n")
    (tmp_path / "late").write_bytes(encode((1.0, boot_s() + 60, None)))
    assert read_progress(str(real)).iterations == 1.0
    for name in ("absent", "pipe", "link", "short", "late", "."):
        assert read_progress(str(tmp_path / name)) is None


STEPS = 20_000


@pytest.mark.parametrize("also", ["", "p.latency(1e-6 * k), "])
def test_a_reader_sees_whole_counts_that_only_grow(path, also):
    code = f"[({also}p.step()) for k in range({STEPS})]"
    code = f"import dovetail_progress as p; p.INTERVAL_S = 0; {code}"
    read = []
    with subprocess.Popen([sys.executable, "-c", code], env=environment(path)) as job:
        while job.poll() is None:
            read.append(read_progress(path))
    read.append(read_progress(path))
    # One that was being written three times in a row is None.
    seen = [found for found in read if found]
    assert seen == sorted(seen, key=lambda one: one.iterations)
    assert seen == sorted(seen, key=lambda one: one.at_s)
    latencies = [sum(count for _, count in one.latencies) for one in seen]
    assert latencies == sorted(latencies)
    assert (seen[-1].iterations, latencies[-1]) == (STEPS, STEPS if also else 0)


# Latencies.


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(8, LATENCIES_SIZE - 1))
def test_a_histogram_is_read_as_it_was_written_or_not_at_all(even, odd, cut):
    counts, others = (even, odd) * (BUCKETS // 2), (odd, even) * (BUCKETS // 2)
    whole = encode_latencies(counts)
    assert len(whole) == LATENCIES_SIZE
    assert decode_latencies(whole) == counts
    assert decode_latencies(whole[:cut] + encode_latencies(others)[cut:]) in (None, counts, others)
    assert decode_latencies(whole[:cut]) is None
    assert decode_latencies(b"other content") == decode_latencies(b"") == ()


@given(st.floats(1e-6, 4000.0))
def test_a_latency_is_within_its_bucket_which_is_narrow(seconds):
    bucket = bucket_of(seconds)
    assert latency_at(bucket) <= seconds * (1 + 1e-9)
    assert seconds <= latency_at(bucket + 1) * (1 + 1e-9)
    assert latency_at(bucket + 1) < 1.022 * latency_at(bucket)


def test_latencies_are_counted_with_iterations(path):
    code = """
    from dovetail_progress import latency, step
    for k in range(200):
        latency(0.004)
        step()
    for wrong in (float("nan"), float("inf"), -1.0):
        latency(wrong)
    for odd in (0.0, 1e9, 0.5):
        latency(odd)
    step()
    """
    run(path, code)
    found = read_progress(path)
    assert found.iterations == 201.0
    ends = {0: 1, bucket_of(0.004): 200, bucket_of(0.5): 1, BUCKETS - 1: 1}
    assert dict(found.latencies) == ends
    assert Path(path).stat().st_size == SIZE + LATENCIES_SIZE


def test_what_reports_no_latency_keeps_its_file_small_and_readable_by_older_services(path):
    run(path, "from dovetail_progress import step\nstep(3)")
    assert Path(path).stat().st_size == SIZE
    assert read_progress(path).latencies == ()
    run(path, "from dovetail_progress import latency, step\nlatency(0.1)\nstep(4)")
    assert decode(Path(path).read_bytes()[:SIZE])[0] == 7.0


def test_the_next_process_goes_on_with_the_latencies(path):
    code = "from dovetail_progress import latency, step\nfor _ in range(50): step(); latency(0.1)"
    for _ in range(3):
        run(path, code)
    assert read_progress(path).latencies == ((bucket_of(0.1), 150),)


# A program that counts for itself.


def test_steps_are_counted_and_the_last_ones_are_not_lost(path):
    before_s = boot_s()
    run(path, "from dovetail_progress import step\nfor _ in range(1234): step()\nstep(0.5)")
    found = read_progress(path)
    assert found.iterations == 1234.5
    assert found.total is None
    assert before_s < found.at_s < boot_s()


def test_a_program_may_report_its_own_count(path):
    run(path, "from dovetail_progress import report\nreport(500)\nreport(700, total=9000)")
    assert read_progress(path)[::2] == (700.0, 9000.0)


def test_a_file_that_cannot_be_written_is_no_trouble_to_the_job(tmp_path):
    code = "import dovetail_progress as p; p.INTERVAL_S = 0\nfor _ in range(5): p.step()"
    for place in (tmp_path / "no" / "folder", tmp_path, "/dev/full"):
        assert run(str(place), code).stderr == ""


def test_without_dovetail_the_calls_do_nothing():
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": HOOK_DIRECTORY}
    code = "import dovetail_progress as p; p.step(); p.report(3); p.count_optimizer_steps()"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_one_process_after_another_goes_on_counting(path):
    for _ in range(3):
        run(path, "from dovetail_progress import step\nfor _ in range(100): step()")
    assert read_progress(path).iterations == 300.0


def test_of_two_processes_at_once_one_counts_and_a_fork_does_not(path):
    run(
        path,
        """
        import os, subprocess, sys
        from dovetail_progress import step
        for _ in range(10): step()
        count = "from dovetail_progress import step\\nfor _ in range(500): step()"
        subprocess.run([sys.executable, "-c", count], check=True)
        child = os.fork()
        if child == 0:
            import dovetail_progress
            dovetail_progress.INTERVAL_S = 0
            for _ in range(500): step()
            os._exit(0)
        os.waitpid(child, 0)
        for _ in range(10): step()
        """,
    )
    assert read_progress(path).iterations == 20.0


# What Python runs at its start.


def test_the_sitecustomize_that_was_there_is_run_as_if_it_were_the_only_one(tmp_path, path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nmark = 7\nprint('mine', __name__)")
    code = "import sitecustomize; print(sitecustomize.mark, sitecustomize.__file__)"
    output = run(path, code, PYTHONPATH=str(tmp_path)).stdout
    assert output == f"mine sitecustomize\n7 {tmp_path}/sitecustomize.py\n"


def test_a_broken_sitecustomize_is_reported_as_without_dovetail(tmp_path, path):
    (tmp_path / "sitecustomize.py").write_text("1 / 0")
    [expected] = (
        subprocess.run(
            [sys.executable, "-c", ""], env={"PYTHONPATH": str(tmp_path)}, capture_output=True
        ).stderr,
    )
    assert b"ZeroDivisionError" in expected
    assert run(path, "pass", PYTHONPATH=str(tmp_path)).stderr.encode() == expected


def test_trouble_of_our_own_does_not_reach_the_job(tmp_path, path):
    (tmp_path / "zlib.py").write_text("1 / 0")
    env = environment(path)
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), env["PYTHONPATH"]])
    done = subprocess.run([sys.executable, "-c", "print(1)"], env=env, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"1\n")
    assert done.stderr == b"dovetail: steps are not counted: division by zero\n"


def test_the_hook_adds_to_the_module_path_that_is_set():
    assert hook_environment("/p", {"PYTHONPATH": "/a:/b"}) == {
        "PYTHONPATH": f"{HOOK_DIRECTORY}:/a:/b",
        "DOVETAIL_PROGRESS": "/p",
    }
    assert hook_environment("/p", {})["PYTHONPATH"] == HOOK_DIRECTORY
    assert hook_environment(None, {}) == {"PYTHONPATH": HOOK_DIRECTORY}


# Optimizer steps.

STAND_IN = """
hooks = []
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
class Optimizer:
    def step(self):
        for hook in hooks:
            hook(self, (), {})
"""


@pytest.fixture
def stand_in(tmp_path):
    """A package named torch with only the one function of PyTorch that is used."""
    folder = tmp_path / "torch" / "optim"
    folder.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("import torch.optim")
    (folder / "__init__.py").write_text("from torch.optim.optimizer import *")
    (folder / "optimizer.py").write_text(STAND_IN)
    return tmp_path


def test_optimizer_steps_are_counted_with_a_stand_in_for_pytorch(path, stand_in):
    code = "import torch\no = torch.optim.Optimizer()\nfor _ in range(40): o.step()"
    run(path, code, PYTHONPATH=str(stand_in))
    assert read_progress(path).iterations == 40.0


def test_a_program_that_counts_for_itself_is_believed_rather_than_its_optimizer(path, stand_in):
    code = """
    import torch
    from dovetail_progress import step
    o = torch.optim.Optimizer()
    for _ in range(40):
        for _ in range(4): o.step()
        step()
    """
    run(path, code, PYTHONPATH=str(stand_in))
    assert read_progress(path).iterations == 40.0


def test_an_old_pytorch_is_left_alone(path, stand_in):
    (stand_in / "torch" / "optim" / "optimizer.py").write_text("class Optimizer: pass")
    assert run(path, "import torch; print(2)", PYTHONPATH=str(stand_in)).stdout == "2\n"
    assert not Path(path).exists()


def test_a_failing_import_of_pytorch_is_reported_as_without_dovetail(path, stand_in):
    (stand_in / "torch" / "optim" / "optimizer.py").write_text("1 / 0")
    code = "try:\n    import torch\nexcept ZeroDivisionError:\n    print('as it was')"
    assert run(path, code, PYTHONPATH=str(stand_in)).stdout == "as it was\n"


TRAINING = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
compiled = torch.compile(lambda: optimizer.step(), backend="eager")
for step in [optimizer.step] * 30 + [compiled] * 5:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    step()
"""


@needs_torch
def test_optimizer_steps_of_pytorch_are_counted_and_compiled_ones_run_uncounted(path):
    run(path, TRAINING, python=TORCH_PYTHON, PYTHONWARNINGS="")
    assert read_progress(path).iterations == 30.0


# Lines of output.

LINES = """
import sys
from dovetail_progress_lines import Lines
lines = Lines(sys.argv[1], sys.argv[2])
for chunk in sys.argv[3:]:
    lines.feed(chunk.encode().decode("unicode_escape").encode("latin-1"))
"""


@pytest.mark.parametrize(
    ("pattern", "chunks", "expected"),
    [
        (r"step (\d+)", [r"step 5\n"], 5.0),
        (r"step (\d+)", [r"step 5\nloss 2.5\nst", r"ep 1", r"7\nhello"], 17.0),
        (r"step (\d+)", [r"step 5\nstep 6"], 5.0),
        (r"(\d+)/\d+", [r"\r 10%| 10/100\r 20%| 20/100", r"\r"], 20.0),
        (r"step ([\d,.]+)", [r"step 1,234.5\n"], 1234.5),
        (r"step (\S+)", [r"step 3\nstep nan\nstep -4\nstep x\n"], 3.0),
        (r"step (\d+)(?: of)?|done()", [r"step 8\ndone\n"], 8.0),
        (r"step (\d+)", [r"\xff\xfe step 9\n"], 9.0),
    ],
)
def test_progress_is_found_in_output(path, pattern, chunks, expected):
    run(path, LINES, pattern, path, *chunks)
    assert read_progress(path).iterations == expected


def test_a_line_without_end_is_not_kept_whole(path):
    code = """
    import sys
    from dovetail_progress_lines import Lines
    lines = Lines("n(.)", sys.argv[1])
    for _ in range(100):
        lines.feed(b"x" * 10_000)
    assert len(lines._rest) < 5_000
    lines.feed(b"n7" + bytes([10]))
    """
    run(path, code, path)
    assert read_progress(path).iterations == 7.0


@pytest.mark.parametrize(
    ("pattern", "rule"),
    [
        (
            "step (",
            "must be a regular expression: missing ), unterminated subpattern at position 5",
        ),
        (r"step \d+", r"must have a group, the iterations done, got 'step \\d+'"),
    ],
)
def test_a_pattern_without_progress_is_refused_with_the_job(pattern, rule):
    job = {"command": ["a"], "workload": "w", "owner": ANN, "cwd": "/"}
    with pytest.raises(InputError, match=re.escape(f"progress_pattern: {rule}")):
        JobSpec.from_data({**job, "progress_pattern": pattern})


def test_a_reading_is_what_pools_give(path):
    run(path, "import dovetail_progress\ndovetail_progress.report(3, 10)")
    assert isinstance(read_progress(path), Progress)
