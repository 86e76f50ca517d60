"""Owners and modes of the directories that a service accepts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dovetail.executor.jobs.journal import Journal, JournalError
from dovetail.executor.system.directories import require_closed, require_own
from dovetail.instances.errors import InputError

NOBODY = 65534

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@AS_ROOT
@pytest.mark.parametrize("below", [".", "new/below"])
def test_one_that_another_user_has_made_is_refused(tmp_path, below):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    with pytest.raises(InputError) as refused:
        Journal(theirs / below)
    assert str(refused.value) == f"{theirs}: must belong to user 0, got one of user {NOBODY}"
    assert list(theirs.iterdir()) == []


def test_a_world_writable_one_is_refused(tmp_path):
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o1777)
    with pytest.raises(InputError) as refused:
        Journal(open_to_all)
    message = f"{open_to_all}: must not be writable by everybody, got mode 1777"
    assert str(refused.value) == message
    assert list(open_to_all.iterdir()) == []


@AS_ROOT
def test_a_parent_folder_may_be_writable_only_with_the_sticky_bit(tmp_path):
    above = tmp_path / "above"
    (above / "state").mkdir(parents=True)
    above.chmod(0o1777)
    require_own(above / "state")
    above.chmod(0o777)
    with pytest.raises(InputError, match="above: must not be writable by everybody, got mode 777"):
        require_own(above / "state")


@AS_ROOT
def test_a_link_in_the_folder_of_another_user_is_refused(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (tmp_path / "mine").mkdir()
    (theirs / "link").symlink_to(tmp_path / "mine")
    os.chown(theirs, NOBODY, NOBODY)
    with pytest.raises(InputError, match=f"^{theirs}: must belong to user 0"):
        require_own(theirs / "link")


@AS_ROOT
def test_another_user_takes_what_is_his_wherever_it_lies():
    program = "import sys, pathlib; from dovetail.executor.system.directories import require_own; "
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        (Path(folder) / "his").mkdir()
        os.chown(Path(folder) / "his", NOBODY, NOBODY)
        program += "import os; os.setuid(65534); require_own(pathlib.Path(sys.argv[1]))"
        words = [sys.executable, "-c", program, f"{folder}/his"]
        assert subprocess.run(words, check=False).returncode == 0


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JournalError, match="cannot be used: too many levels of symbolic links"):
        Journal(tmp_path / "state")
    assert not (tmp_path / "elsewhere").exists()


class TestClosed:
    """Folders in which others may write, as Ray makes them, are below one that keeps them out."""

    @pytest.fixture
    def session(self):
        # Not pytest's folder, which is below one that keeps others out.
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            found = Path(folder) / "above" / "session"
            (found / "logs").mkdir(parents=True)
            yield found

    @pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
    def test_one_that_others_reach_is_refused(self, session, mode):
        (session / "logs").chmod(mode)
        with pytest.raises(InputError, match="must lie below a folder of mode 700"):
            require_closed(session)

    def test_one_that_is_kept_from_them_is_not(self, session):
        (session / "logs").chmod(0o777)
        session.parent.chmod(0o700)
        require_closed(session)

    def test_nor_one_in_which_they_may_not_write(self, session):
        (session / "logs").chmod(0o755)
        require_closed(session)

    @AS_ROOT
    def test_a_closed_folder_of_another_user_does_not_count(self, session):
        (session / "logs").chmod(0o777)
        session.parent.chmod(0o700)
        os.chown(session.parent, NOBODY, NOBODY)
        with pytest.raises(InputError, match="must lie below a folder of mode 700"):
            require_closed(session)
