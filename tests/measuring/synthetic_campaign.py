"""A synthetic campaign: the folder that a finished one leaves, made by a contention model.

Nothing here was measured. Compute is a cap on SMs, bandwidth is shared in proportion to demand,
power is that of an idle GPU and of what is used. Every number has one per cent of noise.
"""

import random
from pathlib import Path

from dovetail.instances.datasets import DataSet, Measurement, SoloProfile, write_dataset
from dovetail.measuring.campaign import Campaign
from dovetail.measuring.ledger import Ledger
from dovetail.measuring.results import ExperimentResult, Latency, Machine, Throughput

MODEL = "synthetic"
NAMES = ("conv", "transformer", "gpt", "lstm", "recommender", "burst")
SEED = 1
NOISE = 0.01


def write(folder: Path, most: int | None = None) -> None:
    """Write a ledger, of so many results at most, ``profiles.csv`` and ``pairs.csv``."""
    draw = random.Random(SEED)
    needs = {name: _Needs(draw) for name in NAMES}
    results = list(_results(needs, draw))
    machine = Machine(
        campaign="synthetic",
        fingerprint="0",
        gpu_model=MODEL,
        stand_in="a contention model",
        host_cores=1,
        dovetail="0",
        date="2026-11-22",
    )
    campaign = Campaign.from_data(
        {
            "format": "dovetail-campaign/1",
            "name": "synthetic",
            "workloads": NAMES,
            "stages": [{"measure": "pairs"}],
        }
    )
    with Ledger(folder) as ledger:
        ledger.begin(machine, campaign)
        for one in results[:most]:
            ledger.append(one)
    write_dataset(_data(results, needs), folder)


class _Needs:
    """Needs of a workload alone: fractions of SMs and bandwidth, and iterations a second."""

    def __init__(self, draw):
        self.sms, self.bandwidth = draw.uniform(0.1, 1.0), draw.uniform(0.05, 0.8)
        self.rate = draw.uniform(5, 500)

    def slowdown(self, cap, other):
        """Return the slowdown under a cap with a co-runner (its needs and cap), or alone."""
        least = self.sms / min(1.0, cap / 100)
        if other is None:
            return max(1.0, least)
        needs, others_cap = other
        busy = min(self.sms, cap / 100) + min(needs.sms, others_cap / 100)
        crowded = max(1.0, busy) * max(1.0, self.bandwidth + needs.bandwidth)
        return max(least, crowded)


def _results(needs, draw):
    for name in NAMES:
        for mode, share in (("mps", None), ("time-sliced", None), ("mps", 50), ("mps", 10)):
            yield _result(needs, draw, mode, (name,), (share,), (False,), 0)
        yield _result(needs, draw, "mps", (name,), (None,), (False,), 1)
    for k, a in enumerate(NAMES):
        for b in NAMES[k:]:
            for mode, caps in (
                ("mps", (None, None)),
                ("mps", (50, 50)),
                ("mps", (10, 90)),
                ("mps", (90, 10)),
                ("time-sliced", (None, None)),
            ):
                if a != b or caps != (90, 10):
                    for repeat in (0, 1):
                        yield _result(needs, draw, mode, (a, b), caps, (False, False), repeat)
            if b == "burst" != a:
                yield _result(needs, draw, "mps", (a, b), (None, None), (False, True), 0)


def _result(needs, draw, mode, names, shares, first, repeat):
    paces, used = [], 0.0
    for at, name in enumerate(names):
        cap = shares[at] or 100
        other = (needs[names[1 - at]], shares[1 - at] or 100) if len(names) == 2 else None
        slowdown = len(names) if mode == "time-sliced" else needs[name].slowdown(cap, other)
        rate = needs[name].rate / slowdown * draw.gauss(1, NOISE)
        used += needs[name].sms / slowdown
        p50 = 0.01 * slowdown / (2 if first[at] else 1)
        latency = Latency(p50_s=p50, p99_s=4 * p50, mean_s=p50, requests=100)
        paces.append(
            Throughput(
                iterations_s=rate,
                iterations=100,
                relative_error=0.01,
                latency=latency if name == "burst" else None,
            )
        )
    jobs = "+".join(f"{n}@{s}{f}" for n, s, f in zip(names, shares, first, strict=True))
    return ExperimentResult(
        key=f"0:{mode}:{jobs}#{repeat}",
        stage=0,
        repeat=repeat,
        mode=mode,
        workloads=names,
        shares=shares,
        first=first,
        status="ok",
        paces=tuple(paces),
        window_s=3.0,
        power_w=(100 + 500 * used) * draw.gauss(1, NOISE),
        residents=len(names),
        date="2026-11-22T00:00:00+00:00",
    )


def _data(results, needs):
    profiles, measured = [], []
    for one in results:
        if len(one.workloads) == 1 and one.mode != "mps":
            continue
        if len(one.workloads) == 1:
            name = one.workloads[0]
            profiles.append(
                SoloProfile(
                    workload=name,
                    gpu_model=MODEL,
                    share=one.shares[0],
                    throughput=one.paces[0].iterations_s,
                    power_w=one.power_w,
                    metrics={"sm_active": needs[name].sms, "dram_active": needs[name].bandwidth},
                )
            )
        elif not any(one.first) and one.repeat == 0:
            slowed = (
                needs[name].rate / pace.iterations_s
                for name, pace in zip(one.workloads, one.paces, strict=True)
            )
            measured.append(
                Measurement(
                    workloads=one.workloads,
                    gpu_model=MODEL,
                    mode=one.mode.replace("-", "_"),
                    share=one.shares,
                    slowdown=tuple(slowed),
                    power_w=one.power_w,
                )
            )
    return DataSet(name="synthetic", profiles=tuple(profiles), measurements=tuple(measured))
