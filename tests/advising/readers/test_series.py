"""Series as CSV: what they say of each job, compared with figures written out in plain Python."""

from __future__ import annotations

import gzip
import random
import tarfile
import time
import tracemalloc

import numpy as np
import pytest

from benchmarks.advising.series_samples import PODS, write_answer, write_csv
from dovetail.advising.reader import read_usage
from dovetail.advising.usage import joined
from dovetail.instances.errors import InputError
from tests.advising.readers.figures import figures_of, weights_of
from tests.advising.readers.fuzz import read_damaged

HEADER = "time,pod,gpu,gpu_util_percent,memory_used_mib\n"


def written(tmp_path, text, name="series.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def jobs_of(tmp_path, text, name="series.csv"):
    usage = read_usage(written(tmp_path, text, name), "series-csv")
    return usage.jobs.set_index("job")


def refused(tmp_path, text, name="series.csv"):
    with pytest.raises(InputError) as caught:
        read_usage(written(tmp_path, text, name), "series-csv")
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_figures_of_one_job(tmp_path):
    rows = [(0, 10, 1000), (10, 20, 3000), (20, 90, 2000), (30, 40, 2000)]
    text = HEADER + "".join(f"{t},a,0,{u},{m}\n" for t, u, m in rows)
    a = jobs_of(tmp_path, text).loc["a"]
    assert (a.start_s, a.end_s, a.samples, a.gpus) == (0, 30, 4, 1)
    assert a.gpu_util_mean == pytest.approx((0.1 + 0.2 + 0.9 + 0.4) / 4)
    assert (a.gpu_util_p95, a.gpu_util_max) == (pytest.approx(0.9), pytest.approx(0.9))
    assert (a.memory_mean_mib, a.memory_p95_mib, a.memory_max_mib) == (2000, 3000, 3000)
    assert np.isnan(a.mem_util_mean)


def test_p95_of_regular_samples_is_the_quantile_of_numpy(tmp_path):
    numbers = random.Random(1)
    values = {job: [numbers.random() * 100 for _ in range(size)] for job, size in SIZES.items()}
    text = "time,job,gpu_util_percent\n" + "".join(
        f"{10 * at},{job},{value!r}\n" for job, of in values.items() for at, value in enumerate(of)
    )
    jobs = jobs_of(tmp_path, text)
    for job, of in values.items():
        expected = np.quantile(of, 0.95, method="inverted_cdf") / 100
        assert jobs.gpu_util_p95[job] == pytest.approx(expected, rel=1e-12)
        assert jobs.gpu_util_mean[job] == pytest.approx(np.mean(of) / 100, rel=1e-12)


SIZES = {"a": 1, "b": 2, "c": 19, "d": 20, "e": 21, "f": 400, "g": 1000}


def test_irregular_samples_and_gaps_are_weighted_by_time(tmp_path):
    numbers = random.Random(2)
    for _ in range(30):
        count = numbers.randint(1, 60)
        times = sorted(numbers.sample(range(1000), count))
        values = [numbers.randint(0, 100) for _ in times]
        text = "time,job,gpu_util_percent\n0,other,50\n" + "".join(
            f"{t},a,{v}\n" for t, v in zip(times, values, strict=True)
        )
        mean, p95, most = figures_of(times, values)
        a = jobs_of(tmp_path, text).loc["a"]
        assert a.gpu_util_mean == pytest.approx(mean / 100)
        assert (a.gpu_util_p95, a.gpu_util_max) == (pytest.approx(p95 / 100), most / 100)
        with_numpy = np.quantile(values, 0.95, method="inverted_cdf", weights=weights_of(times))
        assert p95 == with_numpy


def test_several_gpus_average_of_utilisation_and_the_fullest_memory(tmp_path):
    # A monitor reads one GPU 30 ms after the other, and missed GPU 1 once.
    text = HEADER + (
        "0.00,a,0,10,1000\n0.03,a,1,30,5000\n"
        "1.00,a,0,20,1000\n"
        "2.00,a,0,50,7000\n2.03,a,1,70,5000\n"
        "3.00,a,0,0,1000\n3.03,a,1,80,6000\n"
    )
    a = jobs_of(tmp_path, text).loc["a"]
    assert a.gpus == 2
    assert a.samples == 4
    assert a.gpu_util_mean == pytest.approx((0.2 + 0.2 + 0.6 + 0.4) / 4)
    assert a.gpu_util_max == pytest.approx(0.6)
    assert a.memory_mean_mib == pytest.approx((5000 + 1000 + 7000 + 6000) / 4)
    assert a.memory_max_mib == 7000


def test_a_job_that_moves_to_another_gpu_uses_one(tmp_path):
    text = HEADER + "0,a,0,10,1\n10,a,0,10,1\n20,a,3,40,1\n30,a,3,40,1\n"
    a = jobs_of(tmp_path, text).loc["a"]
    assert a.gpus == 1
    assert a.gpu_util_mean == pytest.approx(0.25)


def test_before_and_after_its_use_a_job_is_absent(tmp_path):
    rows = [(0, 0, 0), (10, 0, 500), (20, 0, 0), (30, 60, 500), (40, "NaN", "NaN"), (50, 0, 0)]
    text = HEADER + "".join(f"{t},a,0,{u},{m}\n" for t, u, m in rows) + "0,b,0,0,0\n10,b,0,0,0\n"
    usage = read_usage(written(tmp_path, text))
    assert list(usage.jobs.job) == ["a"]
    a = usage.jobs.iloc[0]
    assert (a.start_s, a.end_s, a.samples) == (10, 30, 3)
    assert a.gpu_util_mean == pytest.approx(0.2)
    assert [str(out) for out in usage.left_out] == [
        "jobs (1): used no GPU while they were recorded"
    ]


def test_without_memory_zeros_are_idle_time(tmp_path):
    a = jobs_of(tmp_path, "time,job,gpu_util_percent\n0,a,0\n1,a,80\n2,a,0\n3,a,\n").loc["a"]
    assert (a.samples, a.gpu_util_mean) == (3, pytest.approx(80 / 3 / 100))


def test_gpus_without_jobs_are_rows_of_their_own(tmp_path):
    text = (
        ",timestamp,server,name,device,utilization.gpu [%],memory.used [MiB],username\n"
        "0,2026/01/31 09:35:07.046,node1,NVIDIA A100-SXM4-40GB,0,100 %,300 MiB,eve\n"
        "1,2026/01/31 09:35:07.074,node1,NVIDIA A100-SXM4-40GB,1,9 %,2000 MiB,\n"
        "0,2026/01/31 09:35:08.202,node1,NVIDIA A100-SXM4-40GB,0,[N/A],400 MiB,eve\n"
        "2,2026/01/31 09:35:08.215,node1,NVIDIA A100-SXM4-40GB,2,0 %,3 MiB,\n"
    )
    usage = read_usage(written(tmp_path, text))
    jobs = usage.jobs.set_index("job")
    assert list(jobs.index) == ["node1/gpu 0", "node1/gpu 1"]
    assert jobs.user["node1/gpu 0"] == "eve"
    assert jobs.node["node1/gpu 1"] == "node1"
    assert jobs.gpu_util_mean["node1/gpu 0"] == 1
    assert jobs.memory_max_mib["node1/gpu 0"] == 400
    assert str(usage.left_out[0]) == "GPUs (1): were idle and empty while they were recorded"
    assert usage.notes == ("Times without a zone are taken as UTC.",)


@pytest.mark.parametrize(
    "times",
    [
        ("2026-11-29T10:00:00Z", "2026-11-29T10:01:00Z"),
        ("2026-11-29T11:00:00+01:00", "2026-11-29T11:01:00+01:00"),
        ("2026-11-29 10:00:00", "2026-11-29 10:01:00.000"),
        ("2026/11/29 10:00:00.000", "2026/11/29 10:01:00.000"),
        ("1795946400", "1795946460"),
        ("1795946400.0", "1795946460.0"),
        ("1795946400000", "1795946460000"),
        ("1795946400000000000", "1795946460000000000"),
    ],
)
def test_times(tmp_path, times):
    text = "timestamp,job,gpu_util_percent\n" + "".join(f"{time},a,5\n" for time in times)
    a = jobs_of(tmp_path, text).loc["a"]
    assert (a.start_s, a.end_s) == (1795946400, 1795946460)


def test_numbers_since_the_start_and_a_unit_in_the_name(tmp_path):
    a = jobs_of(tmp_path, "time_ms,job,gpu_util_percent\n0,a,5\n5000,a,5\n").loc["a"]
    assert (a.start_s, a.end_s) == (0, 5)


@pytest.mark.parametrize(
    ("column", "cells", "field", "expected"),
    [
        ("DCGM_FI_DEV_GPU_UTIL", ("1", "0"), "gpu_util_mean", 0.005),
        ("utilization.gpu [%]", ("1 %", "0 %"), "gpu_util_mean", 0.005),
        ("gpu_util", ("50", "0.5"), "gpu_util_mean", 0.2525),
        ("gpu_util", ("50 %", "0.5 %"), "gpu_util_mean", 0.2525),
        ("gpu_util_fraction", ("0.5", "1"), "gpu_util_mean", 0.75),
        ("gpu_utilization_pct", ("0.5", "1"), "gpu_util_mean", 0.0075),
        ("DCGM_FI_PROF_SM_ACTIVE", ("0.5", "1.004"), "sm_active_max", 1.0),
        ("dram_active", ("0.5", "0.25"), "dram_active_mean", 0.375),
        ("memory_used_mib", ("100", "300"), "memory_mean_mib", 200),
        ("memory.used [MiB]", ("100 MiB", "300 MiB"), "memory_mean_mib", 200),
        ("gpu_memory_used_bytes", ("1073741824", "0"), "memory_mean_mib", 512),
        ("gpu_memory_used_gb", ("1", "3"), "memory_mean_mib", 2048),
        ("gpu_memory_used", ("1073741824", "0"), "memory_mean_mib", 512),
        ("DCGM_FI_DEV_FB_USED", ("100", "300"), "memory_mean_mib", 200),
    ],
)
def test_names_and_units(tmp_path, column, cells, field, expected):
    text = f"time,job,{column}\n" + "".join(f"{t},a,{cell}\n" for t, cell in enumerate(cells))
    if "mem" in column or "FB" in column:  # memory of 0 at the end is no use
        text += f"2,a,{cells[0]}\n3,a,{cells[1]}\n4,a,{cells[0]}\n5,a,{cells[1]}\n" * 0
    found = jobs_of(tmp_path, text).loc["a"]
    if cells == ("1073741824", "0"):
        assert (found[field], found.samples) == (1024, 1)
    else:
        assert found[field] == pytest.approx(expected)


def test_the_form_of_cluster_trace_v2026_genai(tmp_path):
    duty = "value,timestamp_anon,container_ip\n0.0,1662858720.0,x\n12.5,1662858780.0,x\n"
    a = jobs_of(tmp_path, duty, "pod_gpu_duty_cycle_anon.csv").loc["x"]
    assert (a.gpu_util_mean, a.end_s - a.start_s) == (0.0625, 60)
    memory = "timestamp_anon,value,container_ip\n1662858720.0,33879490560.0,x\n"
    a = jobs_of(tmp_path, memory, "pod_gpu_memory_used_bytes_anon.csv").loc["x"]
    assert a.memory_max_mib == 33879490560 / 2**20
    host = refused(tmp_path, memory, "pod_memory_util_anon.csv")
    assert host.startswith("pod_memory_util_anon.csv: line 1: must have a column of times and one")


def test_wide_forms(tmp_path):
    columns = "Time;pod-a;pod-b\n2026-11-29T10:00:00Z;10;\n2026-11-29T10:01:00Z;30;50\n"
    jobs = jobs_of(tmp_path, columns, "gpu_util_percent.csv")
    assert jobs.gpu_util_mean.to_dict() == {"pod-a": pytest.approx(0.2), "pod-b": 0.5}
    assert jobs.samples.to_dict() == {"pod-a": 2, "pod-b": 1}
    rows = "pod,0,60,120\npod-a,1000,2000,0\npod-b,,5,6\n"
    jobs = jobs_of(tmp_path, rows, "gpu_memory_used_mib.csv")
    assert jobs.memory_max_mib.to_dict() == {"pod-a": 2000, "pod-b": 6}
    assert jobs.end_s.to_dict() == {"pod-a": 60, "pod-b": 120}


def test_a_namespace_and_an_empty_job(tmp_path):
    text = "time,namespace,pod,uuid,gpu_util_percent\n0,ml,a,GPU-1,5\n0,,,GPU-2,7\n"
    assert sorted(jobs_of(tmp_path, text).index) == ["GPU-2", "ml/a"]


def test_compressed_and_in_many_parts(tmp_path):
    path = tmp_path / "series.csv.gz"
    rows = "".join(f"{at // 100},job{at % 100},{at % 100}\n" for at in range(120_000))
    path.write_bytes(gzip.compress(("time,job,gpu_util_percent\n" + rows).encode()))
    jobs = read_usage(str(path)).jobs
    assert len(jobs) == 100
    assert set(jobs.samples) == {1200.0}
    assert jobs.gpu_util_mean.tolist() == pytest.approx([k / 100 for k in range(100)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,job,gpu_util\n0,a,0.5\n", "gpu_util: may be fractions or per cent (the largest is"
         " 0.5): name it gpu_util_fraction or gpu_util_percent"),
        ("time,job,gpu_mem_used\n0,a,50\n", "gpu_mem_used: may be in MiB or another unit (the"
         " largest is 50): name it memory_used_mib, memory_used_bytes or memory_used_gib"),
        ("time,job,gpu_util_percent\n0,a,101\n1,a,120\n",
         "line 3: gpu_util_percent: must be <= 101, got 120"),
        ("time,job,gpu_util_percent\n0,a,x\n",
         "line 2: gpu_util_percent: must be a number, got 'x'"),
        ("time,job,gpu_util_percent\n\n0,a,5\n1,a,-5\n",
         "line 4: gpu_util_percent: must be >= 0, got '-5'"),
        ("time,job,gpu_util_percent\nsoon,a,5\n", "line 2: time: must be a time as"
         " 2026-11-29T13:00:00Z, or seconds since 1970 or since the start, got 'soon'"),
        ("time,job,gpu_util_percent\n31/01/2026 10:00,a,5\n", "line 2: time: must be a time as"
         " 2026-11-29T13:00:00Z, or seconds since 1970 or since the start, got"
         " '31/01/2026 10:00'"),
        ("time,job,gpu_util_percent\n0,a\n", "line 2: must have 3 fields, got 2"),
        ("time,time,gpu_util_percent\n0,a,5\n",
         "line 1: must name each column once, got 'time' twice"),
        ("time,job,gpu_util_percent\n0,a,5\n0,a,7\n", "gpu_util: must be one number of a GPU at a"
         " time, got 0.05 and 0.07 for a at 0 s: name its GPUs in a column or label"),
        ("a,b\n0,1\n", "line 1: must have a column of times and one of a metric (such as"
         " gpu_util_percent or memory_used_mib), or be named after its metric"
         " (gpu_util_percent.csv), got a, b"),
        ("", "line 1: must have a column of times and one of a metric (such as gpu_util_percent or"
         " memory_used_mib), or be named after its metric (gpu_util_percent.csv), got none"),
    ],
)  # fmt: skip
def test_broken_series(tmp_path, text, message):
    assert refused(tmp_path, text) == f"series.csv: {message}"


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "series.csv"
    path.write_bytes(b"time,job,gpu_util_percent\n0,\xff,5\n")
    with pytest.raises(InputError, match="line 2: must be UTF-8 text"):
        read_usage(str(path), "series-csv")


def files():
    """Return sample files by name."""
    util = "time,namespace,pod,gpu,DCGM_FI_DEV_GPU_UTIL,memory_used_mib\n"
    return {
        "long.csv": (util + "2026-11-29T10:00:00Z,ml,a,0,5,100\n").encode(),
        "pod_gpu_duty_cycle_anon.csv": b"value,timestamp_anon,container_ip\n12.5,1662858720.0,x\n",
        "gpu_util_percent.csv": b"Time;pod-a;pod-b\n0;10;\n60;30;50\n",
        "gpu_memory_used_mib.csv.gz": gzip.compress(b"pod,0,60\npod-a,1000,2000\npod-b,,5\n"),
    }


def test_damaged_files(tmp_path):
    plain = {name: content for name, content in files().items() if not name.endswith(".gz")}
    read_damaged(tmp_path, "series-csv", plain)


def test_speed_and_memory(tmp_path):
    """100,000 samples; 1.2 million may take 20 s of the processor and 700 MiB."""
    path = tmp_path / "series.csv"
    write_csv(path, 100_000 // PODS)
    before = time.process_time()
    assert len(read_usage(str(path)).jobs) == PODS
    assert time.process_time() - before < 5
    tracemalloc.start()
    read_usage(str(path))
    peak_mib = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    assert peak_mib < 60


def test_jobs_on_one_gpu_at_one_time_are_noted(tmp_path):
    text = "time,host,gpu,job,gpu_util_percent\n0,n,0,a,5\n0,n,0,b,5\n0,m,0,c,5\n9,m,0,d,5\n"
    usage = read_usage(written(tmp_path, text))
    assert usage.notes == (
        "1 GPUs had samples of several jobs at one time: the figures of these jobs are of whole"
        " GPUs.",
    )


def test_gpus_with_the_same_number_in_two_files_are_two(tmp_path):
    text = "time,gpu,gpu_util_percent\n0,0,5\n"
    paths = [written(tmp_path, text, name) for name in ("node1.csv", "node2.csv")]
    jobs = joined([read_usage(path) for path in paths]).jobs
    assert list(jobs.job) == ["node1/gpu 0", "node2/gpu 0"]


def test_metrics_of_several_files_are_joined_and_windows_are_not(tmp_path):
    util = written(tmp_path, "time,job,gpu_util_percent\n0,a,5\n", "util.csv")
    memory = written(tmp_path, "time,job,memory_used_mib\n0,a,500\n", "memory.csv")
    later = written(tmp_path, "time,job,gpu_util_percent\n60,a,95\n", "later.csv")
    usage = joined([read_usage(util), read_usage(memory)])
    (job,) = usage.jobs.itertuples()
    assert (job.gpu_util_mean, job.memory_max_mib) == (0.05, 500)
    assert len(usage.notes) == 1
    usage = joined([read_usage(util), read_usage(later)])
    assert usage.jobs.gpu_util_mean.tolist() == [0.05]
    assert usage.notes[1] == (
        "1 jobs have the same figure in several files, of which the first counts: write the parts"
        " of a series into one file."
    )


def test_more_numbers_than_fit_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail.advising.readers._series.MOST_NUMBERS", 100_000)
    rows = "".join(f"{at},a,5\n" for at in range(100_000))
    assert refused(tmp_path, "time,job,gpu_util_percent\n" + rows) == (
        "series.csv: must have at most 100,000 numbers, got more: split it by jobs"
    )


def test_an_archive_is_unpacked_first(tmp_path):
    path = tmp_path / "pod_gpu_duty_cycle_anon.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(written(tmp_path, HEADER), "series.csv")
    with pytest.raises(InputError, match="is an archive of tar: unpack it, and give its files"):
        read_usage(str(path))


@pytest.mark.parametrize("rows", ["{}\r\n", '"{}"\n', "{}\n\n", " {}\n"])
def test_quotes_line_ends_and_blank_lines(tmp_path, rows):
    lines = ["0,a,0,10,100", "1,a,0,30,300"]
    cells = ['","' if '"' in rows else ","]
    text = HEADER + "".join(rows.format(line.replace(",", cells[0])) for line in lines)
    a = jobs_of(tmp_path, text).loc["a"]
    assert (a.samples, a.gpu_util_mean) == (2, pytest.approx(0.2))


def test_the_line_of_a_fault_after_blank_lines_and_cells_of_two_lines(tmp_path):
    text = '\n\ntime,job,gpu_util_percent\n0,"a\nb",5\n\n1,a,x\n'
    assert refused(tmp_path, text).startswith("series.csv: line 7: gpu_util_percent: must be a")


def test_csv_and_prometheus_agree(tmp_path):
    """Values differ, as they are drawn in another order; times, jobs and units are the same."""
    table, answer = tmp_path / "series.csv", tmp_path / "answer.json"
    write_csv(table, 50)
    write_answer(answer, 50)
    jobs = [read_usage(str(path)).jobs.sort_values("job") for path in (table, answer)]
    for name in ("job", "gpus", "samples", "start_s", "end_s"):
        assert jobs[0][name].tolist() == jobs[1][name].tolist()
    for name in ("gpu_util_mean", "memory_mean_mib", "sm_active_mean"):
        assert jobs[0][name].mean() == pytest.approx(jobs[1][name].mean(), rel=0.05)
