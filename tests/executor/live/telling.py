"""A state machine that takes events in short form and is checked after each."""

from __future__ import annotations

from benchmarks.live.invariants import violations
from dovetail.executor.jobs import events
from dovetail.executor.jobs.specs import JobSpec, Owner, Run, Seat
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.instances.datasets import Measurement, SoloProfile

ANN = Owner(name="ann", uid=1000, gid=1000)
BOB = Owner(name="bob", uid=1001, gid=1001)
GPUS = ("g0", "g1", "g2")


def spec(workload="vision", owner=ANN, **changes):
    return JobSpec(
        command=("train", "--fast"), workload=workload, owner=owner, cwd="/work", **changes
    )


def run_of(job, gpus, share=None):
    """Return the next run of a job."""
    limit = job.spec.memory_mib
    seats = tuple(Seat(gpu=gpu, share=share, memory_mib=limit) for gpu in gpus)
    return Run(id=f"{job.id}.{job.runs + 1}", job=job.id, spec=job.spec, seats=seats)


class Story:
    """A service's first start, and then the events of a test."""

    def __init__(self, *gpus):
        self.machine = StateMachine()
        self.happened = []
        self.at_s = 100.0
        self.start(*(gpus or GPUS))

    def tell(self, event, **fields):
        """Tell an event a second later; return the commands."""
        self.at_s += 1.0
        self.happened.append(event(at_s=self.at_s, **fields))
        try:
            return self.machine.apply(self.happened[-1])
        finally:
            assert violations(self.machine) == ()

    def start(self, *gpus):
        return self.tell(events.ServiceStarted, boot="boot", pool="test", gpus=gpus, version="1")

    def submit(self, **fields):
        job = self.machine.next_job_id()
        self.tell(events.Submitted, job=job, spec=spec(**fields))
        return self.machine.jobs[job]

    def know(self, workload="vision", owner=ANN):
        return self.tell(events.WorkloadKnown, uid=owner.uid, workload=workload)

    def place(self, job, *gpus, share=None, profiling=False):
        run = run_of(job, gpus or GPUS[: job.spec.workers], share)
        return self.tell(events.Placed, run=run, profiling=profiling)

    def started(self, job, rank=0, pid=77):
        return self.tell(
            events.RankStarted, run=job.run.id, rank=rank, pid=pid + rank, pid_started=5
        )

    def ready(self, job, rank=0):
        return self.tell(events.RankReady, run=job.run.id, rank=rank)

    def ended(self, job, status=0, rank=0, **more):
        return self.tell(events.RankEnded, run=job.run.id, rank=rank, status=status, **more)

    def lost(self, job, rank=0):
        return self.tell(events.RankLost, run=job.run.id, rank=rank, reason="no answer")

    def gone(self, job, rank=0):
        return self.tell(events.RankGone, run=job.run.id, rank=rank, reason="another boot")

    def refused(self, job, rank=0, later=False):
        return self.tell(
            events.RankRefused, run=job.run.id, rank=rank, reason="no port", later=later
        )

    def stop(self, job, then="wait"):
        return self.tell(events.StopDecided, run=job.run.id, reason="too slow", then=then)

    def cancel(self, job, by="ann", grace_s=None):
        return self.tell(events.CancelRequested, job=job.id, by=by, grace_s=grace_s)

    def running(self, *gpus, **fields):
        """Return a job of a known workload whose every rank runs."""
        job = self.submit(**fields)
        self.know(job.spec.workload, job.spec.owner)
        self.place(job, *gpus)
        self.bring_up(job)
        return job

    def bring_up(self, job):
        for rank in range(job.spec.workers):
            self.started(job, rank)
            self.ready(job, rank)

    def profiled(self, job):
        profile = SoloProfile(workload="ann/vision", gpu_model="test", throughput=3.0)
        return self.tell(events.Profiled, run=job.run.id, profile=profile)

    def measured(self, *jobs):
        measurement = Measurement(
            workloads=("ann/vision",) * len(jobs), gpu_model="test", slowdown=(1.25,) * len(jobs)
        )
        return self.tell(
            events.Measured,
            runs=tuple(job.run.id for job in jobs),
            gpu=jobs[0].run.seats[0].gpu,
            measurement=measurement,
            window_s=30.0,
        )
