"""Carry out a campaign: one experiment after the other, each result kept as soon as it is there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from dovetail.executor.measuring.campaign import Campaign
from dovetail.executor.measuring.device import Device
from dovetail.executor.measuring.experiments import remaining, workers_needed
from dovetail.executor.measuring.ledger import Ledger, standing, today
from dovetail.executor.measuring.records import Experiment, Result
from dovetail.executor.measuring.windows import LEAST, is_over, pace
from dovetail.executor.measuring.worker import Failure, Worker
from dovetail.executor.measuring.worker_pool import WorkerPool
from dovetail.instances.errors import DovetailError

START_S: Final = 10.0
"""What a start is taken to last before one was seen."""

_LOOK_S: Final = 0.1
_READ_S: Final = 0.5
_SLACK_S: Final = 1.0

_Found = dict[str, Any]
"""What came of an experiment: fields of `Result`."""


class ProgressListener(Protocol):
    """Who is told how a campaign goes."""

    def begins(self, experiment: Experiment, left: int) -> None:
        """An experiment begins; so many are left with it."""

    def ends(self, result: Result) -> None:
        """A result was kept."""


class Runner:
    """Carries out what a ledger lacks of a campaign.

    Parameters
    ----------
    campaign : Campaign
        What is measured.
    ledger : Ledger
        Open; results are appended to it.
    device : Device
        Where.
    workers : WorkerPool
        On this device.
    until_s : float
        By the monotonic clock: nothing begins that would not be over by then.
    listener : ProgressListener
        Is told of every experiment.
    """

    def __init__(
        self,
        campaign: Campaign,
        ledger: Ledger,
        device: Device,
        workers: WorkerPool,
        until_s: float,
        listener: ProgressListener,
    ) -> None:
        self._campaign, self._ledger = campaign, ledger
        self._device, self._workers = device, workers
        self._until_s, self._listener = until_s, listener
        self._refused: set[str] = set()
        self._stage = -1

    def run(self) -> tuple[Experiment, ...]:
        """Measure until all is done or time is up, and return what is left.

        What has failed is tried again, once, after everything else.

        Raises
        ------
        DeviceLostError
            When the device does not come back from trouble.
        """
        while left := self._left():
            if not self._fits(left[0]):
                break
            self._man(left)
            self._listener.begins(left[0], len(left))
            if not self._fits(left[0]) or not self._settle(left[0]):
                break
        return left

    # What comes next.

    def _left(self) -> tuple[Experiment, ...]:
        tries = Counter(one.key for one in self._ledger.results)
        left = remaining(self._campaign, self._ledger.settled | self._refused)
        return tuple(sorted(left, key=lambda one: tries[one.key]))

    def _fits(self, experiment: Experiment) -> bool:
        windows = self._campaign.windows
        needs_s = windows.settle_s + windows.most_s + _SLACK_S
        if not self._workers.has(experiment.seats):
            needs_s += self._workers.longest_start_s or START_S
        return time.monotonic() + needs_s <= self._until_s

    def _man(self, left: Sequence[Experiment]) -> None:
        """At the beginning of a stage, start its workers side by side and end what is not needed.

        While an experiment runs nobody may start, as that would disturb it.
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
            if (why := self._device.why_not(seat)) is not None:
                return f"{seat.workload}: {why}"
        return None

    # One experiment.

    def _settle(self, experiment: Experiment) -> bool:
        """Measure, keep the result, and bring the device back if need be; False: time is up."""
        if (why := self._why_not(experiment)) is not None:
            self._refuse(experiment, why)
            return True
        result = self._tried(experiment)
        beside = 0 if result is None else result.residents - len(result.workloads)
        if result is not None and result.status == "out-of-memory" and beside:
            # Others had held memory that this pair could have had.
            self._workers.clear()
            result = self._tried(experiment)
        if result is None:
            return False
        trouble = self._device.trouble()
        if trouble:
            result = result.replace(status="failed", told=trouble, paces=None)
        self._keep(result)
        if trouble:
            self._workers.clear()
            self._device.recover()
            self._stage = -1
        return True

    def _refuse(self, experiment: Experiment, why: str) -> None:
        self._refused.add(experiment.key)
        known = standing(self._ledger.results).get(experiment.key)
        if known is None or (known.status, known.told) != ("refused", why):
            self._keep(_result(experiment, {"status": "refused", "told": why}))

    def _keep(self, result: Result) -> None:
        self._ledger.append(result)
        self._listener.ends(result)

    def _tried(self, experiment: Experiment) -> Result | None:
        """Return what came of an experiment; None: time is up."""
        try:
            taken = self._workers.take(experiment.seats, self._until_s)
        except TimeoutError:
            return None
        workers = [one for one in taken if isinstance(one, Worker)]
        lacks = ((worker, self._device.unconfirmed(worker)) for worker in workers)
        residents = 0
        if len(workers) < len(taken):
            names = (seat.workload for seat in experiment.seats)
            found = _failed(zip(names, taken, strict=True))
        elif (lack := next((one for one in lacks if one[1] is not None), None)) is not None:
            self._workers.dismiss(workers)
            found = {"status": "failed", "told": f"{lack[0].seat.workload}: {lack[1]}"}
        elif not self._fits(experiment):
            return None
        else:
            residents = len(self._workers.pids)
            found = self._window(workers)
        told = [one.ready if isinstance(one, Worker) else None for one in taken]
        found["families"] = tuple(one and one.get("family") for one in told)
        found["batch_sizes"] = tuple(one and one.get("batch_size") for one in told)
        return _result(experiment, found, residents)

    def _window(self, workers: Sequence[Worker]) -> _Found:
        """Let workers run, measure once they have settled, and return what was found."""
        for worker in workers:
            worker.run()
        try:
            found = self._observed(workers)
        except DovetailError as error:
            found = {"status": "failed", "told": str(error)}
        finally:
            ends = [(one.seat.workload, one.failure()) for one in workers]
            self._workers.rest(workers)
        return _failed(ends) if any(failure for _, failure in ends) else found

    def _observed(self, workers: Sequence[Worker]) -> _Found:
        windows = self._campaign.windows

        def any_failed() -> bool:
            return any(worker.failure() for worker in workers)

        self._workers.wait(any_failed, time.monotonic() + windows.settle_s)
        meter = self._device.meter()
        start_s = now_s = looked_s = time.monotonic()
        while not is_over(windows, start_s, now_s, [worker.events() for worker in workers]):
            if self._workers.wait(any_failed, time.monotonic() + _LOOK_S):
                break
            now_s = time.monotonic()
            if now_s - looked_s >= _READ_S:
                meter.look()
                looked_s = now_s
        conditions, memory_mib = meter.read()
        found: _Found = {**conditions.to_data(), "window_s": now_s - start_s}
        paces = []
        for worker in workers:
            run = worker.submission.run.id if worker.submission is not None else ""
            held_mib, sms = memory_mib.get(run, worker.memory_mib), (worker.ready or {}).get("sms")
            paces.append(pace(worker.events(), start_s, now_s, held_mib, sms))
            if paces[-1] is None:
                told = f"{worker.seat.workload}: did fewer than {LEAST} chunks in the window"
                return {**found, "status": "failed", "told": told}
        return {**found, "status": "ok", "paces": tuple(paces)}


def _result(experiment: Experiment, found: _Found, residents: int = 0) -> Result:
    seats = experiment.seats
    return Result(
        key=experiment.key,
        stage=experiment.stage,
        repeat=experiment.repeat,
        mode=seats[0].mode,
        workloads=tuple(seat.workload for seat in seats),
        shares=tuple(seat.share for seat in seats),
        first=tuple(seat.first for seat in seats),
        residents=max(len(seats), residents),
        date=today(),
        **found,
    )


def _failed(taken: Iterable[tuple[str, object]]) -> _Found:
    """Return what failures come to: too little memory is a finding, whatever else fails with it."""
    failures = [(name, one) for name, one in taken if isinstance(one, Failure)]
    short = [(name, one) for name, one in failures if one.why == "out-of-memory"]
    name, worst = (short or failures)[0]
    told = f"{name}: {worst.told or worst.why}"
    return {"status": "out-of-memory" if short else "failed", "told": told}
