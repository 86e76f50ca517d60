"""Failures that may hit a test of the acceptance suite, for ``test_acceptance.py``."""

import signal
import subprocess
import sys

import pytest

# So that the limit is 1.5 s.
IMPATIENT = pytest.mark.check("nothing", usual_s=-11.7)
PATIENT = pytest.mark.check("nothing", usual_s=0)


@IMPATIENT
def test_too_long(daemon):
    """A test waits for a client that stays silent."""
    daemon.client("busy").wait("never")


@PATIENT
def test_limit_while_starting(bench, daemon, monkeypatch):
    """The time is over when a client has just been started."""

    class AtTheLimit(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            signal.raise_signal(signal.SIGALRM)

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", AtTheLimit)
        daemon.client("busy")


@PATIENT
def test_stubborn(bench, daemon):
    """A client ignores every signal."""
    words = [sys.executable, "-c", "import time; time.sleep(60)"]
    bench.start("stubborn", ["x"], daemon.environment(), program=words)
    pytest.skip("never mind")


@PATIENT
def test_refused(daemon):
    """A client receives an error."""
    daemon.client("idle").ready()
    daemon.say("standin fault")
    daemon.client("idle").ready()


@PATIENT
def test_odd(bench, daemon):
    """A test raises an unexpected exception."""
    return {}["sms"]


@PATIENT
def test_otherwise(bench):
    """The whole GPU is not seen."""
    bench.saw(share=0.25)
    assert bench.values["share"] == 1


@PATIENT
def test_interrupted(daemon):
    """Ctrl-C is pressed."""
    daemon.client("busy").ready()
    signal.raise_signal(signal.SIGINT)
