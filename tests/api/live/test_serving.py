"""``dovetail serve``: sockets, messages and exit of the service process."""

import sys

from dovetail.live.serving import compiling_ahead
from tests.executor.waiting import wait_until


def test_what_keeps_the_engine_from_being_compiled_is_logged(monkeypatch, caplog):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with compiling_ahead(after_s=0.0):
        wait_until(lambda: caplog.messages)
    assert caplog.messages == ["the matching engine is not compiled: status 1"]


def test_a_service_that_ends_soon_compiles_nothing(monkeypatch, caplog):
    monkeypatch.setattr(sys, "executable", "/nowhere")
    with compiling_ahead(after_s=600.0):
        pass
    assert caplog.messages == []
