"""Commands to a worker, read from a pipe."""

import os
import signal

import pytest

from dovetail.measuring.workloads.commands import Commands

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture
def pipe():
    """Return both ends of a pipe; restore the signal handlers at the end."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    reading, writing = os.pipe()
    yield reading, os.fdopen(writing, "w", buffering=1)
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)
    os.close(reading)


def test_commands_come_in_their_order(pipe):
    commands = Commands(pipe[0])
    print('{"do": "run"}\n{"do": "st', end="", file=pipe[1], flush=True)
    assert commands.next().do == "run"
    assert not commands.end()
    print('op"}\n{"do": "quit"}', file=pipe[1])
    assert commands.end()
    assert commands.end()
    assert commands.next().do == "stop"
    assert commands.next().do == "quit"
    pipe[1].close()


def test_a_run_that_is_not_ended_goes_on_for_the_time_given(pipe):
    commands = Commands(pipe[0])
    assert not commands.end(within_s=0.01)
    assert not commands.end(within_s=-1)
    pipe[1].close()


def test_the_end_of_input_is_quit(pipe):
    commands = Commands(pipe[0])
    pipe[1].close()
    assert commands.end()
    assert commands.next().do == "quit"


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_quit(pipe, number):
    commands = Commands(pipe[0])
    os.kill(os.getpid(), number)
    assert commands.end()
    assert commands.next().do == "quit"
    pipe[1].close()


@pytest.mark.parametrize("line", ['{"do": "jump"}', "run", "[]", "{}", "", '{"do": ["run"]}'])
def test_an_unknown_command_is_reported(pipe, line):
    print(line, file=pipe[1])
    with pytest.raises(ValueError, match=r"^no command: ") as raised:
        Commands(pipe[0]).next()
    assert repr(line) in str(raised.value)
    pipe[1].close()


def test_a_run_while_it_runs_is_reported(pipe):
    commands = Commands(pipe[0])
    print('{"do": "run"}\n{"do": "run"}', file=pipe[1])
    assert commands.next().do == "run"
    with pytest.raises(ValueError, match="run was commanded during a run"):
        commands.end()
    pipe[1].close()
