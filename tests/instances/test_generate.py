"""The generator: same seed, same instance; Philly-like jobs; plausible slowdowns."""

from __future__ import annotations

import hashlib
import json
from collections import Counter

import numpy as np
import pytest

from dovetail.instances.errors import InputError
from dovetail.instances.generate import PHILLY, generate


def by_share(instance):
    return {(entry.pair, entry.shares): entry for entry in instance.slowdowns}


def test_same_seed_same_instance():
    assert generate(20, seed=7) == generate(20, seed=7)
    assert generate(20, seed=7) != generate(20, seed=8)


def test_instance_is_the_same_on_every_machine():
    data = json.dumps(generate(30, seed=3, running=0.3, margin=0.1, weighted=True).to_data())
    assert hashlib.sha256(data.encode()).hexdigest()[:16] == "331dbc52fce81c79"


def test_every_pair_at_every_split_and_unpartitioned():
    instance = generate(9, workloads=4, shares=(20, 30, 70))
    # 10 open pairs, 10 at (70, 30); at (30, 70) the 4 self-pairs are not repeated.
    # 20 has no 80 to go with.
    splits = Counter(entry.share for entry in instance.slowdowns)
    assert splits == {None: 10, (30, 70): 10, (70, 30): 6}


def test_unpartitioned_has_no_shares():
    instance = generate(5, shares=())
    assert instance.cluster.shares == ()
    assert {entry.share for entry in instance.slowdowns} == {None}


def test_default_size():
    instance = generate(200, seed=1)
    demand = sum(job.workers for job in instance.jobs)
    assert len(instance.places) == -(-demand * 4 // 10)
    assert len(instance.workloads) == 64
    assert len(generate(3).workloads) == 3


def test_largest_gang_fits_by_default():
    for seed in range(30):
        instance = generate(2, seed=seed)
        assert len(instance.places) >= max(job.workers for job in instance.jobs)


def test_gangs_and_durations_follow_philly():
    jobs = generate(20_000, seed=5, workloads=1).jobs
    sizes = Counter(job.workers for job in jobs)
    for kind in PHILLY:
        assert sizes[kind.workers] / 20_000 == pytest.approx(kind.part, abs=0.005)
    single = np.log([job.remaining_s for job in jobs if job.workers == 1])
    assert np.median(single) == pytest.approx(PHILLY[0].mean, abs=0.1)
    gslas = [job.gsla for job in jobs]
    assert min(gslas) < 1.02 < 1.98 < max(gslas)
    assert np.mean(gslas) == pytest.approx(1.5, abs=0.02)


def test_without_gangs_every_job_has_one_worker():
    assert {job.workers for job in generate(300, gangs=False).jobs} == {1}


def test_a_larger_share_slows_less():
    entries = by_share(generate(20, seed=2))
    names = sorted({name for pair, _ in entries for name in pair})
    pairs = [(a, b) for a in names for b in names if a < b]
    narrow, wide = (
        [entries[pair, split].slowdown[0] for pair in pairs] for split in ((20, 80), (80, 20))
    )
    assert np.mean(narrow) > 1.3 * np.mean(wide)


def test_a_heavy_partner_slows_more():
    instance = generate(64, seed=4)
    by_power = sorted(instance.workloads, key=lambda name: instance.workloads[name].power_w)
    light, heavy = set(by_power[:16]), set(by_power[-16:])
    slowdowns = {name: [] for name in instance.workloads}
    for entry in instance.slowdowns:
        if entry.share is None:
            slowdowns[entry.pair[0]].append(entry.slowdown[1])
            slowdowns[entry.pair[1]].append(entry.slowdown[0])
    done_by_heavy, done_by_light = (
        np.mean([slowdowns[k] for k in group]) for group in (heavy, light)
    )
    assert done_by_heavy > done_by_light + 0.1


def test_throughput_falls_with_the_share_and_power_grows_with_co_runners():
    instance = generate(12, seed=6)
    for workload in instance.workloads.values():
        rates = [workload.throughput[p] for p in sorted(workload.throughput)]
        assert rates == sorted(rates)
    for entry in instance.slowdowns:
        assert 45 < entry.power_w <= 300


def test_every_workload_fits_alone():
    for model in ("K80", "H100"):
        instance = generate(64, seed=9, gpu_models=[model], shares=())
        room = min(place.gpu.memory_mib for place in instance.places.values()) - 600
        assert max(w.memory_mib for w in instance.workloads.values()) <= room


def test_running_jobs_hold_gpus_alone_within_their_gsla():
    instance = generate(100, seed=1, running=0.2)
    running = [job for job in instance.jobs if job.running]
    assert len(running) == 20
    held = [gpu for job in running for gpu in job.gpus]
    assert len(held) == len(set(held))
    capped = [job for job in running if job.share]
    assert 0 < len(capped) < len(running)
    for job in capped:
        rate = instance.workloads[job.workload].throughput
        assert rate[100] / rate[job.share[0]] <= job.gsla


def test_running_stops_where_the_gpus_end():
    instance = generate(40, seed=1, running=1.0, gpus=5, gangs=False)
    assert sum(job.running for job in instance.jobs) == 5


def test_margin_gives_upper_bounds():
    assert all(entry.upper is None for entry in generate(10).slowdowns)
    entries = generate(10, margin=0.2).slowdowns
    excess = [
        high / low - 1 for e in entries for low, high in zip(e.slowdown, e.upper, strict=True)
    ]
    assert min(excess) >= 0
    assert np.mean(excess) == pytest.approx(0.2, abs=0.02)


def test_models_take_nodes_in_turn_and_have_speeds():
    instance = generate(10, gpus=24, gpu_models=("V100", "A100"))
    assert [node.gpu.model for node in instance.cluster.nodes] == ["V100", "A100", "V100"]
    for workload in instance.workloads.values():
        assert workload.speed["V100"] == 1
        assert 1 < workload.speed["A100"] < 3.5


def test_weights_and_gang_sharing():
    instance = generate(40, weighted=True, gang_sharing="whole")
    assert {job.weight for job in instance.jobs} == {1, 2, 4}
    assert instance.cluster.gang_sharing == "whole"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"jobs": 0}, "jobs: must be between 1 and 100000, got 0"),
        ({"workloads": 0}, "workloads: must be between 1 and 1000, got 0"),
        ({"gpus": 0}, "gpus: must be between 1 and 100000, got 0"),
        ({"seed": -1}, "seed: must be between 0 and"),
        ({"running": 1.5}, "running: must be between 0 and 1, got 1.5"),
        ({"margin": float("nan")}, "margin: must be between 0 and 10, got nan"),
        ({"shares": (0,)}, "shares[0]: must be >= 1, got 0"),
        ({"gpu_models": ()}, "gpu_models: must name at least one model, got none"),
        ({"gpu_models": ("TPU",)}, "gpu_models: must be one of K80, T4, V100"),
        ({"gang_sharing": "some"}, "gang_sharing: must be"),
    ],
)
def test_arguments_out_of_range(arguments, message):
    with pytest.raises(InputError) as error:
        generate(**{"jobs": 4, **arguments})
    assert str(error.value).startswith(message)
