"""Processor time of live mode's state machine: an event, and a job from submission to end.

    python benchmarks/state_machine.py [JOBS] [GPUS]

Nothing is journalled or started. Jobs of one GPU are placed at once, and each ends when its GPU is
wanted again: five events a job.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from dovetail.executor.jobs import events
from dovetail.executor.jobs.specs import JobSpec, Owner, Run, Seat
from dovetail.executor.jobs.state_machine import StateMachine

SPEC = JobSpec(command=("train",), workload="w", owner=Owner(name="u", uid=1, gid=1), cwd="/")


def main() -> None:
    """Apply the events of so many jobs and print what each took."""
    jobs, gpus = (int(text) for text in (sys.argv[1:] + ["5000", "400"][len(sys.argv) - 1 :]))
    machine = StateMachine()
    began_s = time.process_time()
    count = 0
    for event in _happening(jobs, gpus):
        machine.apply(event)
        count += 1
    took_us = (time.process_time() - began_s) * 1e6
    print(f"{count:,} events: {took_us / count:.0f} us an event, {took_us / jobs:.0f} us a job")


def _happening(jobs: int, gpus: int) -> Iterator[events.AnyEvent]:
    names = tuple(f"g{k}" for k in range(gpus))
    yield events.ServiceStarted(at_s=0, boot="b", pool="cpu", gpus=names, version="1")
    yield events.WorkloadKnown(at_s=0, uid=1, workload="w")
    for k in range(1, jobs + 1):
        yield events.Submitted(at_s=k, job=f"j{k}", spec=SPEC)
        if k > gpus:
            yield events.RankEnded(at_s=k, run=f"j{k - gpus}.1", rank=0, status=0)
        seats = (Seat(gpu=names[k % gpus]),)
        yield events.Placed(at_s=k, run=Run(id=f"j{k}.1", job=f"j{k}", spec=SPEC, seats=seats))
        yield events.RankStarted(at_s=k, run=f"j{k}.1", rank=0)
        yield events.RankReady(at_s=k, run=f"j{k}.1", rank=0)


if __name__ == "__main__":
    main()
