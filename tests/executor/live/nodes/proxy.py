"""A link that can be cut or slowed: a TCP proxy in the test's own process."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


class Proxy:
    """Passes connections on to a port.

    ``cut``: what is sent goes nowhere, and no connection is closed. ``delay_s``: everything
    comes so much later.
    """

    def __init__(self, to: tuple[str, int]) -> None:
        self._to = to
        self.cut = False
        self.delay_s = 0.0
        self._closed = False
        self._sockets: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._closed = True
        for each in [self._server, *self._sockets]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._server.accept()
                far = socket.create_connection(self._to)
            except OSError:
                continue
            self._sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                time.sleep(self.delay_s)
                if not self.cut:
                    sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
