"""What ``nvidia-smi dmon`` and ``pmon`` and ``dcgmi dmon`` print."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.advising.reader import read_usage
from dovetail.instances.errors import InputError
from tests.advising.readers.fuzz import read_damaged

DMON = """\
#Date       Time        gpu    pwr  gtemp     fb   bar1     sm    mem    enc  rxpci  txpci
#YYYYMMDD   HH:MM:SS    Idx      W      C     MB     MB      %      %      %   MB/s   MB/s
 20261129   13:54:35      0    100     40    239      3      6      1      0      5     10
 20261129   13:54:35      1     60     40    239      3      -      -      0      5     10

#Date       Time        gpu    pwr  gtemp     fb   bar1     sm    mem    enc  rxpci  txpci
#YYYYMMDD   HH:MM:SS    Idx      W      C     MB     MB      %      %      %   MB/s   MB/s
 20261129   13:54:36      0    200     40    441      3     10      3      0      7     10
"""
PMON = """\
# gpu        pid  type    sm   mem   enc   dec    fb   command
# Idx          #   C/G     %     %     %     %    MB   name
    0       4673     G     -     -     -     -     3   Xorg
    0       4765     C    30     0     -     -   400   python train.py
    1          -     -     -     -     -     -     -   -
    0       4673     G     -     -     -     -     3   Xorg
    0       4765     C    50     4     -     -   800   python train.py
    1       4765     C    10     0     -     -   900   python train.py
"""
DCGMI = """\
#Entity   GPUTL             POWER             FBUSD        SMACT      DRAMA
ID                              W
GPU 0     75                185.300           28456        0.250      0.1
GPU 1     N/A               20.1              50           0.000      0.1
GPU-I 0   N/A               N/A               40           0.5        0.1
#Entity   GPUTL             POWER             FBUSD        SMACT      DRAMA
ID                              W
GPU 0     25                85.300            28456        0.350      N/A
GPU 1     N/A               20.1              50           0.000      0.1
GPU-I 0   N/A               N/A               40           0.5        0.1
"""
FILES = {"nvidia-smi-dmon": DMON, "nvidia-smi-pmon": PMON, "dcgmi-dmon": DCGMI}


def files(form):
    """Return the sample files of a reader by name."""
    return {"monitor.txt": FILES[form].encode()}


def usage_of(tmp_path, text, form=None):
    path = tmp_path / "node1.txt"
    path.write_text(text, encoding="utf-8")
    return read_usage(str(path), form)


def test_dmon(tmp_path):
    usage = usage_of(tmp_path, DMON)
    jobs = usage.jobs.set_index("job")
    zero, one = jobs.loc["node1/gpu 0"], jobs.loc["node1/gpu 1"]
    assert (zero.samples, zero.end_s - zero.start_s) == (2, 1)
    assert zero.start_s == 1795960475
    assert (zero.gpu_util_mean, zero.gpu_util_max) == (pytest.approx(0.08), 0.1)
    assert zero.mem_util_mean == pytest.approx(0.02)
    assert (zero.memory_mean_mib, zero.power_w_mean) == (340, 150)
    assert zero.pcie_rx_bytes_s_mean == 6 * 2**20
    assert one.memory_max_mib == 239
    assert np.isnan(one.gpu_util_mean)
    assert usage.notes == ("The times are those of the machine's clock, taken as UTC.",)


def test_dmon_without_times_and_as_csv(tmp_path):
    text = "# gpu, sm, mem, fb\n# Idx, %, %, MB\n0, 10, 0, 300\n1, 20, 0, 300\n0, 30, 0, 300\n"
    usage = usage_of(tmp_path, text)
    jobs = usage.jobs.set_index("job")
    assert jobs.gpu_util_mean.to_dict() == {"node1/gpu 0": pytest.approx(0.2), "node1/gpu 1": 0.2}
    assert jobs.samples.to_dict() == {"node1/gpu 0": 2, "node1/gpu 1": 1}
    assert jobs.start_s.isna().all()
    assert usage.notes == (
        "nvidia-smi dmon has no times: its samples count alike, and when its jobs ran is not known"
        " (-o DT prints them).",
    )


def test_pmon(tmp_path):
    usage = usage_of(tmp_path, PMON)
    (job,) = usage.jobs.itertuples()
    assert (job.job, job.name, job.gpus) == ("node1/pid 4765", "python train.py", 2)
    assert job.memory_max_mib == 900
    assert str(usage.left_out[0]) == "processes (1): they draw graphics and compute nothing"


def test_dcgmi(tmp_path):
    usage = usage_of(tmp_path, DCGMI)
    (job,) = usage.jobs.itertuples()
    assert (job.job, job.samples, job.gpu_util_mean) == ("node1/gpu 0", 2, 0.5)
    assert (job.sm_active_mean, job.sm_active_p95) == (pytest.approx(0.3), 0.35)
    assert (job.dram_active_mean, job.power_w_mean) == (0.1, pytest.approx(135.3))
    assert str(usage.left_out[0]).startswith("GPUs in MIG mode (1): they are divided")


@pytest.mark.parametrize(
    ("form", "text", "message"),
    [
        ("nvidia-smi-dmon", "gpu sm\n0 5\n",
         "must be printed by nvidia-smi dmon: it has no line # gpu ..."),
        ("nvidia-smi-dmon", "# gpu  sm\n0 5 7\n", "line 2: must have 2 words as its header, got 3"),
        ("nvidia-smi-dmon", "# gpu  sm\n0 5\n# gpu sm fb\n0 5 7\n",
         "line 3: must have the columns of the first header (gpu sm), got gpu sm fb"),
        ("nvidia-smi-dmon", "# gpu  sm\n0 105\n", "line 2: sm: must be <= 101, got 105"),
        ("nvidia-smi-dmon", "# gpu  gtemp\n0 40\n",
         "must have a column such as sm, mem, fb, got gpu gtemp"),
        ("nvidia-smi-dmon", "#Date Time gpu sm\n291126 10:00:00 0 5\n",
         "line 2: Date: must be a date as 20261129, got '291126'"),
        ("nvidia-smi-dmon", "#Date Time gpu sm\n20261129 10h00 0 5\n", "line 2: time: must be a"
         " time as 2026-11-29T13:00:00Z, or seconds since 1970 or since the start, got"
         " '2026-11-29 10h00'"),
        ("dcgmi-dmon", "#Entity SMACT\nGPU 0 85.2\n", "line 2: SMACT: must be <= 1.01, got 85.2"),
        ("dcgmi-dmon", "", "must be printed by dcgmi dmon: it has no line # Entity ..."),
    ],
)  # fmt: skip
def test_broken_files(tmp_path, form, text, message):
    with pytest.raises(InputError) as caught:
        usage_of(tmp_path, text, form)
    assert str(caught.value).replace(f"{tmp_path}/", "") == f"node1.txt: {message}"


@pytest.mark.parametrize("form", FILES)
def test_damaged_files(tmp_path, form):
    read_damaged(tmp_path, form, files(form))
