"""Copies of logs."""

import os

from dovetail.executor.nodes import log_parts
from dovetail.executor.nodes.log_parts import PIECE_BYTES, LogPiece, Mirror, piece_of
from dovetail.executor.pools.shim.output import Log


def test_a_copy_follows_a_log_through_its_rotations(tmp_path):
    log = Log(str(tmp_path / "log"), most_bytes=100, files=3)
    mirror = Mirror(tmp_path / "copy" / "log")

    def update():
        return mirror.update(lambda part, offset: piece_of(tmp_path / "log", part, offset))

    lines = [f"{k:09d}\n".encode() for k in range(25)]
    for k, line in enumerate(lines):
        log.write(line)
        if k % 4 == 0:
            update()
    newest = update()
    parts = [(tmp_path / "copy" / name).read_bytes() for name in ("log.2", "log.1", "log")]
    assert newest == str(tmp_path / "copy" / "log")
    assert b"".join(parts) == b"".join(lines)


def test_where_nothing_is_written_there_is_no_copy(tmp_path):
    assert Mirror(tmp_path / "copy" / "log").update(lambda part, offset: LogPiece()) is None


def test_who_asks_for_a_log_that_grows_faster_than_it_is_copied_is_answered(tmp_path, monkeypatch):
    monkeypatch.setattr(log_parts, "_MOST_PIECES", 3)
    mirror = Mirror(tmp_path / "copy" / "log")
    endless = LogPiece(part="1", data=b"y\n" * (PIECE_BYTES // 2))
    copy = mirror.update(lambda part, offset: endless)
    assert os.path.getsize(copy) == 3 * PIECE_BYTES
