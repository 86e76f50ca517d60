"""Calls to agents: a method and a JSON text, and what the agent says to it.

Between the service and the driver of Ray, a process of its own, they go through a pipe, and from
there to the agent's actor. Answers come in any order.
"""

from __future__ import annotations

import itertools
import queue
import threading
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Final, Literal, NamedTuple

from dovetail.executor.nodes.agent import Agent
from dovetail.executor.nodes.fence import FencedError
from dovetail.executor.nodes.log_parts import LogPlace
from dovetail.executor.nodes.messages import Exchange, read_message
from dovetail.instances.errors import DovetailError

ANSWER_S: Final = 3.0
"""Seconds that an agent has to answer, besides those that it was asked to wait."""

Method = Literal["exchange", "log"]


class NoAnswerError(DovetailError):
    """An agent has not answered."""


class FencedOutError(NoAnswerError):
    """An agent has another controller."""


class Call(NamedTuple):
    """A call on its way to the agent of a node."""

    number: int
    node: str
    method: Method
    text: str


class Said(NamedTuple):
    """What an agent says to a call: its answer as JSON, or in one line why there is none."""

    kind: Literal["answer", "fenced", "error"]
    text: str


def said_by(agent: Agent, method: Method, text: str) -> Said:
    """Return what an agent says to a call."""
    try:
        if method == "log":
            answer = agent.log(read_message(LogPlace, text)).model_dump_json()
        else:
            answer = agent.exchange(read_message(Exchange, text)).model_dump_json()
    except FencedError as error:
        return Said("fenced", one_line(error))
    except Exception as error:  # told to the controller, which shows it
        return Said("error", one_line(error))
    return Said("answer", answer)


def one_line(error: Exception) -> str:
    """Return what an error says, in one line."""
    told = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(told).split())


def no_answer(why: str) -> Future[str]:
    """Return a call that has failed."""
    failed: Future[str] = Future()
    failed.set_exception(NoAnswerError(why))
    return failed


class Caller:
    """Calls through a pipe; whoever reads it hands the answers over. Safe from any thread.

    Parameters
    ----------
    pipe : Connection
        Takes a ``Call`` each; it may be slow without anybody waiting for it.
    """

    def __init__(self, pipe: Connection) -> None:
        self._numbers = itertools.count(1)
        self._answers: dict[int, Future[str]] = {}
        self._unsent: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._ended = ""
        self._sender = threading.Thread(target=self._send, args=(pipe,), daemon=True)
        self._sender.start()

    def call(self, node: str, method: Method, text: str) -> Future[str]:
        """Send a call, and return at once what its answer will be in."""
        if self._ended:
            return no_answer(self._ended)
        call, answer = Call(next(self._numbers), node, method, text), Future[str]()
        self._answers[call.number] = answer
        self._unsent.put(call)
        return answer

    def take_in(self, number: int, said: Said) -> None:
        """Take in what was said to a call."""
        answer = self._answers.pop(number, None)
        if answer is None:
            return
        if said.kind == "answer":
            answer.set_result(said.text)
        else:
            error = FencedOutError if said.kind == "fenced" else NoAnswerError
            answer.set_exception(error(said.text))

    def end(self, why: str) -> None:
        """Let no answer be awaited any more; nobody is at the pipe's other end by now."""
        self._ended = why
        self._unsent.put(None)
        self._sender.join()
        while self._answers:
            with suppress(KeyError):
                self._answers.popitem()[1].set_exception(NoAnswerError(why))

    def _send(self, pipe: Connection) -> None:
        with suppress(OSError):  # whoever reads the answers sees its end
            while (call := self._unsent.get()) is not None:
                pipe.send(call)
