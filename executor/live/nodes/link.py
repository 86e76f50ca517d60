"""The calls of a controller to one node: one waits for news, and orders need not wait for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from dovetail.executor.live.clock import boot_s
from dovetail.executor.live.nodes.calls import ANSWER_S
from dovetail.executor.live.nodes.messages import Exchange

_PAUSE_S: Final = 0.2
_MOST_PAUSE_S: Final = 2.0


@dataclass(eq=False)
class Call:
    """A request whose answer is awaited until it is due."""

    sent_s: float
    due_s: float


class Link:
    """Which calls to a node are on their way; no thread and no lock of its own.

    Parameters
    ----------
    ask : callable
        Sends a request and returns at once what its answer will be in.
    took : callable
        Called with a call and its answer, from any thread.
    """

    def __init__(
        self,
        ask: Callable[[Exchange], Future[str]],
        took: Callable[[Call, Future[str]], None],
    ) -> None:
        self._ask, self._took = ask, took
        self._calls: list[Call] = []
        self._pause_s, self._paused_s = _PAUSE_S, 0.0

    def free(self, urgent: bool) -> bool:
        """Tell whether a request may be sent; a second one only where it is urgent."""
        return boot_s() >= self._paused_s and len(self._calls) < (2 if urgent else 1)

    def send(self, asked: Exchange) -> None:
        """Send a request."""
        sent_s = boot_s()
        call = Call(sent_s, sent_s + asked.wait_s + ANSWER_S)
        self._calls.append(call)
        self._ask(asked).add_done_callback(lambda answer: self._took(call, answer))

    def hold(self, call: Call) -> bool:
        """Take in that the answer has come, and return whether it is to be listened to.

        What was given up is not; nor is anything while an earlier answer is being judged.
        """
        if call not in self._calls or any(math.isinf(one.due_s) for one in self._calls):
            self.drop(call)
            return False
        call.due_s = math.inf
        return True

    def drop(self, call: Call) -> None:
        """Take in that a call is over."""
        self._calls = [one for one in self._calls if one is not call]

    def heard(self) -> None:
        """Take in that the node answers."""
        self._pause_s, self._paused_s = _PAUSE_S, 0.0

    def broken_off(self) -> None:
        """Take in that it does not: whatever is on its way is given up, and a pause is made."""
        self._calls = []
        self._paused_s = boot_s() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _MOST_PAUSE_S)

    def overdue(self) -> bool:
        """Tell whether a call should have been answered by now."""
        return any(call.due_s <= boot_s() for call in self._calls)
