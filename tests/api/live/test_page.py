"""The page of the service over real sockets: who sees what, who may change what, from where."""

from __future__ import annotations

import base64
import hashlib
import pwd
import random
import re
import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from itertools import product

import httpx
import pytest

from dovetail.executor.jobs.specs import JobSpec
from dovetail.executor.jobs.states import OVER, JobState
from dovetail.instances.errors import DovetailError
from dovetail.live.http.connections import owner_of
from dovetail.live.job_words import state_text
from dovetail.live.page.actions import ACTIONS, allowed
from dovetail.live.page.door import Door
from dovetail.live.page.parts import _concerns
from dovetail.live.page.sessions import MOST_OF_USER, Sessions
from tests.api.live.services import ME, OTHER, TOKENS, job, service_here
from tests.api.live.test_tables import job as view
from tests.api.live.test_tables import service
from tests.api.pages import Page
from tests.executor.waiting import LIMIT_S, wait_until

MOST_BYTES = 60_000
MARKUP = '<script>document.title="x"</script><img src=x onerror=alert(1)>"\'&'
HOSTILE = MARKUP + "\u202egnp.exe\x1b[2J" + "é" * 300
PATHS = ("/", "/jobs", "/jobs/j1", "/gpus", "/gpus/n0-0", "/plan")


def owner(name):
    user = pwd.getpwnam(name)
    return owner_of(user.pw_uid, user.pw_gid)


@contextmanager
def browser(live, user=None):
    """Yield a client of the page, logged in over TCP as a user."""
    with httpx.Client(base_url=live.url, timeout=LIMIT_S) as client:
        if user is not None:
            answer = client.post("/login", data={"token": TOKENS[user]}, headers=here(live))
            assert answer.status_code == 200, answer.text
        yield client


def here(live):
    return {"Origin": live.url}


def local(live):
    """Return a client over the socket, as the user of this process."""
    transport = httpx.HTTPTransport(uds=live.socket)
    return httpx.Client(transport=transport, base_url="http://localhost", timeout=LIMIT_S)


def line_of(answer):
    return re.search(r"<section><p>(.*?)</p>", answer.text, re.DOTALL)[1]


# Pages.


def test_every_page_is_well_formed_and_safe_for_browsers(live):
    live.client.submit([job(name="a <b>", gsla=1.5), job(workload="bert")])
    with local(live) as client:
        for path in PATHS:
            answer = client.get(path)
            assert answer.status_code == 200, path
            page = Page(answer.text)
            tags = [tag for tag, _ in page.tags]
            assert {"main", "nav", "h1"} & set(tags) >= {"main", "nav"}, path
            assert tags.count("style") == 1
            assert not any("style" in given for _, given in page.tags)
            assert not any(name.startswith("on") for _, given in page.tags for name in given)
            assert [
                given for tag, given in page.tags if tag == "script" and "src" not in given
            ] == []
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            for rule in ("form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
                assert rule in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["cache-control"] == "no-store"


def test_a_service_says_where_it_is_and_whether_it_answers(live):
    live.client.submit([job(service=True, priority="latency", probe="http://127.0.0.1:{port}/")])
    wait_until(lambda: live.client.job("j1").address)
    with local(live) as client:
        shown = Page(client.get("/jobs/j1").text).text["serving"]
        # The plan for the next hour is worked out aside.
        wait_until(lambda: "<td>never</td><td>a service</td>" in client.get("/plan").text)
    seen = live.client.job("j1")
    assert "one replica" in shown
    assert seen.address in shown
    assert "http://127.0.0.1:{port}/" in shown


def test_services_that_fail_or_do_not_answer_need_attention():
    running = view(state=JobState.RUNNING, service=True, ready=False)
    resting = view(id="j2", state=JobState.WAITING, service=True, quick_ends=5, again_s=9.0)
    said = [*_concerns(service(), [running], [running, resting], [])]
    assert [(concern.name, concern.kind) for concern in said if concern.name in ("j1", "j2")] == [
        ("j1", "warn"),
        ("j2", "bad"),
    ]
    assert [state_text(each) for each in (running, resting)] == ["running, not ready", "failing"]


def test_later_ends_hide_no_failed_job(live):
    live.client.submit([job(command=["train", "work_s=0.1", "status=3"])])
    wait_until(lambda: live.client.job("j1").state is JobState.FAILED)
    for later in live.client.submit([job(command=["train", "work_s=600"])] * 25):
        live.client.cancel(later)
    wait_until(lambda: not live.client.jobs())
    with local(live) as client:
        assert "j1" in Page(client.get("/").text).text["attention"]


def test_what_users_write_is_shown_and_does_nothing(live):
    live.client.submit([job(name=MARKUP, command=["train", HOSTILE], workload="resnet")])
    with local(live) as client:
        for path in PATHS:
            text = client.get(path).text
            assert "<script>document" not in text
            assert "<img" not in text
            assert "\u202e" not in text
            assert "\x1b" not in text
        shown = client.get("/jobs/j1").text
        assert "&lt;script&gt;" in shown
        assert "\\u202e" in shown
        assert client.get("/jobs", params={"text": HOSTILE}).status_code == 200


def test_a_first_look_is_light(live):
    live.client.submit([job(name=f"train-{k}", gsla=1.3) for k in range(50)])
    with local(live) as client:
        html = client.get("/")
        assert html.text.count('id="j') == 50
        links = re.findall(r'(?:href|src)="(/static/[^"]+)"', html.text)
        # Its style sheet is in it, so that its first paint waits for no other request.
        assert len(links) == 2
        (style,) = re.findall(r"<style>(.*?)</style>", html.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        assert f"style-src 'sha256-{digest}';" in html.headers["content-security-policy"]
        files = [client.get(link) for link in links]
        assert all(each.headers["cache-control"].startswith("public") for each in files)
        assert len(html.content) + sum(len(each.content) for each in files) <= MOST_BYTES


def test_a_list_of_jobs_is_filtered_and_paged(live):
    live.client.submit([job(name=f"a{k}") for k in range(70)])
    live.client.hold("j70")
    with local(live) as client:
        first = client.get("/jobs?mine=1&state=").text
        assert first.count('<tr id="j') == 50
        older = re.search(r'href="(/jobs\?[^"]*before=[^"]*)"', first)[1].replace("&amp;", "&")
        second = client.get(older).text
        assert second.count('<tr id="j') == 20
        assert set(re.findall(r'<tr id="(j\d+)"', first + second)) == {
            f"j{k}" for k in range(1, 71)
        }
        assert re.findall(r'<tr id="(j\d+)"', client.get("/jobs?text=A69").text) == ["j70"]
        assert client.get("/jobs?user=nobody-there").text.count('<tr id="j') == 0
        refused = client.get("/jobs?state=asleep")
        assert refused.status_code == 422
        assert "must be the state of a job" in refused.text


def test_errors_are_small_pages_with_the_line_of_the_api(live):
    with local(live) as client:
        answer = client.get("/jobs/j9")
        assert (answer.status_code, line_of(answer)) == (404, "no job &#39;j9&#39;")
        assert client.get("/gpus/none").status_code == 404
        assert client.get("/static/../api.py").status_code == 404
        assert client.get("/jobs?before=x").status_code == 422
        # The API's paths answer as ever.
        assert client.get("/v1/jobs/j9").json()["kind"] == "unknown_job"
        assert client.get("/nothing").json()["kind"] == "http"


# Who is there.


def test_over_tcp_a_browser_logs_in_with_a_token(live):
    with browser(live) as client:
        assert client.get("/").headers["location"] == "/login"
        assert client.get("/events").status_code == 401
        wrong = client.post("/login", data={"token": "x" * 30}, headers=here(live))
        assert wrong.status_code == 401
        assert "not known" in wrong.text
        begun = client.post("/login", data={"token": TOKENS[OTHER]}, headers=here(live))
        cookie = begun.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert OTHER in client.get("/").text
        # The cookie also reads from the API, but changes nothing there.
        read = client.get("/v1/service")
        assert read.status_code == 200
        assert read.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in read.headers["content-security-policy"]
        assert client.head("/jobs").status_code == 200
        changed = client.post("/v1/drain", json={"gpus": [], "on": True}, headers=here(live))
        assert changed.status_code == 401
        assert client.post("/logout", headers=here(live)).status_code == 303
        assert client.get("/").headers["location"] == "/login"
        name, _, secret = cookie.partition(";")[0].partition("=")
        assert name == f"dovetail_session_{client.base_url.port}"
        client.cookies.set(name, secret)
        assert client.get("/").status_code == 303


def test_a_token_may_also_be_in_the_header(live):
    bearer = {"Authorization": f"Bearer {TOKENS[OTHER]}"}
    assert httpx.get(f"{live.url}/", headers=bearer).status_code == 200
    wrong = {"Authorization": "Bearer nonsense"}
    assert httpx.get(f"{live.url}/", headers=wrong).status_code == 401


def test_every_answer_to_a_browser_is_safe(live):
    paths = ("/", "/login", "/static/none", "/jobs/", "/v1/jobs", "/nothing")
    for user, host in product((None, ME), ("127.0.0.1", "evil.example")):
        with browser(live, user) as client:
            for path in paths:
                answer = client.get(path, headers={"Host": host})
                assert "frame-ancestors 'none'" in answer.headers["content-security-policy"], path
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert answer.headers["cache-control"] == "no-store"


def test_programs_get_no_headers_for_browsers(live):
    with local(live) as client:
        assert "content-security-policy" not in client.get("/v1/service").headers
    bearer = {"Authorization": f"Bearer {TOKENS[OTHER]}"}
    assert "content-security-policy" not in httpx.get(f"{live.url}/v1/jobs", headers=bearer).headers


def test_a_session_behind_tls_is_never_sent_without(live):
    for scheme in ("http", "https"):
        origin = {"Origin": f"{scheme}://{live.url.partition('://')[2]}"}
        answer = httpx.post(f"{live.url}/login", data={"token": TOKENS[ME]}, headers=origin)
        assert answer.status_code == 200
        assert answer.headers["set-cookie"].endswith("; Secure") == (scheme == "https")


def unfinished_login(live):
    """Return a connection with the beginning of a form to log in."""
    host, port = live.url.removeprefix("http://").split(":")
    raw = socket.create_connection((host, int(port)))
    head = f"POST /login HTTP/1.1\r\nHost: {host}:{port}\r\nSec-Fetch-Site: same-origin\r\n"
    raw.sendall(f"{head}Content-Length: 100\r\n\r\ntoken=".encode())
    return raw


def test_unfinished_forms_do_not_keep_users_from_logging_in(live):
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(unfinished_login(live))
        with browser(live, ME) as client:
            assert client.get("/jobs").status_code == 200


def test_a_form_that_breaks_off_is_no_fault_of_the_service(live, caplog):
    for _ in range(3):
        unfinished_login(live).close()
    with browser(live, ME) as client:
        assert client.get("/").status_code == 200
    assert "ClientDisconnect" not in caplog.text


def test_the_end_of_a_session_ends_its_events(live):
    with browser(live, ME) as client, browser(live, ME) as other:
        params, feed = {"page": "/"}, live_feed(live)
        with (
            client.stream("GET", "/events", params=params) as ending,
            other.stream("GET", "/events", params=params) as staying,
        ):
            lines = [each.iter_lines() for each in (ending, staying)]
            assert [next(each) for each in lines] == ["retry: 2000"] * 2
            # Events that somebody has begun to read with a copied cookie end, too.
            cookies = dict(client.cookies)
            httpx.post(f"{live.url}/logout", headers=here(live), cookies=cookies)
            wait_until(lambda: feed._viewers == 1)
            assert any("parts" in line for line in lines[1])
        wait_until(lambda: feed._viewers == 0)


def test_a_session_ends_by_itself_and_their_number_is_bounded():
    now = [0.0]
    sessions, user = Sessions(lambda: now[0]), owner(ME)
    opened = [sessions.begin(user) for _ in range(MOST_OF_USER + 3)]
    known = [sessions.user(each) for each in opened]
    assert known == [None] * 3 + [user] * MOST_OF_USER
    now[0] = 12 * 3600.0 + 1
    assert sessions.user(opened[-1]) is None


def test_a_link_lets_in_once_and_soon():
    now = [0.0]
    sessions, user = Sessions(lambda: now[0]), owner(ME)
    link, late = sessions.link(user), sessions.link(user)
    assert sessions.enter("x" * 43) is None
    assert sessions.user(sessions.enter(link)) == user
    assert sessions.enter(link) is None
    now[0] = 3601.0
    assert sessions.enter(late) is None


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "127.0.0.1.nip.io"])
def test_names_that_are_not_ours_are_refused(live, host):
    with browser(live, ME) as client:
        answer = client.get("/", headers={"Host": host})
        assert answer.status_code == 403
        # Nor does the session read the API under such a name.
        assert client.get("/v1/jobs", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "OURS"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_a_change_comes_from_our_own_page(live, given):
    live.client.submit([job(), job(), job()])
    headers = {name: live.url if value == "OURS" else value for name, value in given.items()}
    with browser(live, ME) as client:
        for path in ("/jobs/j1/cancel", "/jobs/j3/hold", "/logout", "/login"):
            answer = client.post(path, headers=headers, data={"token": TOKENS[ME]})
            assert (answer.status_code, "own page" in answer.text or "a page" in answer.text) == (
                403,
                True,
            )
        assert client.get("/").status_code == 200
    assert live.client.job("j1").state not in OVER


@pytest.mark.parametrize("host", ["GPU01.Example.org", "gpu01.example.org:8771"])
def test_names_are_alike_in_small_and_capital_letters(host):
    door = Door(None, Sessions(), ["Gpu01.example.ORG"])
    assert door._is_ours({b"host": host.encode()})


# Who may do what.


@pytest.fixture
def many(live):
    """Return a service with jobs of both users in several states."""
    for user in (ME, OTHER):
        specs = [JobSpec.from_data({**job(command=["train", "work_s=600"]), "owner": owner(user)})]
        specs += [JobSpec.from_data({**job(requeue=False), "owner": owner(user)})]
        specs += [JobSpec.from_data({**job(workload="bert"), "owner": owner(user)})] * 2
        live.service.api.submit(specs, owner(user))
    wait_until(lambda: sum(bool(each.gpus) for each in live.client.jobs()) >= 2)
    waiting = [each.id for each in live.client.jobs() if each.state.value == "submitted"]
    live.client.hold(waiting[0])
    live.client.cancel(waiting[1])
    return live


@pytest.mark.parametrize("who", [ME, OTHER])
def test_the_page_offers_exactly_what_the_service_does(many, who):
    api, by = many.service.api, owner(who)
    names = [each.id for each in api.jobs(True)]
    with browser(many, who) as client:
        for name in names:
            offered = {action.name for action in allowed(api.job(name, by), by)}
            text = client.get(f"/jobs/{name}").text
            assert set(re.findall(rf'action="/jobs/{name}/(\w+)"', text)) == offered
    tried = 0
    for name in names:
        for action in ACTIONS.values():
            before = api.job(name, by)
            assert (action in allowed(before, by)) == makes(api, action, name, by), (name, action)
            tried += api.job(name) != before
    assert tried


def makes(api, action, name, by):
    """Return whether the service makes a change that is more than nothing."""
    asked = api._live.requests.ask
    made = []

    def noted(events, answer):
        def carried():
            made.extend(found := events())
            return found

        return asked(carried, answer)

    api._live.requests.ask = noted
    try:
        action.make(api, name, by)
    except DovetailError:
        return False
    finally:
        api._live.requests.ask = asked
    return bool(made)


def test_a_job_is_changed_by_a_form_and_shown(live):
    live.client.submit([job(command=["train", "work_s=600"])] * 3)
    wait_until(lambda: live.client.job("j1").gpus)
    with browser(live, ME) as client:
        answer = client.post("/jobs/j3/hold", headers=here(live))
        assert answer.headers["location"] == "/jobs/j3"
        assert live.client.job("j3").held == ME
        refused = client.post("/jobs/j1/hold", headers=here(live))
        assert (refused.status_code, "may be held while it waits" in refused.text) == (403, True)
        page = client.get("/jobs/j1").text
        assert "<details" in page
        client.post("/jobs/j1/cancel", headers=here(live))
        wait_until(lambda: live.client.job("j1").state is JobState.CANCELLED)
    with browser(live, OTHER) as client:
        assert client.post("/jobs/j3/cancel", headers=here(live)).status_code == 403


def test_a_private_service_shows_others_what_the_api_shows(short_path):
    secrets = ("secret-name", "/secret-folder", "secret-word")
    with service_here(short_path, short_path / "api.sock", private=True) as live:
        name, cwd, word = secrets
        spec = {**job(name=name, command=["train", "work_s=600"], cwd=cwd), "owner": owner(ME)}
        spec["output"] = word
        live.service.api.submit([JobSpec.from_data(spec)] * 4, owner(ME))
        with browser(live, ME) as mine:
            assert name in mine.get("/jobs/j1").text
        with browser(live, OTHER) as client:
            for path in (*PATHS, "/jobs/j4", "/jobs?text=secret", "/jobs?over=1", "/gpus/n0-1"):
                text = client.get(path).text.replace('value="secret"', "")
                assert not any(each in text for each in secrets), path
            assert "j1" not in re.findall(r'<tr id="(\w+)"', client.get("/jobs?text=secret").text)
            events = first_event(client, "/jobs/j4")
            assert not any(each in events for each in secrets)
            shown = client.get("/jobs/j4").text
            assert "a private service explains jobs" in shown


# Changes.


def first_event(client, page, matches=lambda text: True):
    """Return the first event of a page that matches."""
    with client.stream("GET", "/events", params={"page": page}) as answer:
        assert answer.status_code == 200
        seen = ""
        for line in answer.iter_lines():
            if line.startswith("data: ") and matches(line):
                return line
            seen += line
    raise AssertionError(f"ended after {seen[-500:]}")


def test_an_event_is_sent_to_all_who_look(live):
    live.client.submit([job(command=["train", "work_s=600"])] * 3)
    found = []

    def look(user):
        with browser(live, user) as client:
            found.append(first_event(client, "/", lambda text: "held by" in text))

    threads = [threading.Thread(target=look, args=(user,)) for user in (ME, ME, OTHER)]
    for thread in threads:
        thread.start()
    feed = live_feed(live)
    wait_until(lambda: feed._viewers == 3)
    live.client.hold("j3")
    for thread in threads:
        thread.join(LIMIT_S)
    assert len(found) == 3
    wait_until(lambda: feed._viewers == 0)
    assert feed._watched == {}


def test_a_user_who_opens_many_pages_at_once_occupies_one_thread(live, monkeypatch):
    pages, at_once, most = live.answering.state.pages, [], []
    view = pages.view

    def slow(address, by):
        if address == "/gpus":
            at_once.append(address)
            most.append(len(at_once))
            time.sleep(0.02)
            at_once.pop()
        return view(address, by)

    monkeypatch.setattr(pages, "view", slow)
    with ExitStack() as stack:
        for _ in range(20):
            raw = stack.enter_context(socket.socket(socket.AF_UNIX))
            raw.connect(live.socket)
            raw.sendall(b"GET /events?page=/gpus HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: live_feed(live)._viewers == 20)
    # One more may be rendered for those who look already.
    assert max(most) <= 2


@pytest.mark.parametrize("page", ["http://[x", "//[", "[", "/jobs?text=[", "?", "%"])
def test_what_is_no_page_has_no_events(live, page):
    with browser(live, ME) as client, client.stream("GET", "/events", params={"page": page}) as got:
        assert got.status_code == (200 if page in ("?", "/jobs?text=[") else 404)


def live_feed(live):
    return live.answering.state.pages.feed


def test_a_viewer_who_does_not_read_is_disconnected(live, monkeypatch):
    from dovetail.live.http import guards

    monkeypatch.setattr(guards, "TAKEN_S", 0.3)
    live.client.submit([job(name="n" * 100, command=["train", "work_s=600"])] * 60)
    feed = live_feed(live)
    with socket.socket(socket.AF_UNIX) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        raw.connect(live.socket)
        raw.sendall(b"GET /events?page=/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: feed._viewers == 1)
        monkeypatch.setattr(feed, "_render", lambda *_: {"mine": f"{time.monotonic()}" * 50_000})
        wait_until(lambda: feed._viewers == 0)


def test_viewers_do_not_keep_a_service_from_ending(short_path):
    with service_here(short_path, short_path / "api.sock") as live:
        transport = httpx.HTTPTransport(uds=live.socket)
        client = httpx.Client(transport=transport, base_url="http://localhost", timeout=LIMIT_S)
        stream = client.stream("GET", "/events", params={"page": "/"})
        answer = stream.__enter__()
        assert answer.status_code == 200
    stream.__exit__(None, None, None)
    client.close()


# Whatever is asked.

WORDS = ("", "/", "%00", "%ff", "..", "%2e%2e", "j1", "j0", "j" + "9" * 20, "<x>", "a" * 3000)
METHODS = ("GET", "GET", "GET", "GET", "HEAD", "POST", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
BODIES = (b"", b"token=" + b"x" * 100, b"\xff" * 50, b"a=1&" * 3000, b"&" * 99)
HEADERS = (
    (b"Host: 127.0.0.1", b"Host: localhost:80", b"Host: evil.example", b"Host: [", b"Host: \xff"),
    (b"Origin: http://127.0.0.1", b"Origin: null", b"Origin: \xff", b"X: y"),
    (b"Cookie: dovetail_session_0=\xff", b"Cookie: =;;==", b"X: y"),
    (b"Sec-Fetch-Site: same-origin", b"X: y"),
)


def anything(chance):
    """Return a random request to the page."""

    def word():
        return chance.choice(WORDS)

    paths = (
        "/",
        f"/jobs?text={word()}&state={word()}&before={word()}",
        "/jobs?" + "&".join(f"a{k}=1" for k in range(chance.choice((1, 50)))),
        f"/jobs/{word()}",
        f"/jobs/{word()}/{chance.choice((*ACTIONS, word()))}",
        f"/gpus/{word()}",
        "/gpus",
        "/plan",
        f"/events?page={word()}",
        "/login",
        f"/login/{word()}",
        "/logout",
        f"/static/{word()}",
    )
    body = chance.choice(BODIES)
    lines = [f"{chance.choice(METHODS)} {chance.choice(paths)} HTTP/1.1".encode()]
    lines += [b"Connection: close", b"Content-Length: %d" % len(body)]
    lines += map(chance.choice, HEADERS)
    return b"\r\n".join([*lines, b"", body])


def fuzzed(live, count, seed):
    """Send random requests over the socket and over TCP; return the statuses."""
    chance, found = random.Random(seed), {}
    host, port = live.url.removeprefix("http://").split(":")
    live.client.submit([job(), job()])
    for _ in range(count):
        request = anything(chance)
        if chance.random() < 0.5:
            raw = socket.socket(socket.AF_UNIX)
            raw.connect(live.socket)
        else:
            raw = socket.create_connection((host, int(port)))
        with raw:
            raw.settimeout(LIMIT_S)
            answer = b""
            try:
                raw.sendall(request)
                while b"\r\n" not in answer and (chunk := raw.recv(4096)):
                    answer += chunk
            except (BrokenPipeError, ConnectionResetError):
                pass
        status = int(answer.split(b" ", 2)[1]) if answer else None
        found[status] = found.get(status, 0) + 1
        assert status is None or status < 500, (request[:500], status)
    return found


def test_whatever_is_asked_of_the_page_it_answers(live):
    found = fuzzed(live, 300, "short")
    assert {200, 303, 401, 403, 404, 405, 422} <= found.keys()


@pytest.mark.long
def test_whatever_is_asked_often_of_the_page_it_answers(live):
    print(fuzzed(live, 12_000, "long"))
