"""The doctor with real sockets, ports and locks."""

import os
import socket

import pytest

from dovetail.executor.doctor import service
from dovetail.executor.doctor.finding import Severity
from dovetail.executor.jobs.journal import Journal


def socket_of(directory, name="api.sock"):
    return service.unix_socket(directory / name, service.holder(directory))


@pytest.fixture
def listener(tmp_path):
    """A socket that this process listens on."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "api.sock"))
        made.listen()
        yield made


def test_a_free_place_is_good(tmp_path):
    place = tmp_path / "state"
    assert service.state(place).level is Severity.GOOD
    assert service.running(place, service.holder(place)).level is Severity.GOOD
    assert socket_of(place).level is Severity.GOOD


def test_the_socket_of_another_user_is_reported_with_its_process(tmp_path, listener):
    finding = socket_of(tmp_path)
    assert finding.level is Severity.BROKEN
    assert f"pid {os.getpid()}, uid {os.geteuid()} listens there" in finding.text


def test_a_service_that_runs_has_its_own_socket(tmp_path, listener):
    with Journal(tmp_path):
        running = service.running(tmp_path, service.holder(tmp_path))
        assert socket_of(tmp_path).text.endswith("is the socket of the running service")
    assert running.level is Severity.NOTE
    assert f"pid {os.getpid()}" in running.text
    assert service.running(tmp_path, service.holder(tmp_path)).level is Severity.GOOD


def test_a_socket_that_is_left_is_replaced(tmp_path, listener):
    listener.close()
    assert "will be replaced" in socket_of(tmp_path).text


def test_a_file_that_is_no_socket(tmp_path):
    (tmp_path / "api.sock").touch()
    assert socket_of(tmp_path).level is Severity.BROKEN


def test_a_name_too_long_for_a_socket(tmp_path):
    finding = socket_of(tmp_path, "x" * 108)
    assert finding.level is Severity.BROKEN
    assert "may have 107" in finding.text


def test_a_port_in_use_is_broken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = taken.getsockname()
        finding = service.port(address)
    assert finding.level is Severity.BROKEN
    assert service.port(address).level is Severity.GOOD


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_directory_that_may_not_be_entered_is_reported(tmp_path):
    # As with root's home, which some ways to become another user leave in HOME.
    tmp_path.chmod(0o700)
    inside = tmp_path / "state"
    os.setresuid(65534, 65534, 0)
    try:
        state, path = service.state(inside), socket_of(inside)
    finally:
        os.setresuid(0, 0, 0)
    assert state.text == f"{inside} cannot be written"
    assert path.level is Severity.BROKEN
    assert path.text.endswith("cannot be written")
