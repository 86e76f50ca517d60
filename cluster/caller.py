"""Calls to agents through a pipe to another process, which forwards them."""

from __future__ import annotations

import itertools
import queue
import threading
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection

from dovetail.cluster.messages import AgentCallError, FencedError, Kind, Method

Call = tuple[int, str, Method, str]
"""The number of a call, its node, and the arguments of ``Agent.call``."""


def no_answer(why: str) -> Future[str]:
    """Return the future of a call that has failed."""
    failed: Future[str] = Future()
    failed.set_exception(AgentCallError(why))
    return failed


class Caller:
    """Sends calls through a pipe, and matches answers to them; safe from any thread.

    Parameters
    ----------
    pipe : Connection
        Carries the calls. Its reader may hang, so a thread writes to it and callers never block.
    """

    def __init__(self, pipe: Connection) -> None:
        self._numbers = itertools.count(1)
        self._answers: dict[int, Future[str]] = {}
        self._unsent: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._ended = ""
        self._sender = threading.Thread(target=self._send, args=(pipe,), daemon=True)
        self._sender.start()

    def call(self, node: str, method: Method, text: str) -> Future[str]:
        """Send a call, and return the future of its answer without waiting."""
        if self._ended:
            return no_answer(self._ended)
        number, answer = next(self._numbers), Future[str]()
        self._answers[number] = answer
        self._unsent.put((number, node, method, text))
        return answer

    def take_in(self, number: int, kind: Kind, text: str) -> None:
        """Complete a call with its answer, as returned by ``Agent.call``."""
        answer = self._answers.pop(number, None)
        if answer is None:
            return
        if kind == "answer":
            answer.set_result(text)
        else:
            answer.set_exception((FencedError if kind == "fenced" else AgentCallError)(text))

    def end(self, why: str) -> None:
        """Fail every open call, once the other end of the pipe is closed."""
        self._ended = why
        self._unsent.put(None)
        self._sender.join()
        while self._answers:
            with suppress(KeyError):
                self._answers.popitem()[1].set_exception(AgentCallError(why))

    def _send(self, pipe: Connection) -> None:
        with suppress(OSError):  # the reader of the answers notices the end
            while (call := self._unsent.get()) is not None:
                pipe.send(call)
