"""Under random decisions the pool's accounts of work, places, memory and ends stay consistent."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.executor.simulation import Options
from dovetail.instances.instance import Instance
from dovetail.instances.traces import Trace, TraceJob
from dovetail.solver.policies.draft import Draft
from tests.executor.simulation.worlds import run

WORKLOADS = ("a", "b", "c")
SHARES = (30, 50, 70)


class Erratic:
    """Stops any job, and starts any job where there is room, at any share and batch."""

    def __init__(self, seed):
        self._draw = Random(seed)

    def decide(self, state):
        draw = self._draw
        draft = Draft(state)
        for job in list(state.running.values()):
            if draw.random() < 0.1:
                draft.stop(job)
        waiting = list(draft.queue.jobs)
        draw.shuffle(waiting)
        for job in waiting:
            self._start(draft, job)
        return draft.decision(wake_s=state.now + draw.uniform(1, 50))

    def _start(self, draft, job):
        draw, machines = self._draw, draft.state.machines
        mode = draw.randrange(len(draft.state.modes[job.workload]))
        model = draw.randrange(len(machines.models))
        open_to = [
            gpu
            for gpu in range(len(machines))
            if machines.model[gpu] == model and draft.has_room(gpu, job, mode)
        ]
        if len(open_to) >= job.workers:
            gpus = draw.sample(open_to, job.workers)
            shares = tuple(self._share(draft, gpu) for gpu in gpus)
            draft.start(job, gpus, shares, mode)

    def _share(self, draft, gpu):
        starts = draft.decision().starts
        shares = {one.job: dict(zip(one.gpus, one.shares, strict=True)) for one in starts}
        taken = [shares[o][gpu] if o in shares else o.share_on(gpu) for o in draft.residents(gpu)]
        left = 100 - sum(share or 0 for share in taken)
        return self._draw.choice([None, *(share for share in SHARES if share <= left)])


def world(draw):
    """Two models, racks, sub-batches, caps; some pairs unknown at some caps."""
    caps = [(None, None), (30, 70), (50, 50), (None, 50), (50, None), (30, None), (70, None)]
    entries = [
        {
            "pair": [a, b],
            "share": list(cap),
            "slowdown": [round(draw.uniform(0.95, 3), 3), round(draw.uniform(0.95, 3), 3)],
        }
        for i, a in enumerate(WORKLOADS)
        for b in WORKLOADS[i + 1 :]
        for cap in caps
        if draw.random() < 0.8
    ]
    batch = {
        "size": 32, "min": 8, "fixed_mib": 500.0, "mib_per_sample": 100.0,
        "step_s": {"fixed": 0.01, "per_sample": 0.002}, "comm_s": 0.02, "overlap": 2.0,
    }  # fmt: skip
    nodes = [
        {"id": f"{model}{k}", "rack": f"r{k % 2}", "gpu_count": 2,
         "gpu": {"model": model, "memory_mib": 8000.0}}
        for model in ("V100", "P100") for k in range(2)
    ]  # fmt: skip
    return Instance.from_data(
        {
            "format": "dovetail-instance/1",
            "name": "erratic",
            "cluster": {"nodes": nodes, "shares": list(SHARES), "per_process_mib": 100.0},
            "workloads": {
                "a": {"memory_mib": 3700.0, "batch": batch, "speed": {"P100": 0.5}},
                "b": {"memory_mib": 5000.0, "power_w": 120.0},
                "c": {"memory_mib": 1000.0, "throughput": {"100": 10.0, "50": 7.0}},
            },
            "jobs": [],
            "slowdowns": entries,
        }
    )


def jobs(draw, number):
    return Trace.of(
        "erratic",
        [
            TraceJob(
                f"j{k}",
                round(draw.uniform(0, 200), 3),
                draw.choice((1, 1, 2, 4)),
                round(draw.expovariate(1 / 60), 3) + 0.001,
                draw.choice(WORKLOADS),
                draw.choice((None, 1.2, 2.0)),
            )
            for k in range(number)
        ],
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_books_balance(seed):
    draw = Random(seed)
    options = Options(
        restart_s=draw.choice((0.0, 5.0)),
        across_nodes=draw.choice((1.0, 1.3)),
        across_racks=draw.choice((1.0, 1.1)),
        node_mtbf_s=draw.choice((1e9, 400.0)),
        repair_s=50.0,
        checkpoint_s=20.0,
        round_s=draw.choice((0.0, 15.0)),
        seed=seed,
    )
    run(jobs(draw, draw.randrange(1, 25)), world(draw), Erratic(seed), options)


@pytest.mark.parametrize("seed", range(3))
def test_the_same_seed_gives_the_same_history(seed):
    first, again = (
        run(jobs(Random(seed), 20), world(Random(seed)), Erratic(seed), Options(seed=seed))
        for _ in range(2)
    )
    assert first.stays == again.stays
    assert list(first.series.pace) == list(again.series.pace)
