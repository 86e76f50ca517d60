"""One contract for the real control program and for the stand-ins.

The real one runs without a GPU, up to the point where a server would have to start.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dovetail.executor.mps import processes
from dovetail.executor.mps.control import (
    BusyDaemonError,
    Control,
    HealthState,
    MpsError,
    NoDaemonError,
    NoServerError,
    UnknownCommandError,
)
from dovetail.executor.mps.manager import LONGEST_DIRECTORY
from dovetail.executor.mps.processes import PIPE_DIRECTORY

from ..waiting import wait_until
from . import from_proof, record

TRANSCRIPTS = Path(__file__).with_name("transcripts")
RECORDED = json.loads((TRANSCRIPTS / "535.309.01-no-gpu.json").read_text())
SPOKEN_BY_STANDIN = (
    "-d",
    "get_server_",
    "get_client_list",
    "terminate",
    "shutdown",
    "quit",
    "help",
)

MEASURED = json.loads((TRANSCRIPTS / "580.159.04-h200.json").read_text())
"""What was said on an H200, by the check of the acceptance suite that asked."""

ANSWERS = [
    *(
        {
            "command": from_proof.named(one["command"], one["pids"]),
            "pattern": from_proof.named(one["out"], one["pids"], from_proof.escaped),
            "since": "555",
        }
        for one in MEASURED["checks"]["clients"]["commands"]
        if one["pids"].keys() == {"client", "server"}
        and one["command"].startswith(SPOKEN_BY_STANDIN)
        and not one["command"].startswith("quit")
    ),
    *(
        answer
        for path in sorted(TRANSCRIPTS.glob("*.json"))
        for answer in json.loads(path.read_text()).get("answers", ())
        if answer["command"].startswith(SPOKEN_BY_STANDIN)
    ),
]
"""What was recorded on GPUs (``from_proof.py``) and what is documented, the server's end last."""


every_program = pytest.mark.parametrize(
    "program", ["real", "standin-535", "standin-555", "standin-580"], indirect=True
)
every_535 = pytest.mark.parametrize("program", ["real", "standin-535"], indirect=True)
every_standin = pytest.mark.parametrize(
    "program", ["standin-535", "standin-555", "standin-580"], indirect=True
)
the_measured_one = pytest.mark.parametrize("program", ["standin-580"], indirect=True)
the_real_one = pytest.mark.parametrize("program", ["real"], indirect=True)


def installed():
    done = subprocess.run(
        ["dpkg-query", "-W", "nvidia-cuda-mps"], capture_output=True, text=True, check=False
    )
    return " ".join(done.stdout.split())


@every_535
def test_it_answers_as_was_recorded(program, control, request):
    real = "real" in request.node.name
    if real and installed() != RECORDED["package"]:
        pytest.skip(f"recorded with {RECORDED['package']}, here is {installed() or 'another'}")
    for step in RECORDED["steps"]:
        what = " ".join((*step["options"], step["command"])).strip()
        if real or what.startswith(SPOKEN_BY_STANDIN):
            reply = record.say(program, control.directory, step["options"], step["command"])
            assert reply == step


@the_measured_one
def test_it_answers_as_was_recorded_on_an_h200(program, control):
    for step in MEASURED["checks"]["commands"]["commands"]:
        what = " ".join((*step["options"], step["command"])).strip()
        if what.startswith(SPOKEN_BY_STANDIN):
            reply = record.say(program, control.directory, step["options"], step["command"])
            assert reply == {key: step[key] for key in reply}


@every_program
class TestLifeCycle:
    def test_no_answer_before_it_starts(self, control):
        assert control.daemon() is None
        with pytest.raises(NoDaemonError, match="no control daemon answers"):
            control.servers()

    def test_it_starts_and_is_proved(self, control):
        control.start()
        daemon = control.daemon()
        assert daemon is not None
        assert daemon.uid == os.geteuid()
        assert daemon.environment["CUDA_VISIBLE_DEVICES"] == control.gpu
        assert control.servers() == control.all_clients() == control.server_processes() == ()

    def test_a_second_one_in_its_place_is_an_error(self, control):
        control.start()
        with pytest.raises(MpsError, match="An instance of this daemon is already running"):
            control.start()

    def test_it_quits_and_its_directory_serves_again(self, control):
        for _ in range(2):
            control.start()
            control.quit(5)
            assert control.daemon() is None
            with pytest.raises(NoDaemonError):
                control.servers()
        assert (control.directory / "control").exists()

    def test_after_a_kill_its_directory_serves_again(self, control):
        control.start()
        killed = control.daemon()
        assert processes.kill(killed, 10)
        assert control.daemon() is None
        control.start()
        assert control.daemon().pid != killed.pid

    def test_one_that_hangs_is_no_answer(self, control):
        control.start()
        daemon = control.daemon()
        os.kill(daemon.pid, signal.SIGSTOP)
        with pytest.raises(MpsError, match=r"'get_server_list' was not answered in 0\.5 s"):
            control.ask("get_server_list", 0.5)
        # It lives, so that no second one is started.
        assert control.daemon() == daemon

    def test_it_is_not_taken_for_one_of_another_gpu(self, control):
        control.start()
        other = Control(control.directory, record.GPU, control.uid, control.program)
        assert other.daemon() is None


@every_program
class TestNoSuchServer:
    def test_commands(self, control):
        control.start()
        assert control.clients(123) == ()
        assert control.terminate_client(123, 456, 5)
        with pytest.raises(NoServerError, match="Server 123 not found"):
            control.ask("get_client_list 123")

    def test_unknown_commands(self, control):
        control.start()
        with pytest.raises(UnknownCommandError, match='Unknown command "lorem"'):
            control.ask("lorem")


@every_standin
def test_the_limit_of_the_service_on_its_memory_is_not_one_of_the_daemon(control):
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (2**36, hard))
    try:
        control.start()
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    assert resource.prlimit(control.daemon().pid, resource.RLIMIT_DATA) == (hard, hard)


def test_a_program_that_is_not_there(place, gpu):
    control = Control(place, gpu, os.geteuid(), "/nowhere/nvidia-cuda-mps-control")
    with pytest.raises(
        MpsError, match=r"did not start: /nowhere/nvidia-cuda-mps-control: .*not found"
    ):
        control.start()


@the_real_one
class TestRealWithoutGpu:
    @pytest.mark.parametrize(("length", "starts"), [(87, True), (88, False)])
    def test_the_longest_directory(self, program, place, gpu, length, starts):
        pipes = place / ("x" * (length - len(str(place)) - 1))
        pipes.mkdir(mode=0o700)
        assert len(str(pipes)) == length
        assert (length <= LONGEST_DIRECTORY) == starts
        control = Control(pipes, gpu, os.geteuid(), program)
        if starts:
            control.start()
        else:
            with pytest.raises(MpsError, match="did not start"):
                control.start()

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")
    def test_a_user_has_no_say_in_a_daemon_of_root(self, control):
        control.directory.chmod(0o755)
        control.start()
        mallory = Control(control.directory, control.gpu, 65534, control.program)
        with pytest.raises(MpsError, match="Not enough privilege to execute quit"):
            mallory.ask("quit")
        assert control.daemon() is not None


@every_standin
class TestServersOfStandin:
    """Servers and clients behind the daemon, played by the stand-in: the protocol, without GPUs."""

    def test_it_answers_as_is_documented(self, control, start_client, program):
        control.start()
        client = start_client({PIPE_DIRECTORY: str(control.directory)})
        assert client.learns() == "attached"
        wait_until(control.all_clients)
        (server,) = control.servers()
        pids = {"server": server, "client": client.pid}
        for answer in ANSWERS:
            if answer.get("since", "") > Path(program).parent.name:
                continue
            reply = record.say(program, control.directory, [], answer["command"].format(**pids))
            assert re.fullmatch(answer["pattern"].format(**pids), reply["out"])
            assert reply["exit"] == 0

    def test_status_where_the_program_knows_it(self, control, start_client, program):
        control.start()
        client = start_client({PIPE_DIRECTORY: str(control.directory)})
        assert client.learns() == "attached"
        (server,) = control.servers()
        reply = control.status(server)
        assert reply == (HealthState.UNREPORTED if "535" in program else HealthState.ACTIVE)
        wait_until(control.server_processes)
        assert [process.pid for process in control.server_processes()] == [server]

    def test_nonsense_is_no_list(self, control):
        control.start()
        control.ask("standin babble")
        with pytest.raises(MpsError, match="was answered by 'lorem ipsum'"):
            control.servers()


@the_measured_one
class TestBusyDaemon:
    """As release 580 was on an H200: commands refused, or answered by nothing, now and then."""

    @pytest.fixture
    def served(self, control, start_client):
        control.start()
        client = start_client({PIPE_DIRECTORY: str(control.directory)})
        assert client.learns() == "attached"
        wait_until(control.all_clients)
        return control

    @pytest.mark.parametrize("mood", ["busy", "mute"])
    def test_what_is_refused_or_lost_is_sent_again(self, served, mood):
        (server,), clients = served.servers(), served.all_clients()
        for look in (
            lambda: served.servers() == (server,),
            lambda: served.status(server) is HealthState.ACTIVE,
            lambda: served.health().state is HealthState.ACTIVE,
        ):
            served.ask(f"standin {mood}")
            assert look()
        served.ask("standin busy")
        assert served.clients(server) == clients

    def test_quit_is_sent_again(self, served):
        served.ask("standin busy")
        served.quit(1)
        assert served.daemon() is None

    def test_many_at_once(self, served):
        """Sixteen workers that start ask together; in all of that nothing is a fault."""
        with ThreadPoolExecutor(16) as workers:
            found = list(workers.map(lambda _: served.health(), range(64)))
        assert {health.state for health in found} == {HealthState.ACTIVE}
        assert {health.clients for health in found} == {served.all_clients()}

    def test_one_that_takes_no_command_is_no_fault(self, served):
        served.ask("standin swamped")
        health = served.health()
        assert health.state is HealthState.BUSY
        assert "busy for 2 s" in health.why
        with pytest.raises(BusyDaemonError):
            served.servers()
        served.ask("standin idle")
        assert served.health().state is HealthState.ACTIVE
