"""Carry out a campaign: one experiment after the other, each result kept as soon as it is there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol

from dovetail.executor.measuring.campaign import Campaign
from dovetail.executor.measuring.crew import Crew
from dovetail.executor.measuring.devices.device import Device
from dovetail.executor.measuring.experiments import (
    Took,
    experiments,
    remaining,
    seconds_left,
    workers_needed,
)
from dovetail.executor.measuring.ledger import Ledger, standing, today
from dovetail.executor.measuring.records import Conditions, Experiment, Pace, Result
from dovetail.executor.measuring.windows import LEAST, is_over, pace
from dovetail.executor.measuring.worker import Failure, Worker
from dovetail.instances.errors import DovetailError

START_S: Final = 10.0
"""What a start is taken to last before one was seen."""

_LOOK_S: Final = 0.1
_READ_S: Final = 0.5
_SLACK_S: Final = 1.0


class _Observed(NamedTuple):
    """A window, by the monotonic clock, and what was read of the device meanwhile."""

    start_s: float
    end_s: float
    conditions: Conditions
    memory_mib: Mapping[str, float]


class _Found(NamedTuple):
    """What came of an experiment, as `Result` has it."""

    status: Literal["ok", "out-of-memory", "failed", "refused"]
    told: str
    observed: _Observed | None = None
    paces: tuple[Pace, ...] | None = None


class Audience(Protocol):
    """Who is told how a campaign goes."""

    def begins(self, experiment: Experiment, left: int, left_s: float) -> None:
        """An experiment begins; so many are left with it, and take about so long."""

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
    crew : Crew
        On this device.
    until_s : float
        By the monotonic clock: nothing begins that would not be over by then.
    audience : Audience
        Is told of every experiment.
    """

    def __init__(
        self,
        campaign: Campaign,
        ledger: Ledger,
        device: Device,
        crew: Crew,
        until_s: float,
        audience: Audience,
    ) -> None:
        self._campaign, self._ledger = campaign, ledger
        self._device, self._crew = device, crew
        self._until_s, self._audience = until_s, audience
        self._refused: set[str] = set()
        self._took: list[Took] = []
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
            begun_s = time.monotonic()
            if not self._fits(left[0]):
                return left
            self._man(left)
            estimate_s = seconds_left(self._campaign.windows, left, self._took)
            self._audience.begins(left[0], len(left), estimate_s)
            result = self._settled(left[0]) if self._fits(left[0]) else None
            if result is None:
                return left
            if result.status != "refused":
                took_s = time.monotonic() - begun_s
                self._took.append(Took(len(result.workloads), took_s))
        return ()

    # What comes next.

    def _left(self) -> tuple[Experiment, ...]:
        tries = Counter(one.key for one in self._ledger.results)
        left = remaining(self._campaign, self._ledger.settled | self._refused)
        return tuple(sorted(left, key=lambda one: tries[one.key]))

    def _fits(self, experiment: Experiment) -> bool:
        windows = self._campaign.windows
        needs_s = windows.settle_s + windows.most_s + _SLACK_S
        if not self._crew.has(experiment.seats):
            needs_s += self._crew.longest_start_s or START_S
        return time.monotonic() + needs_s <= self._until_s

    def _man(self, left: Sequence[Experiment]) -> None:
        """At the beginning of a stage, start its workers side by side and end what is not needed.

        While an experiment runs nobody may start, as that would disturb it.
        """
        if left[0].stage == self._stage:
            return
        self._stage = left[0].stage
        usable = [one for one in left if self._why_not(one) is None]
        later = [one.stage for one in usable if one.stage > self._stage]
        now = [one for one in usable if one.stage == self._stage]
        then = [one for one in usable if later and one.stage == min(later)]
        self._crew.keep(workers_needed([*now, *then]))
        self._crew.prepare(workers_needed(now[: self._that_fit()]), self._until_s)

    def _that_fit(self) -> int:
        windows = self._campaign.windows
        left_s = self._until_s - time.monotonic() - START_S
        each_s = windows.settle_s + windows.least_s
        most = len(experiments(self._campaign))
        return max(1, min(most, int(min(left_s / each_s, most))))

    def _why_not(self, experiment: Experiment) -> str | None:
        for seat in experiment.seats:
            if (why := self._device.why_not(seat)) is not None:
                return f"{seat.workload}: {why}"
        return None

    # One experiment.

    def _settled(self, experiment: Experiment) -> Result | None:
        """Measure, keep the result, and bring the device back if need be; None: time is up."""
        if (why := self._why_not(experiment)) is not None:
            return self._refuse(experiment, why)
        result = self._tried(experiment)
        if result is not None and _lacked_room(result):
            # Others had held memory that this pair could have had.
            self._crew.clear()
            result = self._tried(experiment)
        if result is None:
            return None
        trouble = self._device.trouble()
        if trouble:
            result = result.replace(status="failed", told=trouble, paces=None)
        self._keep(result)
        if trouble:
            self._crew.clear()
            self._device.recover()
            self._stage = -1
        return result

    def _refuse(self, experiment: Experiment, why: str) -> Result:
        self._refused.add(experiment.key)
        result = self._result(experiment, _Found("refused", why))
        known = standing(self._ledger.results).get(experiment.key)
        if known is None or (known.status, known.told) != ("refused", why):
            self._keep(result)
        return result

    def _keep(self, result: Result) -> None:
        self._ledger.append(result)
        self._audience.ends(result)

    def _tried(self, experiment: Experiment) -> Result | None:
        try:
            taken = self._crew.take(experiment.seats, self._until_s)
        except TimeoutError:
            return None
        workers = [one for one in taken if isinstance(one, Worker)]
        if len(workers) < len(taken):
            failures = [(s.workload, one) for s, one in zip(experiment.seats, taken, strict=True)]
            return self._result(experiment, _failed(failures), taken)
        residents = len(self._crew.pids)
        if (lack := self._unconfirmed(workers)) is not None:
            self._crew.dismiss(workers)
            return self._result(experiment, _Found("failed", lack), taken)
        if not self._fits(experiment):
            return None
        return self._result(experiment, self._window(workers), taken, residents)

    def _unconfirmed(self, workers: Sequence[Worker]) -> str | None:
        for worker in workers:
            if (lack := self._device.unconfirmed(worker)) is not None:
                return f"{worker.seat.workload}: {lack}"
        return None

    def _window(self, workers: Sequence[Worker]) -> _Found:
        """Let workers run, and measure once they have settled."""
        for worker in workers:
            worker.run()
        try:
            found = self._observed(workers)
        except DovetailError as error:
            return _Found("failed", str(error))
        finally:
            failures = [(one.seat.workload, one.failure()) for one in workers]
            self._crew.rest(workers)
        if any(failure for _, failure in failures):
            return _failed(failures)
        return self._judged(found, workers)

    def _observed(self, workers: Sequence[Worker]) -> _Observed:
        windows = self._campaign.windows

        def any_failed() -> bool:
            return any(worker.failure() for worker in workers)

        self._crew.wait(any_failed, time.monotonic() + windows.settle_s)
        meter = self._device.meter()
        start_s = now_s = looked_s = time.monotonic()
        while not is_over(windows, start_s, now_s, [worker.events() for worker in workers]):
            if self._crew.wait(any_failed, time.monotonic() + _LOOK_S):
                break
            now_s = time.monotonic()
            if now_s - looked_s >= _READ_S:
                meter.look()
                looked_s = now_s
        return _Observed(start_s, now_s, *meter.read())

    def _judged(self, observed: _Observed, workers: Sequence[Worker]) -> _Found:
        paces = []
        for worker in workers:
            found = pace(
                worker.events(),
                observed.start_s,
                observed.end_s,
                observed.memory_mib.get(worker.run_id, worker.memory_mib),
                (worker.ready or {}).get("sms"),
            )
            if found is None:
                told = f"{worker.seat.workload}: did fewer than {LEAST} chunks in the window"
                return _Found("failed", told, observed)
            paces.append(found)
        return _Found("ok", "", observed, tuple(paces))

    def _result(
        self,
        experiment: Experiment,
        found: _Found,
        taken: Sequence[Worker | Failure] = (),
        residents: int = 0,
    ) -> Result:
        seats = experiment.seats
        told = [one.ready if isinstance(one, Worker) else None for one in taken]
        measured: dict[str, object] = {}
        if found.observed is not None:
            measured = found.observed.conditions.to_data()
            measured["window_s"] = found.observed.end_s - found.observed.start_s
        return Result(
            key=experiment.key,
            stage=experiment.stage,
            repeat=experiment.repeat,
            mode=seats[0].mode,
            workloads=tuple(seat.workload for seat in seats),
            shares=tuple(seat.share for seat in seats),
            first=tuple(seat.first for seat in seats),
            families=tuple(one and one.get("family") for one in told) or None,
            batch_sizes=tuple(one and one.get("batch_size") for one in told) or None,
            status=found.status,
            told=found.told,
            paces=found.paces,
            residents=max(len(seats), residents),
            date=today(),
            **measured,
        )


def _failed(taken: Iterable[tuple[str, object]]) -> _Found:
    """Return what failures come to: too little memory is a finding, whatever else fails with it."""
    failures = [(name, one) for name, one in taken if isinstance(one, Failure)]
    short = [(name, one) for name, one in failures if one.why == "out-of-memory"]
    name, worst = (short or failures)[0]
    told = f"{name}: {worst.told or worst.why}"
    return _Found("out-of-memory" if short else "failed", told)


def _lacked_room(result: Result) -> bool:
    return result.status == "out-of-memory" and result.residents > len(result.workloads)
