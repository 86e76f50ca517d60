"""Copies of logs."""

import os

from dovetail.cluster import logs
from dovetail.cluster.logs import PIECE_BYTES, CopiedLogs, LogPiece, piece_of
from dovetail.executor.pools.shim.output import OutputLog


def test_a_copy_follows_a_log_through_its_rotations(tmp_path):
    log = OutputLog(str(tmp_path / "log"), most_bytes=100, files=3)
    copies = CopiedLogs(tmp_path / "copies")

    def update():
        return copies.update(
            "j1.1", 0, lambda place: piece_of(tmp_path / "log", place.part, place.offset)
        )

    lines = [f"{k:09d}\n".encode() for k in range(25)]
    for k, line in enumerate(lines):
        log.write(line)
        if k % 4 == 0:
            update()
    newest = update()
    folder = tmp_path / "copies" / "j1.1" / "rank0"
    parts = [(folder / name).read_bytes() for name in ("log.2", "log.1", "log")]
    assert newest == str(folder / "log")
    assert b"".join(parts) == b"".join(lines)


def test_where_nothing_is_written_there_is_no_copy(tmp_path):
    assert CopiedLogs(tmp_path).update("j1.1", 0, lambda place: LogPiece()) is None


def test_the_reader_of_a_log_that_grows_faster_than_it_is_copied_is_answered(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "_MOST_PIECES", 3)
    endless = LogPiece(part="1", data=b"y\n" * (PIECE_BYTES // 2))
    copy = CopiedLogs(tmp_path).update("j1.1", 0, lambda place: endless)
    assert os.path.getsize(copy) == 3 * PIECE_BYTES
