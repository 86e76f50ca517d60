"""Calls to agents that serve HTTP, each in a thread."""

from __future__ import annotations

import http.client
import json
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from dovetail.executor.live.nodes.calls import ANSWER_S, FencedOutError, NoAnswerError, one_line
from dovetail.executor.live.nodes.messages import MOST_WAIT_S

_MOST_THREADS: Final = 256


class NodeAddress(NamedTuple):
    """Where the agent of a node answers, what it wants to hear, and what is said of the node."""

    address: str
    port: int
    token: str
    rack: str | None = None
    leaving: str = ""


class HttpCalls:
    """Carries calls to agents that serve HTTP."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_MOST_THREADS, "asks an agent")

    def call(self, where: NodeAddress, method: str, body: str) -> Future[str]:
        """Have the agent at an address answer a call."""
        return self._threads.submit(_asked, where, method, body)

    def close(self) -> None:
        """Take no more calls."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _asked(where: NodeAddress, method: str, body: str) -> str:
    patience_s = ANSWER_S + MOST_WAIT_S
    connection = http.client.HTTPConnection(where.address, where.port, timeout=patience_s)
    headers = {"Authorization": f"Bearer {where.token}", "Content-Type": "application/json"}
    try:
        connection.request("POST", f"/{method}", body.encode(), headers)
        response = connection.getresponse()
        told = response.read().decode()
        if response.status == http.client.OK:
            return told
        why = str(json.loads(told)["error"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise NoAnswerError(one_line(error)) from None
    finally:
        connection.close()
    if response.status == http.client.CONFLICT:
        raise FencedOutError(why)
    raise NoAnswerError(why)
