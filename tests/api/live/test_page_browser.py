"""The page of the service in a real browser."""

from __future__ import annotations

import pytest

from tests.api.browser import browser
from tests.api.live.services import ME, TOKENS, job, service_here
from tests.executor.waiting import wait_until

MARKUP = '<script>document.title="x"</script><img src=x onerror="document.title=1">'
LISTEN = """window.heard = ''; new MutationObserver(
  () => { heard += document.getElementById('said').textContent + '; ' }
).observe(document.getElementById('said'), {childList: true}); true"""
"""Keeps all that a screen reader would say: news that come later replace it on the page."""
PATHS = ("/", "/jobs", "/jobs/j1", "/jobs/j3", "/gpus", "/gpus/n0-0", "/plan")


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def log_in(tab, live):
    tab.send("Network.clearBrowserCookies")
    tab.look(1280)
    tab.goto(f"{live.url}/login")
    tab.value(
        f"document.getElementById('token').value = '{TOKENS[ME]}'; document.forms[0].submit()"
    )
    tab.until("location.pathname === '/' && document.readyState === 'complete'")


def test_a_page_fits_is_quiet_and_runs_nothing_of_a_user(live, tab):
    hostile = job(name=MARKUP, command=["train", "work_s=600", MARKUP], gsla=1.4)
    live.client.submit([job(command=["train", "work_s=600"])] * 2 + [hostile])
    log_in(tab, live)
    for path in PATHS:
        for width in (390, 1280):
            for dark in (False, True):
                tab.look(width, dark=dark)
                tab.goto(live.url + path)
                where = path, width, dark
                assert tab.value("document.documentElement.scrollWidth") <= width, where
                assert tab.value("document.images.length") == 0, where
                assert "Dovetail" in tab.value("document.title"), where
                ground = tab.value("getComputedStyle(document.body).backgroundColor")
                assert (ground == "rgb(16, 21, 27)") == dark, where
                assert tab.complaints() == [], where
    tab.goto(live.url + "/jobs/j3")
    assert MARKUP[:30] in tab.value("document.body.innerText")


def test_an_event_reaches_the_page_and_keeps_what_a_reader_does(live, tab):
    live.client.submit([job(command=["train", "work_s=600"])] * 3)
    wait_until(lambda: live.client.job("j1").gpus)
    log_in(tab, live)
    tab.goto(live.url + "/jobs/j1")
    tab.until("document.getElementById('live').textContent === 'live'")
    watched = live.answering.state.pages.feed._watched
    # News are what has changed since a page was rendered first, not the page that was left.
    wait_until(lambda: any(one.states for (page, _), one in [*watched.items()] if "j1" in page))
    tab.value("document.getElementById('do-cancel').open = true; document.body.marked = 1")
    tab.value("document.querySelector('#do-cancel button').focus()")
    tab.value(LISTEN)
    live.client.pause("j1")
    tab.until("document.querySelector('#state .state').textContent === 'paused'")
    tab.until("heard.includes('j1 paused')")
    assert tab.value("document.getElementById('do-cancel').open")
    assert tab.value("document.activeElement.textContent") == "cancel j1"
    assert tab.value("document.body.marked") == 1
    # The button works: a form, with the browser's own headers.
    tab.value("document.querySelector('#do-cancel button').click()")
    wait_until(lambda: live.client.job("j1").state.value == "cancelled")


def test_a_job_that_starts_shows_its_promise_and_place_without_a_reload(live, tab):
    live.client.submit([job(command=["train", "work_s=600"])])
    live.client.submit([{**job(command=["train", "work_s=600"]), "after_any": ["j1"]}])
    log_in(tab, live)
    tab.goto(live.url + "/jobs/j2")
    tab.until("document.getElementById('live').textContent === 'live'")
    sections = "[...document.querySelectorAll('main > section')].map(e => e.id).join()"
    assert tab.value(sections) == "state,explanation,log,history,facts"
    tab.value("document.body.marked = 1")
    live.client.cancel("j1", 0.0)
    tab.until(f"{sections} === 'state,promise,where,log,history,facts'")
    tab.until("document.getElementById('where').textContent.includes('Where it runs')")
    tab.until("document.getElementById('promise').textContent.includes('gSLA')")
    assert tab.value("document.body.marked") == 1


def test_rows_change_while_a_filter_is_typed_and_others_stay(live, tab):
    live.client.submit([job(command=["train", "work_s=600"])] * 2)
    wait_until(lambda: live.client.job("j2").gpus)
    log_in(tab, live)
    tab.goto(live.url + "/jobs")
    tab.until("document.getElementById('live').textContent === 'live'")
    tab.value("document.forms[document.forms.length - 1].user.focus()")
    tab.value("document.activeElement.value = 'ali'; document.getElementById('j2').marked = 1")
    live.client.pause("j1")
    tab.until("document.querySelector('#j1 .state').textContent === 'paused'")
    assert tab.value("document.activeElement.value") == "ali"
    assert tab.value("document.getElementById('j2').marked") == 1
    # That row came empty.
    assert tab.value("document.querySelector('#j2 a').textContent") == "j2"
    live.client.resume("j1")
    tab.until("document.querySelector('#j1 .state').textContent === 'running'")
    assert tab.value("document.querySelector('#j2 a').textContent") == "j2"


def test_a_lost_connection_is_said_and_mended(short_path, tab):
    with service_here(short_path, short_path / "api.sock") as live:
        live.client.submit([job(command=["train", "work_s=600"])])
        log_in(tab, live)
        tab.until("document.getElementById('live').textContent === 'live'")
        feed = live.answering.state.pages.feed
        for watched in list(feed._watched.values()):
            for viewer in watched.viewers:
                viewer.gone = "for a test"
        tab.until("document.getElementById('live').textContent === 'connection lost'")
        tab.until("document.getElementById('live').textContent === 'live'")
    tab.until("document.getElementById('live').textContent === 'connection lost'")


def test_without_scripts_a_page_is_complete(live, tab):
    live.client.submit([job(command=["train", "work_s=600"])] * 3)
    wait_until(lambda: live.client.job("j1").gpus)
    log_in(tab, live)
    tab.look(1280, script=False)
    tab.goto(live.url + "/jobs/j3")
    text = tab.value("document.body.innerText")
    assert "What would let it start" in text
    assert tab.value("document.querySelector('#live a').textContent") == "refresh"
    tab.look(1280)
