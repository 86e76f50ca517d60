"""What is sent to viewers, and the turns of users whose pages are rendered for them."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from contextlib import aclosing

from dovetail.executor.jobs.specs import Owner
from dovetail.live.page import feed as feeds
from dovetail.live.page.feed import MOST_PAGES, Feed, _Rendered

ANN, BEN = (Owner(name=name, uid=uid, gid=uid) for name, uid in (("ann", 1001), ("ben", 1002)))


def busy(seconds):
    """Use a core for a time."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


async def look(feed, address, user, until):
    """Look at a page until something is so."""
    async with aclosing(feed.events(address, user, until)) as events:
        async for _ in events:
            pass


def table(*rows, more=""):
    """Return a part with rows."""
    return "<table>" + "".join(f'<tr id="{id}"><td>{t}</td></tr>' for id, t in rows) + more


def test_rows_that_have_not_changed_are_sent_without_contents():
    one, two = ("j1", "a"), ("j2", "b")
    first = {"mine": table(one, two), "gpus": '<article id="gpu-0" class="gpu">x</article>'}
    pages = [
        first,
        first | {"mine": table(one, ("j2", "c"))},
        first | {"mine": table(("j2", "c"), one)},
        first | {"mine": table(("j2", "c"), one, more="1 more")},
        first | {"gpus": '<article id="gpu-0" class="gpu off">x</article>'},
        # A job that is shown twice, as it ended meanwhile.
        {"mine": table(one, one), "state": ""},
        {"mine": table(one, ("j1", "d")), "state": ""},
        {"mine": table(("j1", "d")), "state": ""},
    ]
    shown = [_Rendered(each) for each in ({}, *pages)]
    events = [now.event(before, "") for before, now in itertools.pairwise(shown)]
    found = [json.loads(event.partition(b"data: ")[2]) for event in events]
    assert found[0] == {"parts": first, "news": "", "names": ["mine", "gpus"]}
    assert [each["parts"] for each in found[1:]] == [
        {"mine": '<table><tr id="j1"></tr><tr id="j2"><td>c</td></tr>'},
        {"mine": '<table><tr id="j2"></tr><tr id="j1"></tr>'},
        {"mine": '<table><tr id="j2"></tr><tr id="j1"></tr>1 more'},
        {
            "mine": '<table><tr id="j1"></tr><tr id="j2"><td>b</td></tr>',
            "gpus": '<article id="gpu-0" class="gpu off"></article>',
        },
        {"mine": pages[5]["mine"], "state": ""},
        {"mine": pages[6]["mine"]},
        {"mine": pages[7]["mine"]},
    ]
    assert [each.get("names") for each in found[1:]] == [None] * 4 + [["mine", "state"], None, None]


def test_what_many_viewers_lack_is_encoded_once(monkeypatch):
    dumped = []
    real = json.dumps
    monkeypatch.setattr(feeds.json, "dumps", lambda *a, **k: dumped.append(1) or real(*a, **k))
    feed = Feed(lambda *_: {"main": "x"}, lambda _: {}, lambda: 0, lambda: False)
    taken = []

    async def one():
        async with aclosing(feed.events("/", ANN, lambda: False)) as events:
            async for event in events:
                if event.startswith(b"event: parts\n"):
                    taken.append(event)
                    return

    async def all_look():
        await asyncio.gather(*(one() for _ in range(20)))

    asyncio.run(asyncio.wait_for(all_look(), 60))
    assert len(taken) == 20
    assert len({*taken}) == len(dumped) == 1


def rendered_for(watched, until_ben_has):
    """Return for whom pages were rendered, in order, until one of the users had some."""
    turns = []

    def render(address, user):
        busy(0.02 if user == ANN else 0.0005)
        turns.append(user.name)
        return {"main": str(len(turns))}

    feed = Feed(render, lambda _: {}, lambda: len(turns), lambda: False)

    def done():
        return turns.count("ben") >= until_ben_has

    async def all_look():
        await asyncio.gather(*(look(feed, address, user, done) for address, user in watched))

    asyncio.run(all_look())
    return turns


def test_users_take_turns_page_by_page():
    many = [(f"/jobs?text={k}", ANN) for k in range(MOST_PAGES)]
    turns = rendered_for([*many, ("/", BEN)], 1)
    # Ben looked last, and is not last.
    assert turns.index("ben") <= 1


def test_a_user_with_large_pages_sees_them_less_often_and_others_do_not(monkeypatch):
    monkeypatch.setattr(feeds, "EVERY_S", 0.1)
    monkeypatch.setattr(feeds, "QUIET_S", 0.1)
    monkeypatch.setattr(feeds, "_SETTLE_S", 0.0)
    many = [(f"/jobs?text={k}", ANN) for k in range(8)]
    turns = rendered_for([*many, ("/", BEN)], 12)
    # By the budget, each page of Ann's waits 0.02 s x 2 users x 8 pages / 0.1 = 3.2 s.
    first = len(turns) - turns[::-1].index("ben")
    assert turns[:first].count("ann") <= 8 + 8


def test_a_user_looks_at_so_many_pages_at_most():
    feed = Feed(lambda *_: {"main": ""}, lambda _: {}, lambda: 0, lambda: False)

    async def fill():
        opened = [feed.events(f"/jobs/j{k}", ANN, lambda: False) for k in range(MOST_PAGES)]
        for each in opened:
            await anext(each)
        try:
            return [
                feed.has_room("/plan", ANN),
                feed.has_room("/jobs/j1", ANN),
                feed.has_room("/plan", BEN),
            ]
        finally:
            for each in opened:
                await each.aclose()

    assert asyncio.run(fill()) == [False, True, True]
