"""Random next events of a state machine: mostly sensible, sometimes impossible."""

from dovetail.executor.jobs import events
from dovetail.instances.datasets import Measurement, SoloProfile
from tests.executor.live.telling import ANN, BOB, GPUS, run_of, spec


def random_event(machine, rng):
    """Return an event of a moment after the last one; ``rng`` is a `random.Random`."""
    kinds, weights = zip(*_FATES, strict=True)
    fate = rng.choices(kinds, weights)[0]
    event, fields = fate(machine, rng)
    return event(at_s=machine.now_s + 1.0, **fields)


def _submitted(machine, rng):
    chosen = spec(
        workload=rng.choice(["vision", "text"]),
        owner=rng.choice([ANN, BOB]),
        workers=rng.choice([1, 1, 2]),
        nice=rng.choice([-1, 0, 0]),
        retries=rng.choice([0, 1, 2]),
        requeue=rng.random() < 0.8,
        after=_some_of(machine, rng),
        after_any=_some_of(machine, rng),
        held=rng.random() < 0.05,
    )
    job = rng.choice([machine.next_job_id()] * 19 + ["j1"])
    if rng.random() < 0.1:
        chosen = chosen.replace(place=machine.submitted % 4, most_running=2)
    elif rng.random() < 0.2:
        place = machine.submitted % 2
        chosen = chosen.replace(place=place, service=True, priority="latency", requeue=True)
    request = rng.choice(["", "", "1000 k", "1000 l"])
    return events.Submitted, {"job": job, "spec": chosen, "request": request}


def _some_of(machine, rng):
    """Return mostly no jobs, else one or two that are known."""
    if rng.random() < 0.93:
        return ()
    return tuple(rng.sample([*machine.jobs], min(len(machine.jobs), rng.randrange(1, 3))))


def _held(machine, rng):
    # Mostly released again, or nothing would ever start.
    on = rng.random() < 0.4
    job = rng.choice([*(machine.queued if on else machine.barred), *[*machine.holding][:1], "j1"])
    return events.HoldChanged, {"job": job, "on": on, "by": "ann"}


def _rested(machine, rng):
    job = rng.choice([*machine.resting, *[*machine.holding][:1], "j1"])
    return events.RestartDue, {"job": job}


def _paused(machine, rng):
    job = rng.choice([*machine.holding, "j1"])
    return events.PauseChanged, {"job": job, "on": rng.random() < 0.6, "by": "ann"}


def _edited(machine, rng):
    job = rng.choice([*machine.queued, *machine.barred, "j1"])
    old = machine.jobs[job].spec if job in machine.jobs else spec()
    changes = {"workload": rng.choice(["vision", "text"]), "retries": rng.choice([0, 1, 2])}
    if rng.random() < 0.2:
        changes |= rng.choice([{"workers": 2}, {"nice": 3}, {"held": True}, {"owner": BOB}])
    return events.Edited, {"job": job, "spec": old.replace(**changes, env={}), "by": "ann"}


def _placed(machine, rng):
    # Mostly one that waits, rarely any job.
    jobs = machine.queue() if rng.random() < 0.9 else list(machine.jobs.values())
    if not jobs:
        return _submitted(machine, rng)
    job = rng.choice(jobs)
    gpus = rng.sample(GPUS, job.spec.workers)
    return events.Placed, {"run": run_of(job, gpus), "profiling": rng.random() < 0.6}


def _rank_news(machine, rng):
    event, fields = rng.choice(_RANK_NEWS)
    return event, {"run": _run(machine, rng), "rank": rng.choice([0, 0, 1]), **fields}


def _come_up(machine, rng):
    """Let a rank that is not up be ready."""
    waiting = [
        (job.run.id, rank)
        for job in machine.holding.values()
        for rank, view in enumerate(job.ranks)
        if view.state not in ("ready", "over")
    ]
    if not waiting:
        return _placed(machine, rng)
    run, rank = rng.choice(waiting)
    return events.RankReady, {"run": run, "rank": rank}


def _stopped(machine, rng):
    then = rng.choice(["wait", "fail"])
    return events.StopDecided, {"run": _run(machine, rng), "reason": "too slow", "then": then}


def _cancelled(machine, rng):
    job = rng.choice([*machine.jobs, "j1"])
    return events.CancelRequested, {"job": job, "by": "root"}


def _known(machine, rng):
    uid = rng.choice([ANN, BOB]).uid
    return events.WorkloadKnown, {"uid": uid, "workload": rng.choice(["vision", "text"])}


def _profiled(machine, rng):
    profile = SoloProfile(workload="w", gpu_model="test", throughput=rng.uniform(0.1, 9))
    return events.Profiled, {"run": _run(machine, rng), "profile": profile}


def _not_profiled(machine, rng):
    return events.ProfileFailed, {"run": _run(machine, rng), "reason": "reports no progress"}


def _measured(machine, rng):
    slowdown = rng.choice([None, (rng.uniform(1, 2), rng.uniform(1, 2))])
    found = Measurement(workloads=("v", "w"), gpu_model="test", slowdown=slowdown)
    runs = (_run(machine, rng), _run(machine, rng))
    return events.Measured, {"runs": runs, "gpu": "g0", "measurement": found, "window_s": 9.5}


def _separated(machine, rng):
    return events.Separated, {
        "runs": (_run(machine, rng), _run(machine, rng)),
        "gpu_model": "test",
        "workloads": ("v", "w"),
        "shares": (None, None),
        "gsla": 1.5,
        **rng.choice([{"slowdown": None}, {"slowdown": 1.7}, {"slowdown": 1.7, "tail": True}]),
    }


def _library_seen(machine, rng):
    uid, library = rng.choice([ANN, BOB]).uid, rng.choice(["130100", "130200"])
    return events.LibrarySeen, {"uid": uid, "workload": "vision", "library": library}


def _measuring(machine, rng):
    """Return mostly the next step of measuring a share."""
    present = machine.shares.present
    run = present.run if present is not None and rng.random() < 0.9 else "shares-1.1"
    if present is None or rng.random() < 0.1:
        of_device = {"gpu": rng.choice(GPUS), "gpu_model": "test", "library": "130100", "share": 50}
        return events.MeasuringBegun, {"run": f"shares-{machine.sequence + 1}.1", **of_device}
    if rng.random() < 0.4:
        return events.MeasuringStopped, {"run": run, "reason": "j1 can start there"}
    outcome = rng.choice(["right", "wrong", "stopped", "failed"])
    return events.MeasuringEnded, {"run": run, "outcome": outcome, "reason": "r"}


def _recorded(machine, rng):
    return events.Recorded, {"sequence": max(0, machine.sequence - rng.randrange(9))}


def _reserved(machine, rng):
    job = rng.choice([*machine.queued, "j1"])
    gpus = tuple(rng.sample(GPUS, rng.randrange(3)))
    return events.Reserved, {"job": job, "gpus": gpus, "until_s": rng.uniform(0, 1e3)}


def _drained(machine, rng):
    # Mostly ended again, or nothing would ever start.
    on = rng.random() < 0.3
    return events.DrainChanged, {"gpus": (rng.choice(GPUS),), "on": on, "by": "root"}


def _sick(machine, rng):
    return events.DeviceSick, {"gpu": rng.choice(GPUS), "reason": "is too hot"}


def _healed(machine, rng):
    return events.DeviceHealed, {"gpu": rng.choice(GPUS)}


def _service_started(machine, rng):
    gpus = rng.choice([GPUS, GPUS, GPUS[:2]])
    return events.ServiceStarted, {"boot": "b", "pool": "test", "gpus": gpus, "version": "1"}


def _devices_changed(machine, rng):
    return events.DevicesChanged, {"gpus": rng.choice([GPUS, GPUS, GPUS[1:], (*GPUS, "g3")])}


def _run(machine, rng):
    """Return a run: mostly one that holds devices, rarely one that never was."""
    holding = [job.run.id for job in machine.holding.values()]
    if holding and rng.random() < 0.9:
        return rng.choice(holding)
    runs = [f"{name}.{k}" for name, job in machine.jobs.items() for k in range(job.runs + 2)]
    return rng.choice(runs or ["j1.1"])


_RANK_NEWS = (
    (events.RankStarted, {"pid": 7, "pid_started": 8}),
    (events.RankStarted, {}),
    (events.RankReady, {}),
    (events.RankEnded, {"status": 0}),
    (events.RankEnded, {"status": 0}),
    (events.RankEnded, {"status": 1}),
    (events.RankEnded, {"status": -9}),
    (events.RankRefused, {"reason": "no port"}),
    (events.RankLost, {"reason": "no answer"}),
    (events.RankGone, {"reason": "another boot"}),
)

_FATES = (
    (_submitted, 4),
    (_placed, 8),
    (_rank_news, 10),
    (_come_up, 6),
    (_reserved, 1),
    (_stopped, 1),
    (_cancelled, 1),
    (_held, 1),
    (_paused, 1),
    (_rested, 1),
    (_edited, 1),
    (_known, 0.2),
    (_profiled, 0.5),
    (_not_profiled, 0.5),
    (_measured, 0.5),
    (_separated, 0.5),
    (_library_seen, 0.2),
    (_measuring, 0.6),
    (_recorded, 0.5),
    (_drained, 0.5),
    (_sick, 0.3),
    (_healed, 0.8),
    (_service_started, 0.8),
    (_devices_changed, 0.3),
)
"""Each kind with how often it comes, relative to the others."""
