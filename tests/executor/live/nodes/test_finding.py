"""The file that names nodes, and copies of logs."""

import os

import pytest

from dovetail.executor.live.nodes import log_parts
from dovetail.executor.live.nodes.finding import ListedNodes, NodeAddress, read_nodes
from dovetail.executor.live.nodes.log_parts import PIECE_BYTES, LogPiece, Mirror, piece_of
from dovetail.executor.live.pools.shim import Log
from dovetail.instances.errors import InputError


@pytest.fixture
def file(tmp_path):
    (tmp_path / "token").write_text("0123456789abcdef\n")
    (tmp_path / "token").chmod(0o600)
    path = tmp_path / "nodes.yaml"
    path.write_text("token_file: token\nnodes:\n- {id: n1, address: 10.0.0.1, port: 7, rack: r}\n")
    return path


def test_nodes_are_found_and_found_again_when_the_file_changes(file):
    finder = ListedNodes(file)
    assert finder.nodes()["n1"] == NodeAddress("10.0.0.1", 7, "0123456789abcdef", "r")
    more = file.read_text() + "- {id: n2, address: 10.0.0.2, port: 7}\n"
    file.write_text(more)
    os.utime(file, ns=(1, 1))
    assert set(finder.nodes()) == {"n1", "n2"}


def test_a_node_that_any_user_could_be_is_not_taken_up(file, caplog):
    finder = ListedNodes(file, privileged=True)
    file.write_text(file.read_text() + "- {id: n2, address: 10.0.0.2, port: 1024}\n")
    os.utime(file, ns=(1, 1))
    assert set(finder.nodes()) == {"n1"}
    assert "nodes[1].port: must be a port below 1024, got 1024" in caplog.text


def test_a_file_that_is_broken_meanwhile_changes_nothing_and_is_told_once(file, caplog):
    good = file.read_text()
    finder = ListedNodes(file)
    for text, trouble in (("broken: [", "nodes.yaml"), (good.replace("7,", "0,"), "got 0")):
        file.write_text(text)
        os.utime(file, ns=(1, 1))
        caplog.clear()
        assert [set(finder.nodes()) for _ in range(3)] == [{"n1"}] * 3
        (told,) = caplog.messages
        assert trouble in told
        assert told.endswith("; the nodes named before stay")
    file.unlink()
    assert set(finder.nodes()) == {"n1"}
    assert "cannot be read: No such file" in caplog.messages[-1]
    file.write_text(good.replace("n1", "n3"))
    assert set(finder.nodes()) == {"n3"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("id: n1", "id: a/b", r"nodes\[0\].id: must have no slash and no blank, got 'a/b'"),
        ("id: n1", "id: a b", r"nodes\[0\].id: must have no slash and no blank, got 'a b'"),
        (
            "nodes:",
            "nodes:\n- {id: n1, address: 10.0.0.2, port: 7}",
            r"nodes\[1\].id: node ids must differ, got 'n1' twice",
        ),
        (
            "nodes:",
            "nodes:\n- {id: n0, address: 10.0.0.1, port: 7}",
            r"nodes\[1\]: must have an agent of its own, got that of n0 \(10.0.0.1:7\)",
        ),
        ("port: 7", "port: 0", r"nodes\[0\].port: must be >= 1, got 0"),
        (
            "token_file: token",
            "token_file: none",
            "none: token_file of .*nodes.yaml: cannot be read: No such file",
        ),
        ("rack: r", "rank: r", r"nodes\[0\].rank"),
    ],
)
def test_what_is_wrong_is_told(file, old, new, message):
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(InputError, match=message):
        read_nodes(file)


def test_an_id_may_have_any_letter(file):
    file.write_text(file.read_text().replace("n1", "gpus-1.site"))
    assert set(read_nodes(file)) == {"gpus-1.site"}


def test_a_token_that_others_can_read_is_refused(file):
    (file.parent / "token").chmod(0o644)
    with pytest.raises(InputError, match="readable by its owner only"):
        read_nodes(file)


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
    assert Mirror(tmp_path / "copy" / "log").update(lambda part, offset: None) is None


def test_who_asks_for_a_log_that_grows_faster_than_it_is_copied_is_answered(tmp_path, monkeypatch):
    monkeypatch.setattr(log_parts, "_MOST_PIECES", 3)
    mirror = Mirror(tmp_path / "copy" / "log")
    endless = LogPiece("1", b"y\n" * (PIECE_BYTES // 2), "")
    copy = mirror.update(lambda part, offset: endless)
    assert os.path.getsize(copy) == 3 * PIECE_BYTES
