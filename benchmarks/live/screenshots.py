"""Make the pictures of the service's page that the documentation shows.

    python benchmarks/live/screenshots.py [FOLDER]

``page.png``: eight made-up devices and fifty made-up jobs. ``page-pair.png``: the page of a job in
the second round of the tutorial of live mode, whose twelve jobs run for real on one core. Written
to docs/images unless FOLDER says otherwise. Needs Chromium and about two minutes.
"""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from live_tutorial import Tutorial
from page_service import TOKEN, shown

from dovetail.live.client import Client
from tests.api.browser import Browser, browser
from tests.executor.waiting import wait_until

IMAGES = Path(__file__).parents[2] / "docs" / "images"
WIDTH = 1280
LIVE = "document.getElementById('live').textContent === 'live'"
TENTHS = 60


def picture(tab: Browser, url: str, path: Path, height: int) -> None:
    """Write a picture of the top of a page."""
    tab.goto(url)
    tab.until(LIVE)
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1}
    made = tab.send("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
    path.write_bytes(base64.b64decode(made["data"]))
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB", flush=True)


def of_many(tab: Browser, folder: Path) -> None:
    """Show the overview of a made-up pool, once pairs were measured."""
    with shown() as running, Client(str(running.socket)) as client:
        wait_until(lambda: sum(job.slowdown is not None for job in client.jobs()) >= 12)
        tab.goto(f"{running.url}/login")
        tab.value(f"document.getElementById('token').value = '{TOKEN}'; document.forms[0].submit()")
        tab.until("location.pathname === '/' && document.readyState === 'complete'")
        picture(tab, running.url + "/", folder / "page.png", 900)


@contextmanager
def page_of(service: Path) -> Iterator[str]:
    """Run ``dovetail page`` in front of a service; yield its link."""
    command = [sys.executable, "-m", "dovetail", "page"]
    env = {"DOVETAIL_SERVICE": str(service)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield next(filter(None, (link(line) for line in process.stdout)))
        finally:
            process.terminate()


def link(line: str) -> str:
    """Return the link in a line; empty if there is none."""
    found = re.search(r"http://\S+", line)
    return found[0] if found else ""


def of_the_tutorial(tab: Browser, folder: Path) -> None:
    """Show a job of the second round while it shares the core, and its slowdown is measured."""
    with tempfile.TemporaryDirectory(prefix="dove-") as home:
        tutorial = Tutorial(Path(home))
        with tutorial.service():
            tutorial.run(TENTHS)
            second = threading.Thread(target=tutorial.run, args=(TENTHS,))
            second.start()
            service = tutorial.home / "api.sock"
            with Client(str(service)) as client, page_of(service) as entrance:
                wait_until(lambda: shared(client))
                job = shared(client)
                tab.goto(entrance)
                tab.until("location.pathname === '/'")
                base = entrance.partition("/enter/")[0]
                picture(tab, f"{base}/jobs/{job}", folder / "page-pair.png", 800)
            second.join()


def shared(client: Client) -> str:
    """Return a job of the second round that shares the core and was measured; empty if none is."""
    found = (job for job in client.jobs() if any(job.co_runners) and job.slowdown is not None)
    return next((job.id for job in found if int(job.id[1:]) > 12), "")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as tab:
        tab.look(WIDTH)
        of_many(tab, folder)
        of_the_tutorial(tab, folder)


if __name__ == "__main__":
    main()
