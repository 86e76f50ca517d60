"""Files by ``sacct -P``: each trap of real ones, broken ones, damaged ones, and the cost."""

from __future__ import annotations

import base64
import gzip
import json
import random
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime

import numpy as np
import pytest

from benchmarks.advising.sacct_lines import write_sacct
from dovetail.advising.readers._slurm import held_gpus, seconds_of, state_of, tasks_of
from dovetail.advising.readers.sacct import COMMAND, SACCT
from dovetail.instances.errors import InputError

HEADER = (
    "JobID|JobName|User|Submit|Start|End|ElapsedRaw|State|NTasks|AllocTRES|TRESUsageInMax|NodeList"
)
GPU = "cpu=8,gres/gpu:a100=1,gres/gpu=1,mem=8000M,node=1"


def row(job, resources=GPU, used="", start="10:00", end="12:00", state="COMPLETED", tasks=""):
    """Return a line of ``HEADER``; ``start`` and ``end`` are times of one day, or words."""
    times = [f"2026-08-11T{at}:00" if ":" in at else at for at in ("09:00", start, end)]
    step = "." in job
    who = "|" if step else "train|u1"
    return f"{job}|{who}|{'|'.join(times)}||{state}|{tasks}|{resources}|{used}|n1"


def at(clock):
    """Return the time of the day of ``row`` as written in usage."""
    return datetime.fromisoformat(f"2026-08-11T{clock}:00").replace(tzinfo=UTC).timestamp()


def written(folder, *lines, header=HEADER):
    path = folder / "sacct.txt"
    path.write_text("".join(f"{line}\n" for line in (header, *lines)), encoding="utf-8")
    return path


def read(folder, *lines, header=HEADER):
    return SACCT.read(written(folder, *lines, header=header))


def column(usage, name):
    return [None if value is None else value for value in usage.jobs[name]]


def error_of(folder, *lines, header=HEADER):
    with pytest.raises(InputError) as error:
        read(folder, *lines, header=header)
    return str(error.value).replace(f"{folder}/", "")


# Jobs and their GPUs.


def test_jobs_steps_arrays_and_a_requeued_job(tmp_path):
    usage = read(
        tmp_path,
        "101|train|u1|2026-08-11T14:36:24|2026-08-11T14:36:56|2026-08-11T16:38:56|7320|COMPLETED||"
        "billing=516,cpu=8,gres/gpu:a100=1,gres/gpu=1,mem=8000M,node=1||n1",
        "101.batch|batch||2026-08-11T14:36:56|2026-08-11T14:36:56|2026-08-11T16:38:56|7320|"
        "COMPLETED|1|cpu=8,gres/gpu:a100=1,gres/gpu=1,mem=8000M,node=1|"
        "cpu=00:56:24,energy=0,gres/gpumem=38888M,gres/gpuutil=100,mem=10372780K,pages=3465|n1",
        "101.extern|extern||2026-08-11T14:36:56|2026-08-11T14:36:56|2026-08-11T16:38:56|7320|"
        "COMPLETED|1|cpu=8,gres/gpu:a100=1,gres/gpu=1|cpu=00:00:00,gres/gpumem=0,gres/gpuutil=0|n1",
        "102_1|sweep|u2|2026-08-11T14:40:00|2026-08-11T14:41:00|2026-08-11T15:41:00|3600|"
        "COMPLETED||cpu=1,gres/gpu=1,node=1||gpu[01-03,07]",
        "102_1.batch|batch||2026-08-11T14:41:00|2026-08-11T14:41:00|2026-08-11T15:41:00|3600|"
        "COMPLETED|1|cpu=1,gres/gpu=1|gres/gpumem=2G,gres/gpuutil=12,mem=327556K|n1",
        "103|bench|u3|2026-08-16T10:43:33|2026-08-16T10:43:43|2026-08-16T18:38:05|28462|"
        "NODE_FAIL||cpu=8,gres/gpu=1,node=1||n2",
        "103|bench|u3|2026-08-16T18:38:10|None|2026-08-17T00:03:01|0|CANCELLED by 1003||||"
        "None assigned",
    )
    assert column(usage, "job") == ["101", "102_1", "103"]
    assert column(usage, "user") == ["u1", "u2", "u3"]
    assert column(usage, "name") == ["train", "sweep", "bench"]
    assert column(usage, "gpu_model") == ["a100", None, None]
    assert column(usage, "node") == ["n1", "gpu01,gpu02,gpu03,gpu07", "n2"]
    assert column(usage, "gpus") == [1, 1, 1]
    assert column(usage, "state") == ["ended"] * 3
    np.testing.assert_array_equal(usage.jobs["memory_max_mib"], [38888, 2048, np.nan])
    np.testing.assert_array_equal(usage.jobs["gpu_util_max"], [1.0, 0.12, np.nan])
    lasted = usage.jobs["end_s"] - usage.jobs["start_s"]
    assert lasted.tolist() == [7320, 3600, 28462]
    # A maximum is no mean, and Slurm does not know the memory of a card.
    assert usage.jobs[["gpu_util_mean", "memory_mean_mib", "card_mib"]].isna().all(axis=None)
    assert [str(each) for each in usage.left_out] == ["jobs (1): never started"]
    assert usage.notes == ()


def test_attempts_of_a_requeued_job_are_rows_with_the_use_of_their_own_steps(tmp_path):
    used = "gres/gpumem={}M,gres/gpuutil=10"
    usage = read(
        tmp_path,
        row("7", state="PREEMPTED", start="10:00", end="10:30"),
        row("7.batch", used=used.format(100), start="10:00", end="10:30", tasks="1"),
        row("7", state="REQUEUED", start="11:00", end="11:30"),
        row("7.batch", used=used.format(200), start="11:00", end="11:30", tasks="1"),
        row("7", start="11:40", end="12:00"),
        row("7.batch", used=used.format(300), start="11:40", end="12:00", tasks="1"),
    )
    assert column(usage, "job") == ["7#1", "7#2", "7"]
    assert column(usage, "state") == ["ended"] * 3
    assert column(usage, "memory_max_mib") == [100, 200, 300]


@pytest.mark.parametrize(
    ("text", "gpus", "model"),
    [
        ("gres/gpu:a100=2,gres/gpu=2", 2, "a100"),
        ("cpu=4,gres/gpu=3,node=3", 3, None),
        ("gres/gpu:v100=4", 4, "v100"),
        ("gres/gpu:a100=1,gres/gpu:v100=2,gres/gpu=3", 3, None),
        ("gres/gpu:a100=1,gres/gpu=3", 3, None),
        ("cpu=8,mem=1G,gres/gpumem=9M,gres/gpuutil=4,gres/nic:gpu=2", 0, None),
        ("gres/gpu=0", 0, None),
    ],
)
def test_gpus_count_once(text, gpus, model):
    held = held_gpus(text)
    assert (held.gpus, held.gpu_model) == (gpus, model)
    assert np.isnan(held.fraction)


@pytest.mark.parametrize(
    ("name", "model", "fraction", "gib"),
    [
        ("1g.10gb", None, 1 / 7, 10),
        ("a100_3g.20gb", "a100", 3 / 7, 20),
        ("nvidia_h100_80gb_hbm3_2g.20gb", "nvidia_h100_80gb_hbm3", 2 / 7, 20),
        ("7g.80gb", None, 1.0, 80),
        ("a30_1g.6gb", "a30", 1 / 4, 6),
        ("2g.12gb", None, 1 / 2, 12),
        ("1g.5gb+me", None, 1 / 7, 5),
    ],
)
def test_instances_of_mig_are_parts_of_a_gpu(tmp_path, name, model, fraction, gib):
    usage = read(tmp_path, row("1", f"cpu=1,gres/gpu:{name}=2,gres/gpu=2,node=1"))
    (job,) = usage.jobs.to_dict("records")
    assert (job["gpus"], job["gpu_model"]) == (2, model)
    assert job["fraction"] == pytest.approx(fraction)
    assert job["memory_request_mib"] == 1024 * gib
    assert usage.notes[:-1] == (
        "jobs on instances of MIG, which count as the parts of a GPU that their names say: 1.",
    )


def test_what_is_left_out_says_why(tmp_path):
    usage = read(
        tmp_path,
        row("1", "cpu=8,mem=4G,node=1"),
        row("2", "cpu=8,gres/mps=50,node=1"),
        row("3", "cpu=8,gres/shard=2,node=1"),
        row("4", start="10:00", end="10:00"),
        row("5", end="Unknown"),
        row("6", state="PENDING", start="Unknown", end="Unknown", resources=""),
        row("8.batch"),
        row("9"),
    )
    assert column(usage, "job") == ["9"]
    assert [str(each) for each in usage.left_out] == [
        "jobs (1): what waiting jobs ask for would be in the column ReqTRES",
        "jobs (2): had a part of a GPU by gres/mps or gres/shard, of unknown size",
        "jobs (1): used no GPU",
        "jobs (1): ended at an unknown time",
        "jobs (1): ran for no time",
        "steps (1): the rows of their jobs are missing",
    ]


def test_running_and_waiting_jobs(tmp_path):
    header = "JobID|User|Start|End|Elapsed|State|ReqTRES|AllocTRES|NNodes"
    asked = "billing=8,cpu=8,gres/gpu:h100=4,gres/gpu=4,mem=8G,node=2"
    usage = read(
        tmp_path,
        f"1|u|2026-08-11T10:00:00|Unknown|1-02:00:00|RUNNING|{asked}|{asked}|2",
        f"2|u|Unknown|Unknown|00:00:00|PENDING|{asked}||2",
        f"3_[3-5,9%2]|u|Unknown|Unknown|00:00:00|PENDING|{asked}||2",
        f"4_[1,7,...]|u|2026-08-12T10:00:00|Unknown|00:00:00|PENDING|{asked}||2",
        f"5|u|2026-08-11T10:00:00|Unknown|02:00|SUSPENDED|{asked}|{asked}|2",
        "6|u|Unknown|Unknown|00:00:00|PENDING|cpu=1||1",
        header=header,
    )
    waiting = ["2", "3_3", "3_4", "3_5", "3_9", "4_[1,7,...]"]
    assert column(usage, "job") == ["1", *waiting, "5"]
    assert column(usage, "state") == ["running", *["waiting"] * 6, "running"]
    assert column(usage, "gpus") == [4.0] * 8
    assert column(usage, "workers_per_node") == [2.0] * 8
    assert usage.jobs["end_s"].isna().all()
    assert usage.jobs["start_s"].notna().tolist() == [True, *[False] * 6, True]
    assert usage.notes[:-1] == (
        "waiting arrays whose tasks are not all listed, which count as one job each: 1.",
    )


def test_rows_of_several_exports_count_once(tmp_path):
    first = row("1", end="Unknown", state="RUNNING")
    array = row("2_[1-2]", resources="", start="Unknown", end="Unknown", state="PENDING")
    header = f"{HEADER}|ReqTRES"
    usage = read(
        tmp_path,
        *(f"{line}|{GPU}" for line in (first, row("1.batch", used="gres/gpumem=5M"), array)),
        header,
        *(f"{line}|{GPU}" for line in (row("1"), row("1.batch", used="gres/gpumem=7M"))),
        f"{row('2_1', start='11:00')}|{GPU}",
        header=header,
    )
    assert column(usage, "job") == ["2_2", "1", "2_1"]
    assert column(usage, "state") == ["waiting", "ended", "ended"]
    np.testing.assert_array_equal(usage.jobs["memory_max_mib"], [np.nan, 7, np.nan])


def test_components_of_heterogeneous_jobs_are_rows(tmp_path):
    usage = read(tmp_path, row("100+0"), row("100+0.batch", used="gres/gpuutil=5"), row("100+1"))
    assert column(usage, "job") == ["100+0", "100+1"]
    np.testing.assert_array_equal(usage.jobs["gpu_util_max"], [0.05, np.nan])


def test_jobs_of_several_clusters_are_kept_apart(tmp_path):
    header = "Cluster|JobID|Start|End|AllocTRES|TRESUsageInMax"
    times = "2026-08-11T10:00:00|2026-08-11T11:00:00"
    usage = read(
        tmp_path,
        f"east|1|{times}|gres/gpu=1|",
        f"east|1.0|{times}|gres/gpu=1|gres/gpumem=1G",
        f"west|1|{times}|gres/gpu=2|",
        header=header,
    )
    assert column(usage, "job") == ["east/1", "west/1"]
    np.testing.assert_array_equal(usage.jobs["memory_max_mib"], [1024, np.nan])


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("2026-08-11T10:00:00+0100", "2026-08-11T11:00:00+0200"),
        ("2026-08-11T09:00:00Z", "1786438800"),
        ("1786438800", "2026-08-11T10:00:00+01:00"),
    ],
)
def test_times_with_offsets_and_in_seconds(tmp_path, start, end):
    header = "JobIDRaw|Start|End|Elapsed|AllocTRES"
    usage = read(tmp_path, f"1|{start}|{end}|00:00:01|gres/gpu=1", header=header)
    # The three times are one, so that the job ran for no time.
    assert usage.jobs.empty
    later = end.replace("8800", "8801").replace(":00:00", ":00:01").replace("00Z", "01Z")
    usage = read(tmp_path, f"1|{start}|{later}|00:00:01|gres/gpu=1", header=header)
    assert column(usage, "start_s") == [1786438800]
    assert column(usage, "end_s") == [1786438801]


def test_a_run_time_stands_in_for_the_end(tmp_path):
    header = "JobID|Start|Elapsed|AllocTRES"
    usage = read(tmp_path, "1|2026-08-11T10:00:00|1-00:00:02|gres/gpu=1", header=header)
    assert column(usage, "end_s") == [at("10:00") + 86402]
    # Clocks were put back between start and end.
    header = "JobID|Start|End|ElapsedRaw|AllocTRES"
    line = "1|2026-10-25T02:50:00|2026-10-25T02:10:00|1200|gres/gpu=1"
    (job,) = read(tmp_path, line, header=header).jobs.to_dict("records")
    assert job["end_s"] - job["start_s"] == 1200


def test_times_of_unlike_zones_are_noted(tmp_path):
    header = "JobID|Start|ElapsedRaw|AllocTRES"
    lines = ("1|2026-08-11T10:00:00|5|gres/gpu=1", "2|2026-08-11T10:00:00+0100|5|gres/gpu=1")
    usage = read(tmp_path, *lines, header=header)
    assert usage.notes[:-1] == (
        "start times without a zone among others with one, taken as UTC: 1.",
    )


def test_files_without_use_or_gpus_say_what_is_missing(tmp_path):
    usage = read(tmp_path, row("1"))
    assert usage.notes == (
        "No row tells memory or utilisation: sacct prints it in the rows of steps (without -X) "
        "under TRESUsageInMax, if AccountingStorageTRES has gres/gpumem and gres/gpuutil.",
    )
    usage = read(tmp_path, row("1", "cpu=8,node=1"), row("2", "cpu=8,node=1"))
    assert [str(each) for each in usage.left_out] == [
        "jobs (2): list no GPU, as none does: AccountingStorageTRES may lack gres/gpu"
    ]
    assert read(tmp_path).jobs.empty
    steps = read(tmp_path, row("1.0"), row("1.1"))
    assert [str(each) for each in steps.left_out] == [
        "steps (2): the rows of their jobs are missing"
    ]


# What is printed.


@pytest.mark.parametrize("mark", ["|", ",", ";", "\t", "^", "::"])
def test_delimiters(tmp_path, mark):
    resources = GPU.replace(",", ";") if mark == "," else GPU
    lines = [line.replace("|", mark) for line in (row("1", resources.replace(";", ",")),)]
    if mark == ",":
        lines = [row("1", "gres/gpu:a100=1").replace("|", mark)]
    usage = read(tmp_path, *lines, header=HEADER.replace("|", mark))
    assert column(usage, "gpu_model") == ["a100"]


def test_a_trailing_delimiter_and_a_name_with_one(tmp_path):
    named = row("2").replace("train", "a | b")
    usage = read(tmp_path, *(f"{line}|" for line in (row("1"), named)), header=f"{HEADER}|")
    assert column(usage, "name") == ["train", "a | b"]
    assert column(usage, "node") == ["n1", "n1"]


# What steps used.

FOUR = "cpu=8,gres/gpu:a100=4,gres/gpu=4,node=1"


@pytest.mark.parametrize(
    ("tasks", "memory_mib", "util"),
    # 150 % over the GPUs of the busiest task; 4 tasks may all have used that much.
    [("1", np.nan, 0.375), ("2", np.nan, 0.75), ("4", 6000, 1.0), ("8", 12000, 1.0)],
)
def test_maxima_are_of_a_task(tmp_path, tasks, memory_mib, util):
    used = "gres/gpumem=6000M,gres/gpuutil=150"
    usage = read(tmp_path, row("1", FOUR), row("1.0", FOUR, used, tasks=tasks))
    np.testing.assert_array_equal(usage.jobs["memory_max_mib"], [memory_mib])
    assert column(usage, "gpu_util_max") == [util]
    summed = ("jobs of unknown memory, as sacct adds up the GPUs of a task: 1.",)
    assert usage.notes == (summed if np.isnan(memory_mib) else ())


def test_totals_are_of_all_tasks(tmp_path):
    header = f"{HEADER}|TRESUsageInTot"
    used = "gres/gpumem=6000M,gres/gpuutil=50"
    total = "gres/gpumem=10000M,gres/gpuutil=90"
    lines = (f"{row('1')}|", f"{row('1.0', used=used, tasks='2')}|{total}")
    usage = read(tmp_path, *lines, header=header)
    assert column(usage, "memory_max_mib") == [10000]
    assert column(usage, "gpu_util_max") == [0.9]


def test_steps_after_each_other_do_not_add_up_but_those_at_once_do(tmp_path):
    used = "gres/gpumem={}M,gres/gpuutil={}"
    usage = read(
        tmp_path,
        row("1"),
        row("1.0", used=used.format(3000, 30), start="10:00", end="11:00", tasks="1"),
        row("1.1", used=used.format(5000, 50), start="11:00", end="12:00", tasks="1"),
        row("2"),
        row("2.0", used=used.format(3000, 30), start="10:00", end="11:30", tasks="1"),
        row("2.1", used=used.format(5000, 50), start="11:00", end="12:00", tasks="1"),
        row("2.2", used=used.format(1000, 90), start="11:30", end="11:30", tasks="1"),
        row("3", FOUR),
        row("3.0", used=used.format(3000, 30), tasks="1"),
        row("3.1", used=used.format(5000, 50), tasks="1"),
    )
    # Those of the third job have GPUs of their own.
    assert column(usage, "memory_max_mib") == [5000, 8000, 5000]
    assert column(usage, "gpu_util_max") == [0.5, 1.0, 0.5]


def test_steps_at_once_against_enumeration(tmp_path):
    draws = random.Random(5)
    for _ in range(20):
        steps = []
        for _step in range(draws.randrange(1, 6)):
            start = draws.randrange(600, 700)
            steps.append((start, start + draws.randrange(20), draws.randrange(1, 99)))
        clock = "{:02d}:{:02d}".format
        lines = [
            row(
                f"1.{k}",
                used=f"gres/gpumem={mib}M",
                start=clock(*divmod(start, 60)),
                end=clock(*divmod(end, 60)),
                tasks="1",
            )
            for k, (start, end, mib) in enumerate(steps)
        ]
        usage = read(tmp_path, row("1"), *lines)
        ran = [(start, max(end, start + 0.001), mib) for start, end, mib in steps]
        moments = {start for start, _, _ in ran}
        most = max(sum(mib for a, b, mib in ran if a <= now < b) for now in moments)
        assert column(usage, "memory_max_mib") == [pytest.approx(most)]


# Summaries of jobstats.


def summary(nodes, pack=gzip.compress):
    return "JS1:" + base64.b64encode(pack(json.dumps({"nodes": nodes}).encode())).decode()


def gpus(util, used_mib, total_mib):
    """Return the entry of a node in the form of jobstats."""
    names = [str(k) for k in range(len(util))]
    return {
        "total_memory": 1,
        "gpu_utilization": dict(zip(names, util, strict=True)),
        "gpu_used_memory": dict(zip(names, [mib * 2**20 for mib in used_mib], strict=True)),
        "gpu_total_memory": dict(zip(names, [mib * 2**20 for mib in total_mib], strict=True)),
    }


def with_comments(folder, *comments):
    times = "2026-08-11T10:00:00|2026-08-11T11:00:00"
    lines = [f"{k}|{times}|gres/gpu=1|{text}" for k, text in enumerate(comments)]
    return read(folder, *lines, header="JobID|Start|End|AllocTRES|AdminComment")


def test_summaries_of_jobstats(tmp_path):
    plain = "JS1:" + json.dumps({"nodes": {"n1": gpus([30], [9], [16])}})
    two = {"n1": gpus([50, 70.5], [100, 300], [40960] * 2), "n2": gpus([0], [7], [81920])}
    empty = ("JS1:Short", "JS1:None", "", "a word", summary({"n1": {"cpus": 4}}))
    usage = with_comments(tmp_path, summary(two), plain, *empty)
    (first, second, *others) = usage.jobs.to_dict("records")
    assert first["gpu_util_mean"] == pytest.approx((0.5 + 0.705 + 0) / 3)
    assert (first["memory_max_mib"], first["card_mib"]) == (300, 40960)
    assert (second["gpu_util_mean"], second["memory_max_mib"], second["card_mib"]) == (0.3, 9, 16)
    assert len(others) == 5
    for other in others:
        assert np.isnan([other["gpu_util_mean"], other["memory_max_mib"], other["card_mib"]]).all()
    assert usage.notes == ()


def test_hostile_summaries_cost_nothing(tmp_path):
    bomb = "JS1:" + base64.b64encode(gzip.compress(bytes(50 << 20))).decode()
    deep = "JS1:" + base64.b64encode(gzip.compress(b"[" * 500_000)).decode()
    cut = base64.b64encode(gzip.compress(json.dumps({"nodes": {}}).encode())[:-9]).decode()
    hostile = (
        *(bomb, deep, f"JS1:{cut}", "JS1:AAAA", "JS1:{", "JS1:\u00e4", "JS1:[]"),
        *(summary([]), summary({"n": 3}), summary({"n": {"gpu_utilization": [1]}})),
        *(summary({"n": gpus([101], [1], [1])}), summary({"n": gpus([-1], [1], [1])})),
        *(summary({"n": gpus([10], ["9"], [1])}), summary({"n": gpus([1], [1e30], [1])})),
        "JS1:" + base64.b64encode(gzip.compress(b'{"nodes": ' + b"9" * 5000 + b"}")).decode(),
    )
    begun = time.process_time()
    usage = with_comments(tmp_path, *hostile, summary({"n1": gpus([30], [9], [16])}))
    assert time.process_time() - begun < 5
    assert len(usage.jobs) == len(hostile) + 1
    assert usage.jobs["gpu_util_mean"].notna().sum() == 1
    assert usage.notes == (f"comments of jobstats that cannot be read: {len(hostile)}.",)


def test_many_bombs_stop_being_unpacked(tmp_path):
    bomb = "JS1:" + base64.b64encode(gzip.compress(bytes(1 << 20))).decode()
    begun = time.process_time()
    usage = with_comments(tmp_path, *[bomb] * 5_000)
    assert time.process_time() - begun < 10
    assert usage.notes[0] == "comments of jobstats that cannot be read: 5,000."


# Broken files.

PRINT = f"print it by {COMMAND}"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((row("1")[:-3],), f"sacct.txt: line 2: must have 12 fields, got 11; {PRINT}"),
        (
            (row("1"), row("x1")),
            "sacct.txt: line 3: JobID: must be a job like 102, 102_1 or 100+0, or a step of one, "
            "got 'x1'",
        ),
        (
            (row("1", start="noon"),),
            "sacct.txt: line 2: Start: must be a time like 2026-08-11T14:36:24, got 'noon'",
        ),
        (
            (row("1"), row("1.0", used="gres/gpumem=1M", tasks="two")),
            "sacct.txt: line 3: NTasks: must be a number >= 0, got 'two'",
        ),
        (
            (row("1").replace("|n1", "|n[1-200000]"),),
            "sacct.txt: line 2: NodeList: must name at most 100000, names more",
        ),
    ],
)
def test_broken_rows(tmp_path, lines, message):
    assert error_of(tmp_path, *lines) == message


def test_broken_headers(tmp_path):
    assert error_of(tmp_path, header="JobID           JobName  Partition      State") == (
        f"sacct.txt: line 1: must have columns separated by |; {PRINT}"
    )
    assert error_of(tmp_path, header="JobID|State|Start|End") == (
        f"sacct.txt: line 1: must have the columns AllocTRES, got JobID, State, Start, End; {PRINT}"
    )
    assert error_of(tmp_path, header="JobID|Start|AllocTRES") == (
        f"sacct.txt: line 1: must have the column End or ElapsedRaw or Elapsed; {PRINT}"
    )
    assert error_of(tmp_path, header="User|Start|End|AllocTRES") == (
        f"sacct.txt: line 1: must have the column JobID or JobIDRaw; {PRINT}"
    )


def test_an_elapsed_time_that_is_none(tmp_path):
    header = "JobID|Start|Elapsed|AllocTRES"
    assert error_of(tmp_path, "1|2026-08-11T10:00:00|soon|gres/gpu=1", header=header) == (
        "sacct.txt: line 2: Elapsed: must be a duration like 1-02:30:00"
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("00:05", 5), ("02:03:04", 7384), ("10-00:00:01", 864001), ("01:02.500", 62)],
)
def test_durations(text, seconds):
    assert seconds_of(text) == seconds


def test_states():
    assert [*map(state_of, ("CANCELLED by 1003", "CANCELLED+", "TIMEOUT", "OUT_OF_MEMORY"))] == [
        "ended"
    ] * 4
    assert [*map(state_of, ("PENDING", "PD", "REQUEUE_HOLD"))] == ["waiting"] * 3
    assert [*map(state_of, ("RUNNING", "R", "COMPLETING", "SUSPENDED"))] == ["running"] * 4


def test_tasks_of_arrays():
    assert tasks_of("5_[1-7:3,9%2]", 100) == ["5_1", "5_4", "5_7", "5_9"]
    assert tasks_of("5_3", 0) == ("5_3",)
    assert tasks_of("5_[1-100]", 99) is None
    assert tasks_of("5_*", 99) is None


def test_many_arrays_do_not_fill_the_memory(tmp_path):
    header = "JobID|Start|End|State|ReqTRES|AllocTRES"
    waiting = "Unknown|Unknown|PENDING|gres/gpu=1|"
    lines = [f"{k}_[0-59999]|{waiting}" for k in range(1, 50)]
    assert len(read(tmp_path, *lines, header=header).jobs) == 60_000 + 48


def test_damaged_files_are_refused_or_read(tmp_path):
    path = tmp_path / "sacct.txt"
    write_sacct(path, 40)
    whole = path.read_bytes()
    draws = random.Random(7)
    for _ in range(150):
        content = bytearray(whole)
        for _damage in range(draws.randrange(1, 4)):
            first = draws.randrange(len(content))
            last = first + draws.choice((1, 1, 5, 200))
            filler = (b"", b"|", b"\n", b"\xff", b"9" * 20, b"-", b"[1-9]", b"e9")
            content[first:last] = draws.choice(filler)
        if draws.random() < 0.3:
            del content[draws.randrange(len(content)) :]
        path.write_bytes(bytes(content))
        with suppress(InputError):
            SACCT.read(path)


def test_the_cost_of_many_lines(tmp_path):
    resource = pytest.importorskip("resource")
    path = tmp_path / "sacct.txt"
    write_sacct(path, 20_000)
    begun, peak = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    usage = SACCT.read(path)
    assert len(usage.jobs) > 5_000
    assert time.process_time() - begun < 6
    unit = 1 if sys.platform == "darwin" else 1024
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * unit
    assert grown < 200 * 2**20
