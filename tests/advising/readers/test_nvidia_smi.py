"""Series of ``nvidia-smi --query-gpu`` and ``--query-compute-apps``."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.advising.reader import read_usage
from dovetail.instances.errors import InputError
from tests.advising.readers.fuzz import read_damaged

HEADER = (
    "timestamp, uuid, name, utilization.gpu [%], utilization.memory [%], memory.used [MiB],"
    " memory.total [MiB], power.draw [W]\n"
)
ROWS = (
    "2026/11/29 10:00:00.046, GPU-0a, NVIDIA H200, 37 %, 5 %, 1234 MiB, 143771 MiB, 60.00 W\n"
    "2026/11/29 10:00:00.074, GPU-0b, NVIDIA H200, [N/A], [N/A], 900 MiB, 143771 MiB,"
    " [Not Supported]\n"
    "2026/11/29 10:00:01.046, GPU-0a, NVIDIA H200, 50 %, 15 %, 3234 MiB, 143771 MiB, 80.00 W\n"
    "2026/11/29 10:00:01.074, GPU-0b, NVIDIA H200, 7 %, 1 %, 900 MiB, 143771 MiB, [N/A]\n"
)
APPS = (
    "timestamp, gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n"
    "2026/11/29 10:00:00.046, GPU-0a, 77, python, 1000 MiB\n"
    "2026/11/29 10:00:00.046, GPU-0a, 78, /usr/bin/train, 500 MiB\n"
    "2026/11/29 10:00:00.074, GPU-0b, 77, python, 3000 MiB\n"
    "2026/11/29 10:00:01.046, GPU-0a, 77, python, [N/A]\n"
    "2026/11/29 10:00:01.074, GPU-0b, 77, python, 4000 MiB\n"
)


def without_units(text):
    for unit in (" %", " MiB", " W"):
        text = text.replace(unit, "")
    return text


def files():
    """Return sample files by name."""
    return {
        "gpus.csv": (HEADER + ROWS).encode(),
        "noheader.csv": without_units(ROWS).encode(),
        "apps.csv": APPS.encode(),
    }


def jobs_of(tmp_path, text, name="node1.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_usage(str(path)).jobs.set_index("job")


@pytest.mark.parametrize(
    "text",
    [
        HEADER + ROWS,
        HEADER + without_units(ROWS),
        HEADER + ROWS[: len(ROWS) // 2].rpartition("\n")[0] + "\n" + HEADER
        + ROWS[len(ROWS[: len(ROWS) // 2].rpartition("\n")[0]) + 1 :],
        ROWS,
        without_units(ROWS),
    ],
    ids=["units", "nounits", "two runs", "noheader", "noheader,nounits"],
)  # fmt: skip
def test_gpus(tmp_path, text):
    jobs = jobs_of(tmp_path, text)
    assert list(jobs.index) == ["GPU-0a", "GPU-0b"]
    a, b = jobs.loc["GPU-0a"], jobs.loc["GPU-0b"]
    assert a.gpu_util_mean == pytest.approx((0.37 + 0.5) / 2)
    assert a.mem_util_mean == pytest.approx(0.1)
    assert (a.memory_mean_mib, a.memory_max_mib, a.card_mib) == (2234, 3234, 143771)
    assert (a.power_w_mean, a.gpu_model, a.samples) == (70, "NVIDIA H200", 2)
    assert a.end_s - a.start_s == pytest.approx(1)
    assert a.start_s == pytest.approx(1795946400.046)
    assert (b.gpu_util_mean, b.samples) == (pytest.approx(0.07), 2)
    assert np.isnan(b.power_w_mean)


def test_gpus_by_index_are_those_of_the_file(tmp_path):
    text = "timestamp, index, utilization.gpu [%]\n2026/11/29 10:00:00.046, 3, 5 %\n"
    assert list(jobs_of(tmp_path, text).index) == ["node1/gpu 3"]


def test_processes(tmp_path):
    jobs = jobs_of(tmp_path, APPS)
    assert list(jobs.index) == ["node1/pid 77", "node1/pid 78"]
    both = jobs.loc["node1/pid 77"]
    assert (both.gpus, both["name"]) == (2, "python")
    assert (both.memory_mean_mib, both.memory_max_mib) == (3500, 4000)
    assert jobs.memory_max_mib["node1/pid 78"] == 500


def test_idle_gpus_are_left_out(tmp_path):
    path = tmp_path / "gpus.csv"
    row = "2026/11/29 10:00:00.1, GPU-0c, NVIDIA H200, 0 %, 0 %, 1 MiB, 143771 MiB, 60.00 W\n"
    path.write_text(HEADER + ROWS + row, encoding="utf-8")
    usage = read_usage(str(path))
    assert list(usage.jobs.job) == ["GPU-0a", "GPU-0b"]
    assert str(usage.left_out[0]) == "GPUs (1): were idle and empty while they were recorded"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("index, utilization.gpu [%]\n0, 5 %\n", "line 1: must have the column timestamp:"
         " nvidia-smi --query-gpu=timestamp,..., got index, utilization.gpu"),
        ("timestamp, temperature.gpu\n2026/11/29 10:00:00.046, 40\n", "line 1: must have"
         " utilization.gpu or memory.used (of processes: used_gpu_memory), got timestamp,"
         " temperature.gpu"),
        ("2026/11/29 10:00:00.046, GPU-0a, 5\n", "line 1: must have a header (leave out noheader),"
         " or have been asked for --query-gpu=timestamp,uuid,name,utilization.gpu,"
         "utilization.memory,memory.used,memory.total,power.draw or --query-compute-apps="
         "timestamp,gpu_uuid,pid,process_name,used_gpu_memory"),
        ("timestamp, index, utilization.gpu [%]\n29.11.2026 10:00:00, 0, 5 %\n", "line 2:"
         " timestamp: must be a time as 2026-11-29T13:00:00Z, or seconds since 1970 or since the"
         " start, got ' 29.11.2026 10:00:00'".replace("' 29", "'29")),
        (HEADER + ROWS + "2026/11/29 10:00:02, GPU-0a, NVIDIA H200, 5 %\n",
         "line 6: must have 8 fields, got 4"),
    ],
)  # fmt: skip
def test_broken_files(tmp_path, text, message):
    path = tmp_path / "gpus.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_usage(str(path), "nvidia-smi")
    assert str(caught.value).replace(f"{tmp_path}/", "") == f"gpus.csv: {message}"


def test_damaged_files(tmp_path):
    read_damaged(tmp_path, "nvidia-smi", files())
