"""Requests to one agent over connections that stay open."""

from __future__ import annotations

import http.client
import json
import select
from typing import Final, NamedTuple
from urllib.parse import urlencode

from dovetail.executor.live.clock import boot_s
from dovetail.executor.live.nodes.finding import NodeAddress
from dovetail.executor.live.nodes.log_parts import LogPiece
from dovetail.executor.live.nodes.messages import Answer, Exchange, read_message
from dovetail.instances.errors import DovetailError, InputError

ANSWER_S: Final = 3.0
"""Seconds that an agent has to answer, besides those that it was asked to wait."""

FRESH_S: Final = 30.0
"""Seconds that a connection may have been idle to be used again: agents end it after a minute."""

_MOST_LOG_HEAD: Final = 10_000


class NoAnswerError(DovetailError):
    """An agent has not answered, or what it answered is no answer."""


class FencedOutError(DovetailError):
    """An agent has another controller."""


class Call:
    """A request whose answer is awaited."""

    def __init__(self, connection: http.client.HTTPConnection, asked: Exchange) -> None:
        self.connection, self.asked = connection, asked
        self.sent_s = boot_s()
        self.due_s = self.sent_s + asked.wait_s + ANSWER_S

    def answer(self) -> Answer:
        """Read the answer.

        Raises
        ------
        NoAnswerError, FencedOutError
            One line.
        OSError, http.client.HTTPException
            When the connection breaks.
        """
        response = self.connection.getresponse()
        body = response.read()
        if response.status == http.client.CONFLICT:
            raise FencedOutError(_error_in(body))
        if response.status != http.client.OK:
            raise NoAnswerError(_error_in(body))
        try:
            return read_message(Answer, body)
        except InputError as error:
            raise NoAnswerError(f"its answer cannot be understood: {error}") from None


class Channel:
    """Connections to one agent, and the requests that are on their way.

    A second request may be made while a first one waits for news: the agent answers both then.

    Parameters
    ----------
    where : NodeAddress
        Of the agent.
    """

    def __init__(self, where: NodeAddress) -> None:
        self.where = where
        self.calls: list[Call] = []
        self._idle: list[tuple[http.client.HTTPConnection, float]] = []

    def ask(self, asked: Exchange) -> None:
        """Send a request."""
        connection = self._fresh() or self._connected()
        body = asked.model_dump_json().encode()
        try:
            connection.request("POST", "/exchange", body, _headers(self.where))
        except BaseException:
            connection.close()
            raise
        self.calls.append(Call(connection, asked))

    def ready(self, bell: int) -> list[Call]:
        """Wait until an answer has come or a descriptor can be read; return the calls answered.

        Raises
        ------
        NoAnswerError
            When a call is overdue.
        """
        poll = select.poll()
        poll.register(bell, select.POLLIN)
        for call in self.calls:
            poll.register(call.connection.sock, select.POLLIN)
        wait_s = min(call.due_s for call in self.calls) - boot_s()
        found = {number for number, _ in poll.poll(max(0.0, wait_s) * 1000)}
        ready = [call for call in self.calls if call.connection.sock.fileno() in found]
        if not ready and any(call.due_s <= boot_s() for call in self.calls):
            raise NoAnswerError(f"it has not answered within {ANSWER_S:g} s")
        return ready

    def take(self, call: Call) -> Answer:
        """Return the answer of a call, and keep its connection for the next."""
        self.calls.remove(call)
        try:
            found = call.answer()
        except BaseException:
            call.connection.close()
            raise
        self._idle.append((call.connection, boot_s()))
        return found

    def close(self) -> None:
        """Break off all connections."""
        for connection in [
            *(one for one, _ in self._idle),
            *(call.connection for call in self.calls),
        ]:
            connection.close()
        self._idle, self.calls = [], []

    def _fresh(self) -> http.client.HTTPConnection | None:
        while self._idle:
            connection, since_s = self._idle.pop()
            if boot_s() < since_s + FRESH_S:
                return connection
            connection.close()
        return None

    def _connected(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.where.address, self.where.port, timeout=ANSWER_S)


class LogPlace(NamedTuple):
    """What is asked for of a log."""

    run: str
    rank: int
    part: str
    offset: int


def fetch_log(where: NodeAddress, place: LogPlace) -> LogPiece | None:
    """Return a piece of a log; None where there is none yet.

    Raises
    ------
    OSError
        When the agent does not answer.
    """
    connection = http.client.HTTPConnection(where.address, where.port, timeout=ANSWER_S)
    try:
        connection.request("GET", f"/log?{urlencode(place._asdict())}", headers=_headers(where))
        response = connection.getresponse()
        if response.status != http.client.OK:
            return None
        head = json.loads(response.readline(_MOST_LOG_HEAD))
        return LogPiece(str(head["part"]), response.read(), str(head["following"]))
    except (http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise OSError(str(error)) from None
    finally:
        connection.close()


def _headers(where: NodeAddress) -> dict[str, str]:
    return {"Authorization": f"Bearer {where.token}", "Content-Type": "application/json"}


def _error_in(body: bytes) -> str:
    try:
        return " ".join(str(json.loads(body)["error"]).split())
    except (ValueError, KeyError, TypeError):
        return "it answered something else than an agent does"
