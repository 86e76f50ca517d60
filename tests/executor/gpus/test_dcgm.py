"""Output of ``dcgmi``: documented text, and a program that prints it; no DCGM, no GPU."""

import sys
from pathlib import Path

import pytest

from dovetail.executor.gpus import dcgm
from dovetail.executor.gpus.dcgm import FIELDS, Dcgm, fields, rows, uuids
from tests.executor.waiting import wait_until

FIRST = "GPU-1d82f4df-3cf9-150d-088b-52f18f8654e1"
SECOND = "GPU-94168100-c5d5-1c05-9005-26953dd598e7"

# The layout that users post of `dcgmi discovery -l` (NVIDIA/DCGM, issue 229).
DISCOVERY = f"""\
2 GPUs found.
+--------+----------------------------------------------------------------------+
| GPU ID | Device Information                                                   |
+--------+----------------------------------------------------------------------+
| 0      | Name: NVIDIA A100-SXM4-40GB                                          |
|        | PCI Bus ID: 00000000:07:00.0                                         |
|        | Device UUID: {FIRST}                |
+--------+----------------------------------------------------------------------+
| 1      | Name: NVIDIA A100-SXM4-40GB                                          |
|        | PCI Bus ID: 00000000:0F:00.0                                         |
|        | Device UUID: {SECOND}                |
+--------+----------------------------------------------------------------------+
0 NvSwitches found.
"""

# The layout of NVIDIA/DCGM issue 144 (an A10), without FP64 and NVLink.
PROFILE = """\
+----------------+----------+------------------------------------------------------+
| Group.Subgroup | Field ID | Field Tag                                            |
+----------------+----------+------------------------------------------------------+
| A.1            | 1002     | sm_active                                            |
| A.1            | 1003     | sm_occupancy                                         |
| A.1            | 1004     | tensor_active                                        |
| A.1            | 1007     | fp32_active                                          |
| A.3            | 1008     | fp16_active                                          |
| B.0            | 1005     | dram_active                                          |
| C.0            | 1009     | pcie_tx_bytes                                        |
| C.0            | 1010     | pcie_rx_bytes                                        |
| D.0            | 1001     | gr_engine_active                                     |
+----------------+----------+------------------------------------------------------+
"""
ALL = PROFILE + "".join(f"| E.0 | {field} | field |\n" for field in (1006, 1011, 1012, 1013))

# The layout of NVIDIA/DCGM issue 244, with blanks, and of issue 3 (an older version).
DMON = """\
#Entity    GRACT        SMACT        SMOCC        TENSO        DRAMA        FP64A
ID
GPU 0      N/A          N/A          N/A          N/A          N/A          N/A
GPU 1      N/A          0.777        N/A          N/A          N/A          0.000
GPU 0      0.888        0.500        0.250        0.178        0.400        0.001
"""
OLDER = """\
# Entity  TENSO
      Id
Error setting watches. Result: The third-party Profiling module returned an unrecoverable error
"""


def test_rows_with_blanks():
    assert list(rows(DMON.splitlines())) == [
        (0, {}),
        (1, {"sm_active": 0.777, "fp64_active": 0.0}),
        (
            0,
            {
                "graphics_active": 0.888,
                "sm_active": 0.5,
                "sm_occupancy": 0.25,
                "tensor_active": 0.178,
                "dram_active": 0.4,
                "fp64_active": 0.001,
            },
        ),
    ]


def test_an_error_is_no_answer():
    assert list(rows(OLDER.splitlines())) == []


@pytest.mark.parametrize("line", ["GPU 0 0.1", "GPU x 0.1 0.2", "GPU-I 0 0.1 0.2", "", "#", "GPU"])
def test_lines_that_are_no_rows_are_passed_over(line):
    assert list(rows(["#Entity GRACT SMACT", line])) == []


def test_columns_may_change_at_a_new_header():
    lines = ["#Entity SMACT", "GPU 0 0.5", "#Entity PCIRX SMACT", "GPU 0 1000 0.25"]
    assert [row.metrics for row in rows(lines)] == [
        {"sm_active": 0.5},
        {"pcie_rx_bytes_s": 1000.0, "sm_active": 0.25},
    ]


def test_numbers_of_gpus():
    assert uuids(DISCOVERY.splitlines()) == {0: FIRST, 1: SECOND}
    assert uuids(["Error: unable to establish a connection to the specified host: localhost"]) == {}


@pytest.mark.parametrize(
    ("printed", "lacks"),
    [(ALL, set()), (PROFILE, {1006, 1011, 1012}), ("Error: Unable to Get supported", FIELDS)],
)
def test_fields_of_a_gpu(printed, lacks):
    assert fields(printed.splitlines()) == FIELDS.keys() - lacks


def test_only_what_all_profiled_gpus_have_is_asked(tmp_path):
    # One field that a GPU lacks, and dmon refuses all: NVIDIA/DCGM issue 119.
    session = Dcgm(program(tmp_path, profiles={0: ALL, 1: PROFILE}))
    try:
        wait_until(lambda: session._rows)
    finally:
        session.close()
    (asked,) = (tmp_path / "asked").read_text().splitlines()
    common = "1001,1002,1003,1004,1005,1007,1008,1009,1010"
    assert asked == f"dmon -i 0,1 -e {common} -d 1000"


def test_a_gpu_that_dcgm_cannot_profile_takes_nothing_from_the_others(tmp_path):
    session = Dcgm(program(tmp_path, profiles={0: "Error: Unable to Get supported", 1: ALL}))
    try:
        wait_until(lambda: session._rows)
    finally:
        session.close()
    asked = (tmp_path / "asked").read_text().split()
    assert asked[2] == "1"
    assert asked[4] == ",".join(map(str, sorted(FIELDS)))


def program(folder, dmon=DMON, lasts=True, profiles=None):
    """Return a program in place of ``dcgmi`` that prints the above."""
    path = Path(folder) / "dcgmi"
    profiles = profiles or {0: ALL, 1: ALL}
    lines = [
        f"#!{sys.executable} -IS",
        "import pathlib, signal, sys",
        f"printed = {{'discovery': {DISCOVERY!r}, 'dmon': {dmon!r}}}.get(sys.argv[1])",
        "if sys.argv[1] == 'dmon':",
        f"    pathlib.Path({str(path.with_name('asked'))!r}).write_text(' '.join(sys.argv[1:]))",
        f"print(printed or {profiles!r}[int(sys.argv[4])], flush=True)",
        f"sys.argv[1] == 'dmon' and {lasts} and signal.pause()",
    ]
    path.write_text("\n".join(lines))
    path.chmod(0o755)
    return str(path)


def test_means_since_the_last_call(tmp_path):
    two = (
        DMON + "GPU 0      0.888        0.700        0.250        0.178        0.400        0.001\n"
    )
    session = Dcgm(program(tmp_path, two))
    try:
        wait_until(lambda: len(session._rows.get(FIRST, ())) == 3)
        assert session.metrics(FIRST)["sm_active"] == pytest.approx(0.6)
        assert session.metrics(FIRST) == {}
        assert session.metrics(SECOND) == {"sm_active": 0.777, "fp64_active": 0.0}
    finally:
        session.close()
    assert not session._thread.is_alive()


def test_what_ends_is_started_again(tmp_path, monkeypatch):
    monkeypatch.setattr(dcgm, "AGAIN_S", 0.05)
    session = Dcgm(program(tmp_path, lasts=False))
    try:
        wait_until(lambda: len(session._rows.get(SECOND, ())) >= 2)
    finally:
        session.close()


def test_without_dcgm_nothing_is_reported(tmp_path):
    session = Dcgm(str(tmp_path / "none"))
    assert session.metrics(FIRST) == {}
    session.close()
