"""Kernels from files of Nsight Systems and torch.profiler, and in the profile of a workload."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing

import pytest

from dovetail.instances.datasets import DataSet, SoloProfile
from dovetail.instances.errors import InputError
from dovetail.instances.importers.kernels import read_kernels, with_kernels
from dovetail.instances.kernel_records import KernelGpu
from dovetail.instances.metrics import Metrics

from .profiler_files import TABLE, chrome_trace, export, table, trace

H100 = KernelGpu(132, "9.0")


def zipped(folder, content=None):
    path = folder / "trace.json.gz"
    path.write_bytes(gzip.compress(trace(folder, content).read_bytes()))
    return path


@pytest.mark.parametrize(
    ("write", "gpu", "profiler"),
    [
        (export, H100, "Nsight Systems"),
        (table, None, "Nsight Systems"),
        (trace, H100, "torch.profiler"),
        (zipped, H100, "torch.profiler"),
    ],
)
def test_all_files_tell_the_same_kernels(tmp_path, write, gpu, profiler):
    found = read_kernels(write(tmp_path))
    assert (found.gpu, found.profiler) == (gpu, profiler)
    kernels = found.kernels
    assert kernels.duration_s == pytest.approx([300e-6, 100e-6])
    assert kernels.span_s == pytest.approx(500e-6)
    assert kernels.blocks.tolist() == [1056, 128]
    assert kernels.block_threads.tolist() == [256, 128]
    assert kernels.thread_registers.tolist() == [32, 168]
    assert kernels.block_shared_bytes == pytest.approx([0, 49_152])


def test_a_list_of_events_is_a_trace_without_a_gpu(tmp_path):
    found = read_kernels(trace(tmp_path, chrome_trace()["traceEvents"]))
    assert (len(found.kernels.blocks), found.gpu) == (2, None)


def test_other_units_of_a_table(tmp_path):
    text = (
        TABLE.replace("(ns)", "(us)")
        .replace("StcSMem (MB),DymSMem (MB)", "StcSMem (byte),DymSMem (KB)")
        .replace("0.001,0.048152", "1000,48.152")
    )
    kernels = read_kernels(table(tmp_path, text)).kernels
    assert kernels.duration_s == pytest.approx([0.3, 0.1])
    assert kernels.block_shared_bytes == pytest.approx([0, 49_152])


def test_several_gpus_need_a_number(tmp_path):
    path = export(tmp_path)
    export(tmp_path, device=1)
    with pytest.raises(InputError, match=r"--device: must be one of the GPUs .*0, 1.*none was"):
        read_kernels(path)
    found = read_kernels(path, 1)
    assert (len(found.kernels.blocks), found.gpu) == (2, H100)
    export(tmp_path, sms=114, device=2)
    assert read_kernels(path, 2).gpu is None  # which of the two GPUs it is, is not known


def test_a_gpu_without_documented_limits_is_unknown(tmp_path):
    content = chrome_trace()
    content["deviceProperties"][0]["computeMajor"] = 99
    assert read_kernels(trace(tmp_path, content)).gpu is None


@pytest.mark.parametrize(
    ("name", "content", "rule"),
    [
        ("r.nsys-rep", b"", "must be exported first: nsys export --type sqlite FILE"),
        ("r.csv", b"", "must be of nsys export"),
        ("r.csv", b"device,job_a\n", "must be of nsys export"),
        ("r.csv", b"\xff\xfe", "must be UTF-8 text"),
        ("r.json", b"{", "must be JSON"),
        ("r.json", b"[" * 100_000, "must be JSON"),
        ("r.json", b"{}", "must have a list traceEvents"),
        ("r.json", b"[]", "must have kernels of the GPU; has none"),
        ("r.json", b'[{"cat": "kernel"}]', "traceEvents[0]: must have args"),
        ("r.json.gz", b"\x1f\x8bxxxxxxxxxxxxxxx", "must be a gzip file"),
        ("r.sqlite", b"SQLite format 3\0" + b"x" * 100, "must be an export of Nsight Systems"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, name, content, rule):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_kernels(path)
    assert str(error.value).startswith(str(path))
    assert rule in str(error.value)


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_kernels(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"grid": [1, 2]}, "grid: must be three whole numbers, got"),
        ({"grid": None}, "grid: must be three whole numbers, got"),
        ({"block": [1, "x", 1]}, "block: must be a finite number, got 'x'"),
        ({"block": [0, 1, 1]}, "kernel 1: threads of a block: must be from 1 to 2048, got 0"),
        ({"block": [10**400, 1, 1]}, "block: must be a finite number"),
        ({"registers per thread": True}, "registers per thread: must be a finite number"),
        ({"shared memory": -1}, "kernel 1: shared memory of a block: must be from 0"),
        ({"shared memory": float("nan")}, "shared memory: must be a finite number"),
    ],
)
def test_impossible_values_of_a_trace(tmp_path, changes, rule):
    with pytest.raises(InputError) as error:
        read_kernels(trace(tmp_path, chrome_trace(**changes)))
    assert rule in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("300000,102", "x,102", "line 7: Duration (ns): must be a finite number, got 'x'"),
        ("300000,102", "-1,102", "kernel 1: duration: must be from 0"),
        ("(ns)", "(h)", "column Start: must be in one of"),
        ("Reg/Trd", "Regs", "must have a column Reg/Trd, got"),
        ("Duration", "Time", "must have a column Duration (UNIT), got"),
    ],
)
def test_impossible_values_of_a_table(tmp_path, old, new, rule):
    with pytest.raises(InputError) as error:
        read_kernels(table(tmp_path, TABLE.replace(old, new)))
    assert rule in str(error.value)


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET gridX = 'x'", "kernel 1: blocks of the grid"),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 0", "kernel 1: duration: must be from 0"),
        ("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL", "must have kernels of the GPU; has none"),
        ("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP gridX", "no such column: gridX"),
        ("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL", "with a table CUPTI_ACTIVITY_KIND_KERNEL"),
    ],
)
def test_impossible_values_of_an_export(tmp_path, statement, rule):
    path = export(tmp_path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)
    with pytest.raises(InputError) as error:
        read_kernels(path)
    assert rule in str(error.value)


def test_an_export_of_an_older_version_does_not_describe_its_gpu(tmp_path):
    path = export(tmp_path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE TARGET_INFO_GPU DROP smCount")
    assert read_kernels(path).gpu is None


# --- the profile


def profile(**fields):
    return SoloProfile(
        **{"workload": "bert", "gpu_model": "H100", "throughput": 10.0, "source": "s"} | fields
    )


def data(*profiles):
    return DataSet(name="d", profiles=profiles)


def test_the_profile_that_plans_use_is_described(tmp_path):
    small, large, capped = profile(batch_size=8), profile(batch_size=32), profile(share=50)
    other = profile(workload="x")
    large = large.replace(metrics=Metrics(sm_active=0.5))
    before = data(small, large, capped, other)
    found = read_kernels(trace(tmp_path))
    after, new = with_kernels(before, "bert", "H100", found, iterations=4)
    assert after.profiles == (small, new, capped, other)
    assert new.metrics is not None
    assert new.metrics.to_data() == pytest.approx(
        {
            "sm_active": 0.5,
            "kernels_s": 2 / 4 * 10.0,
            "kernel_mean_s": 200e-6,
            "kernel_weighted_s": 250e-6,
            "kernel_full": 0.75,
            # 8 blocks of 8 warps; 3 blocks of 4 warps by registers
            "kernel_occupancy": 0.75 + 0.25 * 12 / 64,
            "block_threads": 224.0,
            "block_shared_bytes": 12_288.0,
            "thread_registers": 66.0,
        }
    )
    assert new.source == "s; kernels: torch.profiler"
    assert (new.throughput, new.batch_size) == (10.0, 32)
    _, other_size = with_kernels(before, "bert", "H100", found, batch_size=8)
    assert other_size.batch_size == 8


def test_without_iterations_the_span_counts(tmp_path):
    _, new = with_kernels(data(profile()), "bert", "H100", read_kernels(trace(tmp_path)))
    assert new.metrics is not None
    assert new.metrics.kernels_s == pytest.approx(2 / 500e-6)


def test_a_workload_without_a_profile_gets_one(tmp_path):
    found = read_kernels(export(tmp_path))
    after, new = with_kernels(data(), "bert", "H100", found, iterations=4)
    assert after.profiles == (new,)
    assert (new.workload, new.throughput, new.source) == ("bert", None, "kernels: Nsight Systems")


def test_again_replaces_the_numbers_and_says_the_source_once(tmp_path):
    found = read_kernels(trace(tmp_path))
    once, _ = with_kernels(data(profile(source="x" * 200)), "bert", "H100", found)
    again, new = with_kernels(once, "bert", "H100", found, iterations=1)
    assert len(again.profiles) == 1
    assert new.source == "x" * 175 + "; kernels: torch.profiler"
    assert new.metrics is not None
    assert new.metrics.kernels_s == 20.0


def test_kernels_without_any_time_give_no_rate(tmp_path):
    content = chrome_trace()
    for event in content["traceEvents"]:
        event |= {"ts": 1.0, "dur": 0.0}
    found = read_kernels(trace(tmp_path, content))
    with pytest.raises(InputError, match="must have kernels over some time"):
        with_kernels(data(profile()), "bert", "H100", found)


def test_the_trace_is_what_json_says(tmp_path):
    """Numbers that JSON has and records have not are refused, too."""
    text = json.dumps(chrome_trace()).replace('"dur": 300.0', '"dur": Infinity')
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"traceEvents\[2\]: dur: must be a finite number"):
        read_kernels(path)
