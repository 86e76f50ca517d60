"""Slow answers of the page: made once in a while, and no user keeps others waiting."""

from __future__ import annotations

import threading

import pytest

from dovetail.live.page import aside
from dovetail.live.page.aside import MOST_OF_USER, Aside
from tests.executor.waiting import wait_until


def test_an_answer_is_kept_and_made_again_when_it_is_old(monkeypatch):
    made = Aside(lambda: False)
    found = iter(range(1, 10))
    monkeypatch.setattr(aside, "PATIENCE_S", 60.0)
    assert made.get(("a", 1), lambda: next(found), 1000.0) == 1
    assert made.get(("a", 1), lambda: next(found), 1000.0) == 1
    # An old one is shown until the new one is there.
    wait_until(lambda: made.get(("a", 1), lambda: next(found), 0.0) > 1)


def test_what_fails_is_raised_once_and_tried_again(monkeypatch):
    made = Aside(lambda: False)
    monkeypatch.setattr(aside, "PATIENCE_S", 60.0)

    def fails():
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            made.get(("a", 1), fails, 1000.0)
    assert made.get(("a", 1), lambda: 5, 1000.0) == 5


def test_no_user_keeps_others_waiting(monkeypatch):
    made, may = Aside(lambda: False), threading.Event()
    monkeypatch.setattr(aside, "PATIENCE_S", 0.01)
    begun = []

    def slow(k):
        begun.append(k)
        may.wait()
        return k

    for k in range(50):
        assert made.get((k, 1), lambda k=k: slow(k), 1000.0) is None
    assert made.get(("other", 2), lambda: "here", 1000.0) is None
    may.set()
    wait_until(lambda: made.get(("other", 2), lambda: "again", 1000.0) == "here")
    assert begun == [*range(MOST_OF_USER)]


def test_nothing_is_made_at_the_end():
    assert Aside(lambda: True).get(("a", 1), lambda: 1 / 0, 1.0) is None
