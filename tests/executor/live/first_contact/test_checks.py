"""Every check, end to end, on stand-ins: that it runs, tells what it saw, and clears up."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from dovetail.executor.live.first_contact.bench import CouldNotTryError
from dovetail.executor.live.first_contact.proving import CHECKS, run

BY_ID = {checking.id: checking for checking in CHECKS}

AS_TAKEN = (
    "programs",
    "commands",
    "clients",
    "attribute",
    pytest.param("shares", marks=pytest.mark.long),
    "memory-limit",
    "context-cost",
    "cap",
    "terminate",
    pytest.param("fault-alone", marks=pytest.mark.long),
    "fault-partner",
    pytest.param("trap-partner", marks=pytest.mark.long),
    pytest.param("ladder-leave", marks=pytest.mark.long),
    "ladder-stay",
    pytest.param("ladder-stopped", marks=pytest.mark.long),
    pytest.param("ladder-deaf", marks=pytest.mark.long),
    "ladder-gone",
    pytest.param("kill-client", marks=pytest.mark.long),
    pytest.param("kill-daemon", marks=pytest.mark.long),
)


@pytest.mark.parametrize("name", AS_TAKEN)
def test_on_stand_ins_it_is_as_taken(name, make_bench):
    check = run(BY_ID[name], make_bench())
    assert check.verdict == "as taken for granted", check.seen


TOLD = {
    # The stand-in's servers do nothing, so that killing one harms nobody; its daemon knows no
    # settings of servers; clients do not share a rate; made-up NVML lists no client.
    "settings": ("otherwise", "after 30 % and 4 GiB, with 50 % of its own: 66 SMs"),
    "nvml-lists": ("otherwise", "the busy client has no figure"),
    "gpm": ("otherwise", "6 of 209 ids answer; 0.15 s apart 6 of the 12 used do"),
    "kill-server": ("otherwise", "its kernels go on; the server is gone"),
    "expandable": ("could not be tried", "no Python with PyTorch was named"),
    "allocator": ("could not be tried", "no Python with PyTorch was named"),
    "energy": ("could not be tried", "the energy counter moved 0 times"),
}


@pytest.mark.parametrize("name", TOLD)
def test_what_differs_is_told(name, make_bench):
    verdict, words = TOLD[name]
    check = run(BY_ID[name], make_bench())
    assert (check.verdict, words in check.seen) == (verdict, True), check.seen


@pytest.mark.long
@pytest.mark.parametrize("name", ["listing", "look", "priority", "turns", "second-user", "dcgm"])
def test_the_others_come_to_an_end(name, make_bench):
    assert run(BY_ID[name], make_bench()).seen


def test_a_percentage_that_is_not_kept_is_otherwise(make_bench, monkeypatch):
    bench = make_bench()
    monkeypatch.setattr(bench, "gpu", bench.gpu._replace(sms=160))
    check = run(BY_ID["shares"], bench)
    assert check.verdict == "otherwise"
    assert "132 of 160 at 100 %" in check.seen


class TestTrouble:
    """Whatever happens to a check, its clients and daemons are gone."""

    def test_a_check_ends_at_its_limit(self, make_bench):
        check = run(BY_ID["priority"]._replace(limit_s=1.5), make_bench())
        assert (check.verdict, check.seen) == ("could not be tried", "it took longer than 2 s")
        assert check.commands

    def test_a_client_that_is_being_started_at_the_limit_is_ended(self, make_bench, monkeypatch):
        class AtTheLimit(subprocess.Popen):
            def __init__(self, *args, **options):
                super().__init__(*args, **options)
                signal.raise_signal(signal.SIGALRM)

        def started(bench):
            daemon = bench.daemon()
            with monkeypatch.context() as patched:
                patched.setattr(subprocess, "Popen", AtTheLimit)
                daemon.client("busy")

        check = run(BY_ID["cap"]._replace(run=started), make_bench())
        assert check.seen.startswith("it took longer than")

    def test_ctrl_c_leaves_nothing(self, make_bench):
        def interrupted(bench):
            bench.daemon().client("busy").ready()
            signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            run(BY_ID["cap"]._replace(run=interrupted), make_bench())

    def test_a_client_that_obeys_nobody_is_killed(self, make_bench):
        def stubborn(bench):
            daemon = bench.daemon()
            words = [sys.executable, "-c", "import time; time.sleep(60)"]
            bench.start("stubborn", ["x"], daemon.environment(), program=words)
            raise CouldNotTryError("never mind")

        assert run(BY_ID["cap"]._replace(run=stubborn), make_bench()).seen == "never mind"

    def test_a_client_in_trouble_is_told(self, make_bench):
        def too_late(bench):
            daemon = bench.daemon()
            daemon.client("idle").ready()
            daemon.say("standin fault")
            daemon.client("idle").ready()

        check = run(BY_ID["cap"]._replace(run=too_late), make_bench())
        assert check.verdict == "could not be tried"
        assert check.seen == "client 2: CUDA_ERROR_MPS_SERVER_NOT_READY (807) of cuInit"

    def test_what_nobody_thought_of_does_not_take_the_others_with_it(self, make_bench):
        def odd(bench):
            bench.daemon()
            return {}["sms"]

        check = run(BY_ID["cap"]._replace(run=odd), make_bench())
        assert (check.verdict, check.seen) == ("could not be tried", "KeyError: 'sms'")
        assert any("in odd" in line.text for line in check.lines)
