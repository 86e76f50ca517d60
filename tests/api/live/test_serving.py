"""``dovetail serve``: sockets, messages and exit of the service process."""

import signal
import sys
import threading

from dovetail.live.serving import compiling_ahead, ended_by_signals
from tests.executor.waiting import wait_until


def test_what_keeps_the_engine_from_being_compiled_is_logged(monkeypatch, caplog):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with compiling_ahead(after_s=0.0):
        wait_until(lambda: caplog.messages)
    assert caplog.messages == ["the matching engine is not compiled: status 1"]


def test_the_engine_is_compiled_at_the_lowest_priority(monkeypatch, caplog, tmp_path):
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\nuntil [ $(nice) = 19 ]; do sleep 0.1; done\necho at $(nice) >&2; exit 1\n"
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with compiling_ahead(after_s=0.0):
        wait_until(lambda: caplog.messages)
    assert caplog.messages == ["the matching engine is not compiled: at 19"]


def test_a_service_that_ends_soon_compiles_nothing(monkeypatch, caplog):
    monkeypatch.setattr(sys, "executable", "/nowhere")
    with compiling_ahead(after_s=600.0):
        pass
    assert caplog.messages == []


def test_a_signal_that_another_thread_takes_ends_the_service_at_once():
    # Python runs no handler while the main thread sleeps, unless that thread takes the signal.
    stopped, before = threading.Event(), signal.getsignal(signal.SIGTERM)

    def take():
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    with ended_by_signals(stopped.set):
        threading.Timer(0.2, take).start()
        assert stopped.wait(60)
    assert signal.getsignal(signal.SIGTERM) == before
