"""Identity of clients: tokens over TCP, and the search for services."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack

import pytest

from dovetail.executor.jobs.journal import Journal
from dovetail.instances.errors import InputError
from dovetail.live import places
from dovetail.live.http.connections import Tokens, owner_of
from dovetail.live.places import (
    ROOT_DIRECTORY,
    ROOT_SOCKET,
    NoServiceError,
    checked_socket,
    default_directory,
    default_socket,
    find_service,
)
from dovetail.live.serving import announced
from tests.api.live.services import ME

TOKEN = "0123456789abcdef0123456789abcdef"


def tokens(tmp_path, text, mode=0o600):
    path = tmp_path / "tokens"
    path.write_text(text)
    path.chmod(mode)
    return Tokens.read(str(path))


def test_a_token_identifies_its_user(tmp_path):
    read = tokens(tmp_path, f"# of the lab\n\n{ME} {TOKEN}  # mine\n")
    assert read.user(TOKEN) == owner_of(os.getuid(), os.getgid())
    assert read.user(TOKEN[:-1]) is None
    assert read.user("") is None


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        (f"{ME} {TOKEN}", 0o644, "must be readable by its owner only (chmod 600), got mode 644"),
        (f"{ME} short", 0o600, "line 1: must be a token of at least 20 characters, got 5"),
        (f"\nno-such-user {TOKEN}", 0o600, "line 2: must be a user of this machine"),
        (TOKEN, 0o600, "line 1: must be USER TOKEN, separated by a blank"),
        ("# nobody\n", 0o600, "must have a user and a token on a line, got none"),
        ("\udcff", 0o600, "is not UTF-8 text"),
    ],
)
def test_a_bad_file_of_tokens(tmp_path, text, mode, message):
    path = tmp_path / "tokens"
    path.write_bytes(text.encode(errors="surrogateescape"))
    path.chmod(mode)
    with pytest.raises(InputError) as error:
        Tokens.read(str(path))
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert TOKEN not in str(error.value)


def test_a_user_without_a_name_goes_by_the_number():
    assert owner_of(4_000_000_000, 7).name == "4000000000"


def test_where_state_is_kept(monkeypatch, tmp_path):
    monkeypatch.delenv("DOVETAIL_HOME", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert default_directory() == ROOT_DIRECTORY
    assert default_socket(ROOT_DIRECTORY) == ROOT_SOCKET
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert default_directory() == tmp_path / ".local" / "state" / "dovetail"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert default_directory() == tmp_path / "state" / "dovetail"
    monkeypatch.setenv("DOVETAIL_HOME", str(tmp_path / "home"))
    assert default_directory() == tmp_path / "home"
    assert default_socket(default_directory()) == tmp_path / "home" / "api.sock"


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    """As in a container that runs as a number."""
    monkeypatch.setattr(os, "getuid", lambda: 54_321)
    for name in ("HOME", "DOVETAIL_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    rule = "DOVETAIL_HOME: must be set, as user 54321 has no home directory"
    with pytest.raises(InputError, match=f"^{rule}$"):
        default_directory()


def test_a_service_is_found_where_it_was_announced(monkeypatch, tmp_path):
    monkeypatch.delenv("DOVETAIL_SERVICE", raising=False)
    monkeypatch.setenv("DOVETAIL_HOME", str(tmp_path))
    with pytest.raises(NoServiceError, match="start one with dovetail serve"):
        find_service()
    with announced(tmp_path, tmp_path / "other.sock"):
        assert find_service() == str(tmp_path / "other.sock")
    with pytest.raises(NoServiceError):
        find_service()
    (tmp_path / "service.json").write_text("[]")
    with pytest.raises(NoServiceError):
        find_service()
    monkeypatch.setenv("DOVETAIL_SERVICE", "/somewhere.sock")
    assert find_service() == "/somewhere.sock"


def test_a_service_that_is_being_started_is_waited_for(monkeypatch, tmp_path):
    monkeypatch.delenv("DOVETAIL_SERVICE", raising=False)
    monkeypatch.setenv("DOVETAIL_HOME", str(tmp_path))
    with Journal(tmp_path), ExitStack() as service:
        monkeypatch.setattr(places, "START_S", 0.3)
        message = rf"^the service in {tmp_path} \(process {os.getpid()}\) is still starting$"
        with pytest.raises(NoServiceError, match=message):
            find_service()
        monkeypatch.setattr(places, "START_S", 60.0)
        listens = announced(tmp_path, tmp_path / "new.sock")
        starting = threading.Timer(0.3, service.enter_context, (listens,))
        starting.start()
        assert find_service() == str(tmp_path / "new.sock")
        starting.join()
    with pytest.raises(NoServiceError, match="start one with dovetail serve"):
        find_service()
    monkeypatch.setattr(places, "MOMENT_S", 60.0)
    with ExitStack() as service:
        listens = announced(tmp_path, tmp_path / "new.sock")
        called = threading.Timer(0.3, service.enter_context, (listens,))
        called.start()
        assert find_service() == str(tmp_path / "new.sock")
        called.join()


def test_a_socket_has_no_longer_name_than_the_kernel_takes(tmp_path):
    with pytest.raises(InputError, match=r"must have at most 107 bytes as a socket"):
        checked_socket(tmp_path / ("s" * 107))
