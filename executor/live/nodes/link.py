"""The thread of a controller that talks to one node."""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import select
import threading
from typing import Final, Protocol

from dovetail.executor.live.clock import boot_s
from dovetail.executor.live.nodes.channel import Channel, FencedOutError, NoAnswerError
from dovetail.executor.live.nodes.finding import NodeAddress
from dovetail.executor.live.nodes.messages import Answer, Exchange
from dovetail.instances.errors import DovetailError

_PAUSE_S: Final = 0.2
_MOST_PAUSE_S: Final = 2.0
_LEAVE_S: Final = 1.0

_log = logging.getLogger(__name__)


class Desk(Protocol):
    """Whose link it is; called from the link's thread."""

    def where(self, node: str) -> NodeAddress | None:
        """Return where the node's agent is; None: nobody knows."""
        ...

    def next_request(self, node: str) -> Exchange:
        """Return what is to be asked next."""
        ...

    def has_urgent(self, node: str) -> bool:
        """Tell whether there are orders that have not been sent."""
        ...

    def answered(self, node: str, answer: Answer, sent_s: float, received_s: float) -> None:
        """Take in an answer and when, on this machine's clock, request and answer went by."""
        ...

    def missed(self, node: str, reason: str, since_s: float, fenced: bool) -> None:
        """Take in that nothing asked since then is answered, or (``fenced``) another controller."""
        ...


class Link:
    """Talks to one node until it is closed.

    Parameters
    ----------
    node : str
        The node's id.
    desk : Desk
        Whose link it is.
    """

    def __init__(self, node: str, desk: Desk) -> None:
        self._node, self._desk = node, desk
        self._closed = False
        self._ringing = threading.Lock()
        self._asked_s, self._heard = 0.0, 0
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name=f"link to {node}", daemon=True)

    def start(self) -> None:
        """Begin to talk."""
        self._thread.start()

    def ring(self) -> None:
        """Say, from any thread, that there is something to ask."""
        # What is closed may be another's descriptor by now.
        with self._ringing:
            if not self._closed:
                os.eventfd_write(self._bell, 1)

    def begin_close(self) -> None:
        """End the talk soon."""
        with self._ringing:
            if not self._closed:
                self._closed = True
                os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """End the talk; a thread that waits for a connection is left behind."""
        self.begin_close()
        self._thread.join(_LEAVE_S)
        if not self._thread.is_alive():
            os.close(self._bell)

    def _run(self) -> None:
        pause_s = _PAUSE_S
        while not self._closed:
            self._asked_s = boot_s()
            heard = self._heard
            try:
                self._try_to_talk()
            except Exception:  # a link that dies would leave its node lost for ever
                if not self._closed:
                    _log.exception("the link to %s failed", self._node)
            pause_s = _PAUSE_S if self._heard > heard else min(2 * pause_s, _MOST_PAUSE_S)
            self._pause(pause_s)

    def _try_to_talk(self) -> None:
        try:
            self._talk()
        except FencedOutError as error:
            self._miss(str(error), fenced=True)
        except (OSError, http.client.HTTPException, DovetailError) as error:
            self._miss(_told(error))
        except Exception as error:
            self._miss(f"the link failed: {error}")
            raise

    def _talk(self) -> None:
        where = self._desk.where(self._node)
        if where is None:
            raise NoAnswerError("nobody knows where its agent is")
        with contextlib.closing(Channel(where)) as channel:
            while not self._closed and self._desk.where(self._node) == where:
                if not channel.calls or (
                    len(channel.calls) == 1 and self._desk.has_urgent(self._node)
                ):
                    self._asked_s = boot_s()
                    channel.ask(self._desk.next_request(self._node))
                for call in channel.ready(self._bell):
                    answer = channel.take(call)
                    self._heard += 1
                    self._desk.answered(self._node, answer, call.sent_s, boot_s())
                self._unring()

    def _miss(self, reason: str, fenced: bool = False) -> None:
        if not self._closed:
            self._desk.missed(self._node, reason, self._asked_s, fenced)

    def _pause(self, pause_s: float) -> None:
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        if not self._closed:
            poll.poll(pause_s * 1000)
            self._unring()

    def _unring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)


def _told(error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(reason).split())
