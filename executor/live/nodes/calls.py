"""Calls to agents, whatever carries them: a method and a JSON text, and a JSON text that answers.

Over pipes a call is one JSON line (``id``, ``node``, ``method``, ``body``), and so is its answer:
``id`` and ``body``, or why there is none: ``fenced`` where another controller has the node, else
``error``. Answers come in any order.
"""

from __future__ import annotations

import base64
import itertools
import json
import queue
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import IO, Annotated, Final

from pydantic import Field, StrictInt

from dovetail.executor.live.nodes.agent import Agent
from dovetail.executor.live.nodes.fence import FencedError
from dovetail.executor.live.nodes.log_parts import LogPiece
from dovetail.executor.live.nodes.messages import Exchange, read_message
from dovetail.instances._record import Name, Record
from dovetail.instances.errors import DovetailError

ANSWER_S: Final = 3.0
"""Seconds that an agent has to answer, besides those that it was asked to wait."""


class NoAnswerError(DovetailError):
    """An agent has not answered."""


class FencedOutError(NoAnswerError):
    """An agent has another controller."""


class LogPlace(Record):
    """What is asked for of a log."""

    run: Name
    rank: Annotated[StrictInt, Field(ge=0)]
    part: str
    offset: Annotated[StrictInt, Field(ge=0)]


def answer_of(agent: Agent, method: str, body: str) -> Mapping[str, str]:
    """Return what an agent answers: ``body``, ``fenced`` or ``error``."""
    try:
        if method == "log":
            return {"body": _log(agent, LogPlace.model_validate_json(body))}
        asked = read_message(Exchange, body.encode())
        return {"body": agent.exchange(asked).model_dump_json()}
    except FencedError as error:
        return {"fenced": one_line(error)}
    except Exception as error:  # told to the controller, which shows it
        return {"error": one_line(error)}


def one_line(error: Exception) -> str:
    """Return what an error says, in one line."""
    told = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(told).split())


def _log(agent: Agent, place: LogPlace) -> str:
    piece = agent.log(place.run, place.rank, place.part, place.offset)
    if piece is None:
        return "null"
    data = base64.b64encode(piece.data).decode()
    return json.dumps({"part": piece.part, "data": data, "following": piece.following})


def log_piece(body: str) -> LogPiece | None:
    """Return the piece of a log that an agent has answered with; None where there is none yet.

    Raises
    ------
    OSError
        When it is something else.
    """
    try:
        told = json.loads(body)
        return told and LogPiece(told["part"], base64.b64decode(told["data"]), told["following"])
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(f"it answered something else than an agent does: {error}") from None


def no_answer(why: str) -> Future[str]:
    """Return a call that has failed."""
    failed: Future[str] = Future()
    failed.set_exception(NoAnswerError(why))
    return failed


class Caller:
    """Calls as lines; whoever reads the answers hands them over. Safe from any thread.

    Parameters
    ----------
    out : binary file
        Where lines go; it may be slow without anybody waiting for it.
    """

    def __init__(self, out: IO[bytes]) -> None:
        self._ids = itertools.count(1)
        self._calls: dict[int, Future[str]] = {}
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._ended = ""
        self._writer = threading.Thread(target=self._write, args=(out,), daemon=True)
        self._writer.start()

    def call(self, node: str, method: str, body: str) -> Future[str]:
        """Send a call, and return at once what its answer will be in."""
        if self._ended:
            return no_answer(self._ended)
        number, answer = next(self._ids), Future[str]()
        self._calls[number] = answer
        line = {"id": number, "node": node, "method": method, "body": body}
        self._lines.put(json.dumps(line).encode() + b"\n")
        return answer

    def take_in(self, told: Mapping[str, object]) -> None:
        """Take in an answer."""
        answer = self._calls.pop(told["id"], None) if isinstance(told["id"], int) else None
        if answer is None:
            return
        if "body" in told:
            answer.set_result(str(told["body"]))
        elif "fenced" in told:
            answer.set_exception(FencedOutError(str(told["fenced"])))
        else:
            answer.set_exception(NoAnswerError(str(told.get("error"))))

    def end(self, why: str) -> None:
        """Let no answer be awaited any more; nobody reads the lines by now."""
        self._ended = why
        self._lines.put(None)
        self._writer.join()
        while self._calls:
            with suppress(KeyError):
                self._calls.popitem()[1].set_exception(NoAnswerError(why))

    def _write(self, out: IO[bytes]) -> None:
        with suppress(OSError), out:  # whoever reads the answers sees its end
            while (line := self._lines.get()) is not None:
                out.write(line)
                out.flush()
