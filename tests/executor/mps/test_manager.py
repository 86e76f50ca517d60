"""Guarantees and refusals of the manager; servers and clients are the stand-in's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

import pytest

from dovetail.executor.mps import processes
from dovetail.executor.mps.control import Control, HealthState, MpsError
from dovetail.executor.mps.manager import MpsManager
from dovetail.executor.mps.processes import PROGRAM, may_see
from dovetail.executor.mps.recovery import RecoveryTimeouts

from ..waiting import wait_until

# Where the real program is, what it can show of itself is shown by the stand-in in long runs only.
_BESIDE_REAL = [pytest.mark.long] if shutil.which(PROGRAM) else []
every_program = pytest.mark.parametrize(
    "program", ["real", pytest.param("standin-580", marks=_BESIDE_REAL)], indirect=True
)
every_standin = pytest.mark.parametrize(
    "program", ["standin-535", "standin-555", "standin-580"], indirect=True
)
newer_standin = pytest.mark.parametrize("program", ["standin-555", "standin-580"], indirect=True)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")

ME = os.geteuid()
NOBODY = 65534
SHORT = RecoveryTimeouts(answer_s=6, active_s=0.3, terminate_s=2, quit_s=1)


@pytest.fixture
def manager(program, place):
    return MpsManager(place / "mps", program=program, patience=SHORT)


def seat(manager, gpu, uid=ME, share=50, memory_mib=1000.0, priority=None):
    return manager.environment(gpu, uid, share, memory_mib, priority)


def daemon_of(manager, gpu, uid=ME):
    return manager._control(gpu, uid).daemon()


def say(manager, gpu, command):
    return manager._control(gpu, ME).ask(command)


@every_program
class TestDaemon:
    def test_the_environment_of_a_client(self, manager, gpu, place):
        assert seat(manager, gpu) == {
            "CUDA_VISIBLE_DEVICES": gpu,
            "CUDA_MPS_PIPE_DIRECTORY": f"{place}/mps/{gpu[4:12]}-{ME}",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1000M",
        }
        bare = seat(manager, gpu, share=None, memory_mib=None, priority=1)
        assert bare["CUDA_MPS_CLIENT_PRIORITY"] == "1"
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in bare
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in bare

    def test_one_daemon_a_gpu_in_a_private_place(self, manager, gpu, place):
        seat(manager, gpu)
        first = daemon_of(manager, gpu)
        seat(manager, gpu)
        assert daemon_of(manager, gpu) == first
        pipes = place / "mps" / f"{gpu[4:12]}-{ME}"
        assert pipes.stat().st_mode & 0o777 == 0o700

    def test_no_run_is_attached_to_a_daemon_without_clients(self, manager, gpu):
        assert manager.health(gpu).state is HealthState.DOWN
        seat(manager, gpu)
        assert manager.health(gpu).state is HealthState.IDLE
        assert manager.health(gpu).clients == ()
        assert not manager.attached(gpu, os.getpid())
        assert manager.terminate(gpu, os.getpid())

    def test_another_service_takes_up_the_daemon(self, manager, gpu, place, program):
        seat(manager, gpu)
        first = daemon_of(manager, gpu)
        later = MpsManager(place / "mps", program=program)
        seat(later, gpu)
        assert daemon_of(later, gpu) == first

    def test_close_ends_unused_daemons(self, manager, gpu, start_client):
        used, unused = gpu, f"GPU-00000000{gpu[12:]}"
        start_client(seat(manager, used))
        seat(manager, unused)
        manager.close()
        assert daemon_of(manager, used) is not None
        assert daemon_of(manager, unused) is None

    def test_a_killed_daemon_is_started_again(self, manager, gpu):
        seat(manager, gpu)
        assert processes.kill(daemon_of(manager, gpu), 10)
        assert manager.health(gpu).state is HealthState.DOWN
        seat(manager, gpu)
        assert manager.health(gpu).state is HealthState.IDLE

    def test_a_daemon_whose_place_was_emptied_is_proved_and_replaced(self, manager, gpu, place):
        seat(manager, gpu)
        lost = daemon_of(manager, gpu)
        for file in (place / "mps" / f"{gpu[4:12]}-{ME}").iterdir():
            file.unlink()
        seat(manager, gpu)
        assert processes.ends(lost, 10)
        assert manager.health(gpu).state is HealthState.IDLE

    def test_a_daemon_that_died_under_its_clients_is_not_replaced(self, manager, gpu, start_client):
        client = start_client(seat(manager, gpu))
        assert processes.kill(daemon_of(manager, gpu), 10)
        with pytest.raises(MpsError, match=f"its daemon is gone, but .*{client.pid}"):
            seat(manager, gpu)
        assert manager.health(gpu).state is HealthState.UNKNOWN
        recovery = manager.recover(gpu)
        assert recovery.healthy
        assert client.pid in recovery.left
        assert manager.health(gpu).state is HealthState.IDLE

    def test_a_hanging_daemon_is_killed_and_replaced(self, program, place, gpu):
        manager = MpsManager(place / "mps", program=program, patience=SHORT._replace(answer_s=1))
        seat(manager, gpu)
        hanging = daemon_of(manager, gpu)
        os.kill(hanging.pid, signal.SIGSTOP)
        with pytest.raises(MpsError, match="was not answered in 1 s"):
            seat(manager, gpu)
        recovery = manager.recover(gpu)
        assert recovery.healthy
        assert recovery.steps == ("waited for its servers", "killed the daemon and started another")
        assert processes.look(hanging.pid) is None
        assert manager.health(gpu).state is HealthState.IDLE

    def test_without_mps_no_daemon_is_met(self, manager, gpu, start_client):
        seat(manager, gpu)
        assert start_client(manager.without_mps(gpu)).learns() == "no MPS"


@every_program
class TestOthers:
    def test_foreign_mps_on_the_gpu_is_reported_and_left_alone(self, manager, gpu, place, program):
        elsewhere = place / "theirs"
        elsewhere.mkdir(mode=0o700)
        theirs = Control(elsewhere, gpu, ME, program)
        theirs.start()
        with pytest.raises(MpsError, match=f"MPS of others may be on it: .*{elsewhere}"):
            seat(manager, gpu)
        manager.recover(gpu)
        manager.close()
        assert [other.pid for other in manager.foreign(gpu)] == [theirs.daemon().pid]

    def test_foreign_mps_on_another_gpu_is_not_in_the_way(self, manager, gpu, place, program):
        elsewhere = place / "theirs"
        elsewhere.mkdir(mode=0o700)
        Control(elsewhere, "GPU-11111111-2222-3333-4444-555555555555", ME, program).start()
        seat(manager, gpu)
        assert manager.foreign(gpu) == ()

    def test_a_process_that_only_looks_like_a_daemon_is_not_ours(self, manager, gpu, place):
        seat(manager, gpu)
        mine = daemon_of(manager, gpu)
        assert processes.kill(mine, 10)
        # Its place is held by something that listens and is no daemon of this GPU.
        pipes = place / "mps" / f"{gpu[4:12]}-{ME}"
        other = gpu[:-12] + "0" * 12
        Control(pipes, other, ME, manager.program).start()
        with pytest.raises(MpsError, match="is not ours"):
            seat(manager, gpu)

    @as_root
    def test_one_user_at_a_time(self, manager, gpu):
        environment = seat(manager, gpu, uid=NOBODY)
        assert daemon_of(manager, gpu, NOBODY).uid == NOBODY
        # Whether it has met CUDA yet cannot be known: it may be a client at any time.
        with subprocess.Popen(["sleep", "100"], env=environment, user=NOBODY) as first:
            refused = rf"user {NOBODY} has, or may have, clients .* processes {first.pid}$"
            with pytest.raises(MpsError, match=refused):
                seat(manager, gpu, uid=ME)
            first.kill()
        seat(manager, gpu, uid=ME)
        assert daemon_of(manager, gpu, NOBODY) is None
        assert daemon_of(manager, gpu, ME).uid == ME

    @as_root
    def test_a_user_without_access_gets_the_reason(self, program, place, gpu):
        (place / "closed").mkdir(mode=0o700)
        manager = MpsManager(place / "closed" / "mps", program=program)
        with pytest.raises(MpsError, match=f"{place}/closed: user {NOBODY} may not pass"):
            seat(manager, gpu, uid=NOBODY)


@newer_standin
class TestClients:
    def test_attachment_is_proved_by_the_client_list(self, manager, gpu, start_client):
        environment = seat(manager, gpu)
        first, second = start_client(environment), start_client(environment, "parent")
        assert first.learns() == second.learns() == "attached"
        wait_until(lambda: len(manager.health(gpu).clients) == 2, "both clients are listed")
        assert manager.attached(gpu, first.pid)
        # The client is a child of the second process.
        assert second.pid not in manager.health(gpu).clients
        assert manager.attached(gpu, second.pid)
        stranger = start_client(manager.without_mps(gpu))
        assert stranger.learns() == "no MPS"
        assert not manager.attached(gpu, stranger.pid)

    def test_a_client_that_left_is_not_attached(self, manager, gpu, start_client):
        client = start_client(seat(manager, gpu))
        assert client.learns() == "attached"
        client.end()
        wait_until(lambda: not manager.health(gpu).clients)
        assert not manager.attached(gpu, client.pid)

    def test_terminate_ends_the_work_of_one_client_only(self, manager, gpu, start_client):
        environment = seat(manager, gpu)
        first, second = start_client(environment, "parent"), start_client(environment)
        assert first.learns() == second.learns() == "attached"
        wait_until(lambda: len(manager.health(gpu).clients) == 2, "both clients are listed")
        assert manager.terminate(gpu, first.pid)
        assert first.learns() == "810"
        assert manager.attached(gpu, second.pid)

    def test_a_client_that_cannot_be_terminated_is_reported(self, manager, gpu, start_client):
        client = start_client(seat(manager, gpu))
        assert client.learns() == "attached"
        wait_until(lambda: manager.attached(gpu, client.pid), "the client is listed")
        say(manager, gpu, "standin deaf")
        assert not manager.terminate(gpu, client.pid)

    def test_terminate_is_not_sure_of_a_daemon_that_hangs(self, manager, gpu, start_client):
        client = start_client(seat(manager, gpu))
        assert client.learns() == "attached"
        os.kill(daemon_of(manager, gpu).pid, signal.SIGSTOP)
        assert not manager.terminate(gpu, client.pid)

    def test_nonsense_is_unknown_and_attaches_no_run(self, manager, gpu):
        seat(manager, gpu)
        say(manager, gpu, "standin babble")
        assert manager.health(gpu).state is HealthState.UNKNOWN
        with pytest.raises(MpsError, match="was answered by"):
            manager.attached(gpu, os.getpid())
        with pytest.raises(MpsError, match="was answered by"):
            seat(manager, gpu)


class TestRecovery:
    @newer_standin
    def test_a_fault_passes_when_its_victims_have_left(self, manager, gpu, start_client):
        environment = seat(manager, gpu)
        victim = start_client(environment, "leave")
        stays = start_client(environment)
        assert victim.learns() == stays.learns() == "attached"
        wait_until(lambda: len(manager.health(gpu).clients) == 2, "both clients are listed")
        say(manager, gpu, "standin fault")
        health = manager.health(gpu)
        assert health.state is HealthState.FAULT
        assert len(health.clients) >= 1
        with pytest.raises(MpsError, match="a server is in fault"):
            seat(manager, gpu)
        assert start_client(environment).learns() == "807"
        stays.end()
        wait_until(lambda: manager.health(gpu).state is HealthState.ACTIVE)
        assert manager.recover(gpu) == (True, (), ())

    @pytest.mark.parametrize(
        ("program", "mood"),
        [
            ("standin-535", "fault"),
            ("standin-555", "fault"),
            ("standin-555", "deaf"),
            ("standin-535", "stuck"),
        ],
        indirect=["program"],
    )
    def test_each_rung_only_if_the_one_before_failed(self, manager, gpu, start_client, mood):
        environment = seat(manager, gpu)
        client = start_client(environment)
        assert client.learns() == "attached"
        for word in {"fault", mood}:
            say(manager, gpu, f"standin {word}")
        recovery = manager.recover(gpu)
        assert recovery.healthy
        assert recovery.steps == (
            "waited for its servers",
            "terminated its clients",
            "had the daemon quit and started another",
        )
        # What was a client still lives, and its context is dead: the pool has to end it.
        assert client.pid in recovery.left
        newcomer = start_client(seat(manager, gpu))
        assert newcomer.learns() == "attached"

    @every_standin
    def test_servers_without_a_daemon_are_killed(self, manager, gpu, start_client):
        client = start_client(seat(manager, gpu))
        assert client.learns() == "attached"
        wait_until(manager._control(gpu, ME).server_processes)
        (server,) = manager._control(gpu, ME).server_processes()
        assert processes.kill(daemon_of(manager, gpu), 10)
        recovery = manager.recover(gpu)
        assert recovery.healthy
        assert recovery.left == (client.pid,)
        assert processes.look(server.pid) is None

    @newer_standin
    def test_what_cannot_be_recovered_is_not_healthy(self, manager, gpu):
        environment = seat(manager, gpu)
        assert processes.kill(daemon_of(manager, gpu), 10)
        with subprocess.Popen(["sleep", "100"], env=environment) as client:
            os.unlink(manager.program)
            os.symlink("/bin/false", manager.program)
            recovery = manager.recover(gpu)
            client.kill()
        assert not recovery.healthy
        assert "did not start" in recovery.steps[-1]

    def test_no_job_starts_during_a_recovery(self, place, gpu):
        manager = MpsManager(place, program="true", patience=SHORT._replace(answer_s=0.1))
        with manager._locked(gpu), pytest.raises(MpsError, match="is being recovered"):
            seat(manager, gpu)


class TestRefusals:
    @pytest.mark.parametrize("uuid", ["0", "", "../..", "MIG-11111111-2222-3333-4444-555555555555"])
    def test_only_whole_gpus_by_uuid(self, place, uuid):
        with pytest.raises(MpsError, match="needs the UUID of a whole GPU"):
            MpsManager(place, program="true").environment(uuid, ME, None, None)

    @pytest.mark.parametrize(
        ("share", "memory_mib", "message"),
        [
            (0, None, "share: must be from 1 to 100, got 0"),
            (101, None, "share: must be from 1 to 100, got 101"),
            (None, 0.5, "memory_mib: must be from 1 to .*, got 0"),
        ],
    )
    def test_values_out_of_range(self, place, gpu, share, memory_mib, message):
        with pytest.raises(MpsError, match=message):
            MpsManager(place, program="true").environment(gpu, ME, share, memory_mib)

    def test_another_user_than_that_of_an_ordinary_service(self, place, gpu, monkeypatch):
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        manager = MpsManager(place, program="true")
        with pytest.raises(MpsError, match="user 1001: a service of user 1000 runs MPS"):
            seat(manager, gpu, uid=1001)

    def test_a_place_too_long_for_sockets(self, place, gpu):
        manager = MpsManager(place / ("x" * 80), program="true")
        with pytest.raises(MpsError, match="longer than 87 bytes"):
            seat(manager, gpu)

    def test_no_program(self, place, gpu):
        manager = MpsManager(place, program="no-such-program")
        assert manager.why_not() == "no-such-program is not installed"
        with pytest.raises(MpsError, match="no-such-program is not installed"):
            seat(manager, gpu)

    @every_program
    def test_a_link_in_the_place_of_a_private_directory(self, manager, gpu, place):
        (place / "mps").mkdir()
        (place / "elsewhere").mkdir()
        (place / "mps" / f"{gpu[4:12]}-{ME}").symlink_to(place / "elsewhere")
        with pytest.raises(MpsError, match="must be a directory of user"):
            seat(manager, gpu)
        assert not list((place / "elsewhere").iterdir())

    @every_program
    def test_a_directory_open_to_others(self, manager, gpu, place):
        (place / "mps").mkdir()
        pipes = place / "mps" / f"{gpu[4:12]}-{ME}"
        pipes.mkdir()
        pipes.chmod(0o755)
        with pytest.raises(MpsError, match="closed to others"):
            seat(manager, gpu)

    @pytest.mark.parametrize(
        ("devices", "seen"),
        [
            (None, True),
            ("", False),
            ("0", True),
            ("GPU-1111", True),
            ("GPU-2222,GPU-3333", False),
            ("GPU-2222, GPU-11111111-2222-3333-4444-555555555555", True),
        ],
    )
    def test_which_gpus_others_may_see(self, devices, seen):
        assert may_see(devices, "GPU-11111111-2222-3333-4444-555555555555") is seen


@pytest.mark.parametrize("program", ["real"], indirect=True)
def test_logs_that_have_grown_long_are_emptied_and_links_are_not(manager, gpu, place):
    seat(manager, gpu)
    pipes = place / "mps" / f"{gpu[4:12]}-{ME}"
    with (pipes / "control.log").open("ab") as log:
        log.truncate(17 * 2**20)
    precious = place / "precious"
    precious.write_bytes(b"x" * 17 * 2**20)
    (pipes / "server.log").unlink()
    (pipes / "server.log").symlink_to(precious)
    manager.health(gpu)
    manager.health(gpu)
    # The daemon goes on at the new end of its log.
    assert 0 < (pipes / "control.log").stat().st_size < 10_000
    assert precious.stat().st_size == 17 * 2**20
