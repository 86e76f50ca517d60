"""Logs are read whole across rotation, followed, and never taken for other files."""

from __future__ import annotations

import asyncio
import os

import pytest

from dovetail.executor.jobs.states import OVER, JobState
from dovetail.executor.live.errors import RefusedError
from dovetail.live.http import logs
from dovetail.live.http.logs import RankOutput, followed, last_lines, written
from tests.executor.waiting import LIMIT_S

UID = os.getuid()


class ServiceApi:
    """A desk with one log: its path, and whether its job is over."""

    def __init__(self, newest):
        self.newest = newest
        self.state = JobState.RUNNING

    def log_path(self, job, rank, by):
        return None if self.newest is None else str(self.newest)

    def log_lack(self, job, rank, by):
        return ""

    def is_over(self, job):
        return self.state in OVER


@pytest.fixture
def log(tmp_path):
    """Return a log of three parts with numbered lines."""
    for part, lines in (("log.2", range(3)), ("log.1", range(3, 6)), ("log", range(6, 9))):
        (tmp_path / part).write_text("".join(f"{k}\n" for k in lines))
    return tmp_path / "log"


def test_all_parts_are_read_the_oldest_first(log):
    assert b"".join(written(str(log), UID)) == b"0\n1\n2\n3\n4\n5\n6\n7\n8\n"


@pytest.mark.parametrize("lines", [0, 1, 3, 4, 8, 9, 20])
def test_the_last_lines_may_lie_in_several_parts(log, lines):
    wanted = "".join(f"{k}\n" for k in range(max(9 - lines, 0), 9))
    assert last_lines(str(log), UID, lines) == wanted.encode()


def test_the_last_lines_take_bounded_memory(tmp_path):
    log = tmp_path / "log"
    for name in ("log.1", "log"):
        (tmp_path / name).write_bytes(b"line\n" * 2_000_000)
    found = last_lines(str(log), UID, 10**9)
    assert logs.MOST_TAIL_BYTES <= len(found) < logs.MOST_TAIL_BYTES + 2**17
    assert found.endswith(b"line\n")


def test_the_last_lines_of_a_large_file(tmp_path):
    log = tmp_path / "log"
    log.write_text("".join(f"{k:>60}\n" for k in range(10_000)))
    lines = last_lines(str(log), UID, 2_000).decode().split()
    assert lines == [str(k) for k in range(8_000, 10_000)]


def test_a_last_line_without_an_end(tmp_path):
    (tmp_path / "log").write_text("first\nsecond")
    assert last_lines(str(tmp_path / "log"), UID, 1) == b"second"


def test_nothing_has_been_written(tmp_path):
    assert b"".join(written(str(tmp_path / "log"), UID)) == b""
    assert last_lines(str(tmp_path / "log"), UID, 5) == b""


def test_a_link_is_not_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("a token")
    log = tmp_path / "log"
    log.symlink_to(secret)
    with pytest.raises(RefusedError):
        b"".join(written(str(log), UID))
    log.unlink()
    log.hardlink_to(secret)
    with pytest.raises(RefusedError, match="log is not the log that was made for the job"):
        b"".join(written(str(log), UID))
    log.unlink()
    os.mkfifo(log)
    with pytest.raises(RefusedError):
        b"".join(written(str(log), UID))


def follow(api, lines=None, *happenings):
    """Return what a follower receives; after each chunk the next action runs."""

    async def received():
        left = list(happenings)
        found = b""
        async for chunk in followed(RankOutput(api, "j1", 0, None, UID), lines, lambda: False):
            found += chunk
            if left:
                left.pop(0)()
            else:
                api.state = JobState.FINISHED
        return found

    return asyncio.run(asyncio.wait_for(received(), LIMIT_S))


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(logs, "_POLL_S", 0.01)


def append(path, text):
    with path.open("a") as file:
        file.write(text)


def rotate(path):
    """Rename the parts as the launcher does, and begin a new one."""
    for k in (3, 2, 1):
        part = path.with_name(f"log.{k}")
        if part.exists():
            part.rename(path.with_name(f"log.{k + 1}"))
    path.rename(path.with_name("log.1"))
    path.touch()


def test_following_shows_all_that_is_written(tmp_path):
    log = tmp_path / "log"
    log.write_text("a\n")
    text = follow(ServiceApi(log), None, lambda: append(log, "b\n"), lambda: append(log, "c\n"))
    assert text == b"a\nb\nc\n"


def test_following_begins_with_the_older_parts(log):
    assert follow(ServiceApi(log)) == b"0\n1\n2\n3\n4\n5\n6\n7\n8\n"


def test_following_from_the_last_lines(log):
    assert follow(ServiceApi(log), 2, lambda: append(log, "new\n")) == b"7\n8\nnew\n"


def test_following_goes_on_when_the_log_is_rotated(tmp_path):
    log = tmp_path / "log"
    log.write_text("a\n")

    def twice():
        append(log, "b\n")
        rotate(log)
        append(log, "c\n")
        rotate(log)
        append(log, "d\n")

    assert follow(ServiceApi(log), None, twice) == b"a\nb\nc\nd\n"


def test_following_goes_on_with_the_next_run(tmp_path):
    first, second = tmp_path / "1" / "log", tmp_path / "2" / "log"
    for each in (first, second):
        each.parent.mkdir()
    first.write_text("first\n")
    api = ServiceApi(first)

    def started_again():
        second.write_text("second\n")
        api.newest = second

    assert follow(api, None, started_again) == b"first\nsecond\n"


def test_following_waits_for_the_log_to_be_there(tmp_path):
    log = tmp_path / "log"
    api = ServiceApi(None)

    async def received():
        chunks = followed(RankOutput(api, "j1", 0, None, UID), None, lambda: False)
        first = asyncio.ensure_future(anext(chunks))
        await asyncio.sleep(0.05)
        api.newest = log
        await asyncio.sleep(0.05)
        log.write_text("there\n")
        found = await asyncio.wait_for(first, LIMIT_S)
        await chunks.aclose()
        return found

    assert asyncio.run(received()) == b"there\n"


def test_output_written_just_before_the_end_is_reported(tmp_path):
    log = tmp_path / "log"
    log.write_text("last words\n")
    api = ServiceApi(log)
    api.state = JobState.FAILED
    assert follow(api) == b"last words\n"
