"""TGS: a best-effort client at a limited rate."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import numpy as np

from .clients import Passes, Requests
from .device import Device


class LimitedPasses(Passes):
    """A best-effort client whose launches are limited to a number of blocks each 50 ms."""

    limit: float = math.inf
    launched: int = 0
    _waits: bool = False

    def next(self) -> None:
        """Begin the next kernel if the limit of this window allows it."""
        if self.launched > self.limit:
            self._waits = True
            return
        self.launched += self.kinds[self._place].blocks
        super().next()

    def begin_window(self) -> None:
        """Forget what was launched."""
        self.launched = 0
        if self._waits:
            self._waits = False
            self.next()


class RateControl:
    """The rate control of TGS: AIMD after a slow start, with the constants of its code.

    TGS (NSDI 2023, "adaptive rate control"; github.com/pkusys/TGS, ``low_priority_hijack_call.c``)
    compares the rate at which the production job launches blocks with the rate that it had alone,
    and limits the blocks that the other may launch each 50 ms: 1.5 times as many while the rates
    differ by at most 3 %, then a little more or 8 % less, and a tenth where they differ by 9 %. It
    was made for trainings. Requests have no constant rate; so that it is not misled by that, the
    rate alone is computed here from the very arrivals. Rates are those of the last 5 s, as in its
    code, but are compared more often, as the runs here are short; the limit begins with what the
    client launches alone.
    """

    _WINDOW_S: Final = 0.05
    _RATE_S: Final = 5.0
    _THRESHOLD: Final = 0.03
    _LEAST: Final = 1000.0

    def __init__(
        self, gpu: Device, requests: Requests, limited: list[LimitedPasses], period_s: float
    ) -> None:
        self._gpu, self._requests, self._limited, self._period_s = gpu, requests, limited, period_s
        each_s = sum(kind.alone_s(gpu.sms) + gpu.costs.gap_s for kind in requests.kinds)
        starts, free_s = [], 0.0
        for arrival_s in requests.arrivals_s:
            starts.append(max(arrival_s, free_s))
            free_s = starts[-1] + each_s + gpu.costs.turnover_s
        self._starts, self._each_s = np.array(starts), each_s
        self._slow_start, self._sign = True, -1
        windows = math.ceil(self._RATE_S / period_s)
        self._counts = deque([(0.0, 0.0)], maxlen=windows)
        for one in limited:
            alone_s = sum(kind.alone_s(gpu.sms) + gpu.costs.gap_s for kind in one.kinds)
            one.limit = self._WINDOW_S / alone_s * sum(kind.blocks for kind in one.kinds)
        gpu.at(self._WINDOW_S, self._begin_window)
        gpu.at(period_s, self._compare)

    def _begin_window(self) -> None:
        for one in self._limited:
            one.begin_window()
        self._gpu.at(self._gpu.now_s + self._WINDOW_S, self._begin_window)

    def _compare(self) -> None:
        now_s, kernels = self._gpu.now_s, len(self._requests.kinds)
        parts = np.clip((now_s - self._starts) / self._each_s, 0, 1)
        expected = float(parts.sum()) * kernels
        ended, expected_then = self._counts[0]
        self._counts.append((self._requests.kernels, expected))
        alone = max(1.0, expected - expected_then)
        apart = abs(self._requests.kernels - ended - alone) / alone
        blocks = sum(kind.blocks for kind in self._requests.kinds) / kernels * alone
        for one in self._limited:
            one.limit = self._limit(one.limit, apart, blocks)
        self._slow_start, self._sign = self._state(apart)
        self._gpu.at(now_s + self._period_s, self._compare)

    def _limit(self, limit: float, apart: float, blocks: float) -> float:
        if self._slow_start:
            return limit * 1.5 + 1 if apart <= self._THRESHOLD else limit / 1.5
        if apart <= self._THRESHOLD:
            limit += max(0.00025 * blocks, self._LEAST)
        else:
            limit -= max(0.08 * limit, self._LEAST)
        return max(0.0, limit / 10 if apart >= 3 * self._THRESHOLD else limit)

    def _state(self, apart: float) -> tuple[bool, int]:
        if self._slow_start:
            return apart <= self._THRESHOLD, -1
        return apart >= 3 * self._THRESHOLD, 1 if apart <= self._THRESHOLD else -1
