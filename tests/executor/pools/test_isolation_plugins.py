"""Which way of isolation a pool of GPUs takes."""

from __future__ import annotations

import logging

import pytest

from dovetail.executor.pools.opening import find_isolation
from dovetail.instances import plugins
from tests.installed import install

SOURCE = """
class Works:
    def __init__(self, directory):
        self.directory = directory

    def why_not(self):
        return None

class Lacks(Works):
    def why_not(self):
        return "there is no kernel module"

def fails(directory):
    raise OSError("no such device")
"""


@pytest.fixture
def found(tmp_path, monkeypatch, caplog):
    """Return what takes the ways of a package, and returns the taken one with what was said."""
    caplog.set_level(logging.INFO, "dovetail.executor.pools.opening")
    monkeypatch.setattr(plugins, "OWN", "made-up")  # before Dovetail's own

    def take(*entries):
        install(monkeypatch, tmp_path / "site", SOURCE, *entries)
        return find_isolation(tmp_path / "files"), caplog.messages

    return take


def test_the_first_that_works_is_taken(found, tmp_path):
    way, said = found(("isolation.a", "fails"), ("isolation.b", "Lacks"), ("isolation.c", "Works"))
    assert type(way).__name__ == "Works"
    assert way.directory == tmp_path / "files"
    why = "plugin isolation.a of the package made-up (made_up:fails) failed: OSError"
    assert said[0] == f"no pair is isolated by a: {why}: no such device"
    assert said[1:] == ["no pair is isolated by b: there is no kernel module"]


def test_without_any_one_line_says_so(monkeypatch, tmp_path, caplog):
    caplog.set_level(logging.INFO, "dovetail.executor.pools.opening")
    monkeypatch.setattr(plugins, "_declared", list)
    monkeypatch.setattr(plugins, "_installed", plugins._installed.__wrapped__)
    assert find_isolation(tmp_path) == "no installed package isolates"
    assert caplog.messages == ["no pair is isolated: no installed package isolates"]
