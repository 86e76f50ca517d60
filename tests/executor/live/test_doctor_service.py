"""The doctor before sockets, ports and locks, all of them real."""

import os
import socket

import pytest

from dovetail.executor.live.doctor.finding import Level
from dovetail.executor.live.doctor.service import service
from dovetail.executor.live.journal import Journal


def found(directory, path=None, address=None):
    findings = service(directory, path or directory / "api.sock", address)
    return {finding.id: finding for finding in findings}


@pytest.fixture
def listener(tmp_path):
    """A socket that this process listens on."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "api.sock"))
        made.listen()
        yield made


def test_a_free_place_is_good(tmp_path):
    levels = {finding.level for finding in found(tmp_path / "state").values()}
    assert levels == {Level.GOOD}


def test_the_socket_of_another_is_told_with_its_process(tmp_path, listener):
    told = found(tmp_path)["service.socket"]
    assert told.level is Level.BROKEN
    assert f"pid {os.getpid()}, uid {os.geteuid()} listens there" in told.told


def test_a_service_that_runs_has_its_own_socket(tmp_path, listener):
    with Journal(tmp_path):
        told = found(tmp_path)
    assert told["service.running"].level is Level.NOTE
    assert f"pid {os.getpid()}" in told["service.running"].told
    assert told["service.socket"].told.endswith("is that of the service that runs")
    assert found(tmp_path)["service.running"].level is Level.GOOD


def test_a_socket_that_is_left_is_replaced(tmp_path, listener):
    listener.close()
    assert "it is replaced" in found(tmp_path)["service.socket"].told


def test_a_file_that_is_no_socket(tmp_path):
    (tmp_path / "api.sock").touch()
    assert found(tmp_path)["service.socket"].level is Level.BROKEN


def test_a_name_too_long_for_a_socket(tmp_path):
    told = found(tmp_path, tmp_path / ("x" * 108))["service.socket"]
    assert told.level is Level.BROKEN
    assert "may have 107" in told.told


def test_a_port_in_use_is_told_with_its_process(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = found(tmp_path, address=("127.0.0.1", port))["service.port"]
    assert told.level is Level.BROKEN
    assert f"pid {os.getpid()}" in told.told
    assert found(tmp_path, address=("127.0.0.1", port))["service.port"].level is Level.GOOD


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_directory_that_may_not_be_entered_is_told_of(tmp_path):
    # As with root's home, which some ways to become another user leave in HOME.
    tmp_path.chmod(0o700)
    inside = tmp_path / "state"
    os.setresuid(65534, 65534, 0)
    try:
        found = {one.id: one for one in service(inside, inside / "api.sock")}
    finally:
        os.setresuid(0, 0, 0)
    assert found["service.directory"].told == f"{inside} cannot be written"
    assert found["service.socket"].level is Level.BROKEN
    assert found["service.socket"].told.endswith("cannot be written")
