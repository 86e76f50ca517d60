"""Readers of pages for tests: a parser, and a browser where one is installed."""

from __future__ import annotations

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.executor.waiting import LIMIT_S

VOID = {"meta", "link", "input"}


class Page(HTMLParser):
    """Reads a page, insisting that every tag is closed in its turn."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self.row_heads: dict[str, list[str]] = {}
        self.section = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append((tag, given))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section" and given.get("id"):
            self.section = given["id"]
        if tag == "th" and given["scope"] == "row":
            self.row_heads.setdefault(self.section, []).append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        place = self.section if "section" in self.open else "".join(self.open[-1:])
        self.text[place] = self.text.get(place, "") + data
        if "th" in self.open and "tbody" in self.open and "small" not in self.open:
            self.row_heads[self.section][-1] += data


def in_browser(html: str, folder: Path, width: int) -> tuple[str, str]:
    """Open a page in headless Chromium; return the document it made and what it logged."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium or google-chrome to open the page in")
    page = folder / "report.html"
    page.write_text(html, encoding="utf-8")
    done = subprocess.run(
        [
            program,
            *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *("--enable-logging=stderr", "--virtual-time-budget=2000", "--dump-dom"),
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={width},2000",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    return done.stdout, done.stderr
