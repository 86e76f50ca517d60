"""The comparison with AEGIS's machine, on a tiny checkout made here."""

import csv
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from tests.executor.waiting import LIMIT_S

PAPERS = Path(__file__).parents[2] / "benchmarks" / "papers"
EXPERIMENTS = "evaluation/experiments"
RESULTS = f"{EXPERIMENTS}/results/final_representative_evaluation_analysis"
OLDER = f"{EXPERIMENTS}/results/final_representative_evaluation_legacy_zeus_analysis"
PAIRS = "evaluation/lucid/results/pairwise_results.csv"
NAMES = [f"{model}_imagenet_bs{batch}" for model in ("a", "b", "c") for batch in (32, 64)]
SOLO_S = 100.0


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(PAPERS))


def write(file, header, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(header.split(","))
        writer.writerows(rows)


@pytest.fixture
def checkout(tmp_path):
    """Three traces of six jobs of 100 s, of which three wait, and the older machine's."""
    header = (
        "trace_name,configuration_label,makespan_s,jct_mean_s,successful_attempt_runtime_mean_s"
    )
    labels = ("exclusive", "horus_baseline", "lucid_baseline")
    traces = ("philly", "saturn", "venus")
    rows = [(trace, label, 250, 120, SOLO_S) for trace in traces for label in labels]
    write(tmp_path / RESULTS / "all_run_summaries.csv", header, rows)
    rows = [("saturn_legacy", label, 200, 110, SOLO_S) for label in labels]
    write(tmp_path / OLDER / "all_run_summaries.csv", header, rows)
    older = tmp_path / EXPERIMENTS / "traces/legacy_rtx2080ti"
    header = "workload_id,solo_runtime_s,profile_peak_memory_mib,lucid_ss"
    catalog = [(f"{name}_1gpu", SOLO_S, 3000, 1) for name in NAMES]
    write(older / "mapper_inputs/legacy_11gb_workload_catalog.csv", header, catalog)
    jobs = [(k, f"yaml/{name}_1gpu.yaml") for k, name in enumerate(NAMES)]
    name = "saturn_legacy_rtx2080ti_seed42_60jobs.execution.csv"
    write(older / "mapper_outputs" / name, "submit_time_s,task_path", jobs)
    used = tmp_path / "evaluation/lucid/legacy_rtx2080ti/results/lucid_feature_table_all36.csv"
    rows = [(f"{name}_1gpu.yaml", 40) for name in NAMES]
    write(used, "spec_name,horus_gpu_util_mean", rows)
    jcts = [100, 100, 100, 170, 170, 170]
    jobs = [
        ("exclusive", f"/x/{name}_1gpu.yaml", jct, SOLO_S)
        for name, jct in zip(NAMES, jcts, strict=True)
    ]
    others = [("LUCID", f"/x/{NAMES[0]}_1gpu.yaml", 1, SOLO_S)]
    for trace in traces:
        file = tmp_path / RESULTS / "traces" / trace / "normalized_jct_values.csv"
        write(file, "run_label,task_file,jct_s,solo_runtime_s", [*others, *jobs])
    header = "spec_name,peak_memory_mib,horus_gpu_util_mean,avg_smact,avg_drama,lucid_final_ss"
    profiles = [
        (f"{name}_1gpu.yaml", 4000, 30 + k, 0.3 + k / 20, 0.2, 1) for k, name in enumerate(NAMES)
    ]
    profiled = tmp_path / "evaluation/lucid/results"
    write(profiled / "lucid_predictions_all_specs_with_tiny_safeguard.csv", header, profiles)
    header = "spec_a_key,spec_b_key,solo_time_a_s,solo_time_b_s,pair_time_a_s,pair_time_b_s"
    pairs = [
        (f"{a}_1gpu.yaml", f"{b}_1gpu.yaml", 100, 100, 120 + k, 125)
        for k, (a, b) in enumerate(combinations(NAMES, 2))
    ]
    write(tmp_path / PAIRS, header, pairs)
    return tmp_path


def run(folder):
    command = [sys.executable, "-W", "error", PAPERS / "aegis.py", folder]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)


def test_every_case_is_printed_next_to_the_measurement(checkout):
    done = run(checkout)
    assert done.returncode == 0, done.stderr
    assert "### measured: makespan" in done.stdout
    assert "| lucid | 1.00 / 1.00 / 1.00 |" in done.stdout
    assert "### simulated, as run, pairs: makespan" in done.stdout
    assert "| as run, pairs, decisions every 30 s |" in done.stdout
    # Six jobs of 100 s on eight GPUs, the last after 5 s: 105 s of 200, and 100 s of 110.
    assert "| saturn_legacy | 0.53 | 0.91 | 1.00 |" in done.stdout


def test_a_missing_file_is_one_line(checkout):
    (checkout / PAIRS).unlink()
    done = run(checkout)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert PAIRS in done.stderr


def test_arrivals_of_jobs_that_waited_follow_from_their_completion_times(checkout):
    import aegis_data

    jobs = aegis_data.trace_of(checkout, "philly", SOLO_S).jobs
    # With all three GPUs free at 100 s, a completion time of 170 s means an arrival at 30 s.
    assert [job.arrival_s for job in jobs] == [0, 0, 0, 30, 30, 30]
    assert [job.workload for job in jobs] == NAMES


def test_the_time_that_the_longer_job_runs_alone_is_subtracted(checkout):
    import aegis_data

    world, _ = aegis_data.profiled(checkout)
    header = "spec_a_key,spec_b_key,solo_time_a_s,solo_time_b_s,pair_time_a_s,pair_time_b_s"
    a, b = (f"{name}_1gpu.yaml" for name in NAMES[:2])
    # 120 s together, in which b does 160 - 60 = 100 s of its work; the other shares too little.
    write(checkout / PAIRS, header, [(a, b, 100, 160, 120, 180), (a, b, 100, 900, 120, 950)])
    (pair,) = aegis_data.measured_pairs(checkout, world)
    assert pair.slowdown == pytest.approx((1.2, 1.2))


def test_lucid_as_run_keeps_the_order_of_arrival_and_pairs_by_scores():
    import aegis

    from tests.executor.simulation.worlds import finishes, run, trace, world

    place = world(gpus=1, slowdowns=[("a", "b", 1.0, 1.0), ("a", "a", 1.0, 1.0)])
    jobs = trace((0, 1, 100, "a"), (0, 1, 100, "b"), (0, 1, 10, "a"))
    assert finishes(run(jobs, place, aegis.LucidAsRun([1, 1]))) == [100, 100, 110]
    # A score of 2 leaves no room for any other job but one of score 0, and no job overtakes.
    assert finishes(run(jobs, place, aegis.LucidAsRun([1, 2]))) == [100, 200, 210]
