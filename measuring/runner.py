"""Run a campaign, one experiment after the other; each result is stored immediately."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from dovetail.instances.errors import DovetailError, InputError
from dovetail.measuring.campaign import (
    Campaign,
    Experiment,
    WorkerSeat,
    experiments,
    workers_needed,
)
from dovetail.measuring.device import Device
from dovetail.measuring.ledger import Ledger, rate_alone, settled, standing, today
from dovetail.measuring.profiled import profiled
from dovetail.measuring.results import ExperimentResult
from dovetail.measuring.windows import LEAST, Steps, is_over, most_pace, pace
from dovetail.measuring.worker import Failure, Requests, Worker
from dovetail.measuring.worker_pool import WorkerPool

START_S: Final = 10.0
"""Assumed duration of a start until one has been observed."""

PROFILE_USUAL_S: Final = 10.0
"""What profiling kernels takes at most, as a rule."""

_LOOK_S: Final = 0.1
_READ_S: Final = 0.5
_SLACK_S: Final = 1.0

_Found = dict[str, Any]
"""Fields of a `Result`."""


class ProgressListener(Protocol):
    """Receives the progress of a campaign."""

    def begins(self, experiment: Experiment, left: int) -> None:
        """An experiment begins; ``left`` is the number of experiments left, including it."""

    def ends(self, result: ExperimentResult) -> None:
        """A result was stored."""


class Runner:
    """Runs the experiments of a campaign that a ledger lacks.

    Parameters
    ----------
    campaign : Campaign
        The campaign.
    ledger : Ledger
        An open ledger, to which results are appended.
    device : Device
        The device.
    workers : WorkerPool
        The workers on this device.
    until_s : float
        Deadline in seconds of the monotonic clock: nothing begins that might not end by then.
    listener : ProgressListener
        Receives the progress.
    kernels : bool
        Whether the kernels of each workload are profiled once, after a window alone.
    """

    def __init__(
        self,
        campaign: Campaign,
        ledger: Ledger,
        device: Device,
        workers: WorkerPool,
        until_s: float,
        listener: ProgressListener,
        *,
        kernels: bool = False,
    ) -> None:
        self._kernels = kernels
        self._campaign, self._ledger = campaign, ledger
        self._device, self._workers = device, workers
        self._until_s, self._listener = until_s, listener
        self._refused: set[str] = set()
        self._stage = -1

    def run(self) -> tuple[Experiment, ...]:
        """Measure until all is done or time is up, and return the experiments left.

        Experiments that failed are tried once more, after all others.

        Raises
        ------
        DeviceLostError
            If the device does not recover from trouble.
        """
        while left := self._left():
            if not self._fits(left[0]):
                break
            self._staff(left)
            self._listener.begins(left[0], len(left))
            if not self._fits(left[0]) or not self._settle(left[0]):
                break
        return left

    def _left(self) -> tuple[Experiment, ...]:
        tries = Counter(one.key for one in self._ledger.results)
        done = settled(self._ledger.results) | self._refused
        left = (one for one in experiments(self._campaign) if one.key not in done)
        return tuple(sorted(left, key=lambda one: tries[one.key]))

    def _fits(self, experiment: Experiment) -> bool:
        windows = self._campaign.windows
        needs_s = windows.settle_s + windows.most_s + _SLACK_S
        if not self._workers.has(experiment.seats):
            needs_s += self._workers.longest_start_s or START_S
        return time.monotonic() + needs_s <= self._until_s

    def _staff(self, left: Sequence[Experiment]) -> None:
        """Start the workers of a stage in parallel when it begins, and end those not needed.

        No worker may start during an experiment, as that would disturb it.
        """
        if left[0].stage == self._stage:
            return
        self._stage = left[0].stage
        usable = [one for one in left if self._why_not(one) is None]
        following = min((one.stage for one in usable if one.stage > self._stage), default=None)
        now = workers_needed(one for one in usable if one.stage == self._stage)
        later = workers_needed(one for one in usable if one.stage == following)
        self._workers.staff(now, later, self._until_s)

    def _why_not(self, experiment: Experiment) -> str | None:
        for seat in experiment.seats:
            why = self._device.why_not(seat)
            if why is None and seat.load is not None and self._requests(seat) is None:
                why = "a load is relative to its throughput alone, which was not measured yet"
            if why is not None:
                return f"{seat.workload}: {why}"
        return None

    def _requests(self, seat: WorkerSeat) -> Requests | None:
        """Return the requests of a seat's load; None if it has none, or its rate is not known."""
        rate = rate_alone(self._ledger.results, seat.workload)
        if seat.load is None or rate is None:
            return None
        return Requests(seat.load.part * rate, seat.load.arrivals)

    def _settle(self, experiment: Experiment) -> bool:
        """Run an experiment, store its result, and recover the device; False if time is up."""
        if (why := self._why_not(experiment)) is not None:
            self._refuse(experiment, why)
            return True
        result = self._tried(experiment)
        idle = 0 if result is None else result.residents - len(result.workloads)
        if result is not None and result.status == "out-of-memory" and idle:
            # Idle workers held memory that these could have used.
            self._workers.clear()
            result = self._tried(experiment)
        if result is None:
            return False
        trouble = self._device.trouble()
        if trouble:
            result = result.replace(
                status="failed", reason=trouble, paces=None, most_iterations_s=None
            )
        self._keep(result)
        if trouble:
            self._workers.clear()
            self._device.recover()
            self._stage = -1
        return True

    def _refuse(self, experiment: Experiment, why: str) -> None:
        self._refused.add(experiment.key)
        known = standing(self._ledger.results).get(experiment.key)
        if known is None or (known.status, known.reason) != ("refused", why):
            self._keep(result_of(experiment, {"status": "refused", "reason": why}))

    def _keep(self, result: ExperimentResult) -> None:
        self._ledger.append(result)
        self._listener.ends(result)

    def _tried(self, experiment: Experiment) -> ExperimentResult | None:
        """Return the result of an experiment; None if time is up."""
        try:
            taken = self._workers.take(experiment.seats, self._until_s)
        except TimeoutError:
            return None
        workers = [one for one in taken if isinstance(one, Worker)]
        lacks = ((worker, self._device.unconfirmed(worker)) for worker in workers)
        # Workers that failed to start also had memory.
        residents = len(self._workers.pids) + len(taken) - len(workers)
        if len(workers) < len(taken):
            names = (seat.workload for seat in experiment.seats)
            found = _failed(zip(names, taken, strict=True))
        elif (lack := next((one for one in lacks if one[1] is not None), None)) is not None:
            self._workers.dismiss(workers)
            found = {"status": "failed", "reason": f"{lack[0].seat.workload}: {lack[1]}"}
        elif not self._fits(experiment):
            return None
        else:
            found = self._window(experiment, workers)
            if self._wants_kernels(experiment, found):
                found |= self._profiled(workers[0])
        ready = [one.ready if isinstance(one, Worker) else None for one in taken]
        found["families"] = tuple(one and one.get("family") for one in ready)
        found["batch_sizes"] = tuple(one and one.get("batch_size") for one in ready)
        try:
            return result_of(experiment, found, residents)
        except InputError as error:  # the device reported impossible values
            reason = {"status": "failed", "reason": str(error)}
            return result_of(experiment, reason, residents)

    def _wants_kernels(self, experiment: Experiment, found: _Found) -> bool:
        """Return whether to profile a workload: alone and uncapped, not profiled yet, with time."""
        name = experiment.seats[0].workload
        alone = experiment.seats == (WorkerSeat(name, experiment.seats[0].mode),)
        sound = found["status"] == "ok" and not found["disturbed_by"]
        tried = any(
            one.workloads == (name,) and (one.kernels or one.kernels_lack)
            for one in self._ledger.results
        )
        in_time = time.monotonic() + PROFILE_USUAL_S <= self._until_s
        return self._kernels and alone and sound and not tried and in_time

    def _profiled(self, worker: Worker) -> _Found:
        if not worker.idle:  # it did not stop, and has been ended
            return {}
        kernels = profiled(worker, self._workers)
        return {"kernels_lack": kernels} if isinstance(kernels, str) else {"kernels": kernels}

    def _window(self, experiment: Experiment, workers: Sequence[Worker]) -> _Found:
        """Run workers, and measure once they have settled."""
        for worker, seat in zip(workers, experiment.seats, strict=True):
            worker.run(self._requests(seat))
        try:
            found = self._observed(workers)
        except DovetailError as error:
            found = {"status": "failed", "reason": str(error)}
        finally:
            ends = [(one.seat.workload, one.failure()) for one in workers]
            self._workers.rest(workers)
        return _failed(ends) if any(failure for _, failure in ends) else found

    def _observed(self, workers: Sequence[Worker]) -> _Found:
        windows = self._campaign.windows
        if any(worker.requests for worker in workers):
            # Once a mean is known well, a 99th percentile is not yet.
            windows = windows.replace(least_s=windows.most_s)

        def any_failed() -> bool:
            return any(worker.failure() for worker in workers)

        self._workers.wait(any_failed, time.monotonic() + windows.settle_s)
        meter = self._device.meter()
        start_s = now_s = looked_s = time.monotonic()
        until_s = self._until_s - _SLACK_S
        while not is_over(windows, start_s, now_s, [one.events() for one in workers], until_s):
            if self._workers.wait(any_failed, time.monotonic() + _LOOK_S):
                return {}  # the failure is the result
            now_s = time.monotonic()
            if now_s - looked_s >= _READ_S:
                meter.look()
                looked_s = now_s
        fields, memory_mib = meter.read()
        found: _Found = {**fields, "window_s": now_s - start_s}
        if any(worker.seat.leads for worker in workers) and not found["launches"]:
            return {**found, "status": "failed", "reason": "no launch was intercepted"}
        paces = []
        for worker in workers:
            measured = pace(worker.events(), start_s, now_s)
            if measured is None:
                return {**found, **_starved(worker.seat.workload, workers, start_s, now_s)}
            run = worker.submission.run.id if worker.submission is not None else ""
            held_mib, sms = memory_mib.get(run, worker.memory_mib), (worker.ready or {}).get("sms")
            latency = measured.latency
            if latency is not None and worker.requests is not None:
                latency = latency.replace(requests_s=worker.requests.requests_s)
            paces.append(measured.replace(memory_mib=held_mib, sms=sms, latency=latency))
        return {**found, "status": "ok", "paces": tuple(paces)}


def _starved(who: str, workers: Sequence[Worker], start_s: float, now_s: float) -> _Found:
    """Return the result if a worker did too little for a throughput."""
    reason = f"{who}: did fewer than {LEAST} chunks in {now_s - start_s:.1f} s"
    most = [_most_pace(worker, start_s, now_s) for worker in workers]
    if len(workers) == 1 or None in most:
        return {"status": "failed", "reason": reason}
    return {"status": "starved", "reason": reason, "most_iterations_s": tuple(most)}


def _most_pace(worker: Worker, start_s: float, now_s: float) -> float | None:
    """Return the throughput of a worker, or else an upper bound of it, if known."""
    events = worker.events()
    if (measured := pace(events, start_s, now_s)) is not None:
        return measured.iterations_s
    steps = [event for event in events if isinstance(event, Steps)]
    chunk = (worker.ready or {}).get("chunk")
    if chunk is None or worker.requests is not None or len(steps) < len(events):
        return None
    return most_pace(steps, chunk, start_s, now_s)


def result_of(
    experiment: Experiment, found: Mapping[str, Any], residents: int = 0
) -> ExperimentResult:
    """Return the record of an experiment's outcome, now."""
    seats = experiment.seats
    return ExperimentResult.from_data(
        {
            "key": experiment.key,
            "stage": experiment.stage,
            "repeat": experiment.repeat,
            "mode": seats[0].mode,
            "workloads": tuple(seat.workload for seat in seats),
            "shares": tuple(seat.share for seat in seats),
            "first": tuple(seat.first for seat in seats),
            "loads": tuple(seat.load for seat in seats) if any(s.load for s in seats) else None,
            "residents": max(len(seats), residents),
            "date": today(),
            **found,
        }
    )


def _failed(taken: Iterable[tuple[str, object]]) -> _Found:
    """Return status and reason of failures; lack of memory precedes other failures."""
    failures = [(name, one) for name, one in taken if isinstance(one, Failure)]
    short = [(name, one) for name, one in failures if one.why == "out-of-memory"]
    name, worst = (short or failures)[0]
    reason = f"{name}: {worst.text or worst.why}"
    return {"status": "out-of-memory" if short else "failed", "reason": reason}
