"""The documentation is correct: its code runs, and its commands print the output shown.

Conventions of a page, in the order in which a reader meets them:

- a block below a line ```NAME`:`` is a file NAME, written before what follows;
- in a ``console`` block, lines after ``$`` are run in the page's folder; what is shown below has
  to come out, where a line ``...`` matches any lines, ``...`` at the end of a line for its
  rest, and times may differ; ``$ echo $?`` shows
  the exit status of the command before it, which is 0 where nothing is shown;
- a command that ends in ``&`` starts a service, which the page's other commands then mean; it is
  ended behind the page;
- ``python`` blocks share one namespace; a ``text`` block directly below is what they print;
- other blocks (``sh``, ``text``) are for reading.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

import dovetail
from dovetail.cli.main import main
from dovetail.instances import builder
from dovetail.solver.policies.registry import policy_class, policy_names
from tests.executor.waiting import LIMIT_S, wait_until

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"(?:^`([^`\n]+)`:\n\n)?^```(\w+)?(.*?)\n(.*?)^```$", re.M | re.S)
FOR_A_SHELL = re.compile(r"[|&;<>$]|python:")
"""Commands that need one, and those that import a class of the page's: modules are kept."""

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
VARYING = (
    (re.compile(r"\b\d+(\.\d+)? m?s\b"), "# s"),
    (re.compile(r'("runtime_s": )[\d.e-]+'), r"\1#"),
)

every_page = pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: str(page.relative_to(ROOT)).replace("/", "-")
)


class Block(NamedTuple):
    language: str
    file: str
    text: str
    end: int


def blocks(page):
    """Return the fenced blocks of a page."""
    return [
        Block(found[2] or "", found[1] or "", found[4], found.end())
        for found in FENCE.finditer(page.read_text(encoding="utf-8"))
    ]


@every_page
def test_its_files_commands_and_code_do_what_it_shows(page, tmp_path, monkeypatch, home):
    monkeypatch.chdir(tmp_path)
    page_blocks = blocks(page)
    namespace = {"__name__": "page"}
    for k, block in enumerate(page_blocks):
        if block.file:
            path = tmp_path / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        if block.language == "console":
            for command in commands(block.text):
                run(command, tmp_path)
        elif block.language == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(block.text, f"{page.name}, block {k}", "exec"), namespace)
            below = page_blocks[k + 1] if k + 1 < len(page_blocks) else None
            between = page.read_text(encoding="utf-8")[block.end :].lstrip("\n")
            if below and below.language == "text" and between.startswith("```text"):
                shows(block.text, below.text.splitlines(), printed.getvalue())


@pytest.fixture
def home(monkeypatch):
    """Return the state directory of a page's service, with a name short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="dove-") as folder:
        monkeypatch.setenv("DOVETAIL_HOME", folder)
        yield Path(folder)
        announced = Path(folder) / "service.json"
        if announced.exists():
            os.kill(json.loads(announced.read_text())["pid"], signal.SIGTERM)
            wait_until(lambda: not announced.exists())


class Command(NamedTuple):
    line: str
    shown: list[str]
    status: int


def commands(text):
    """Return the commands of a console block, each with the output shown below it."""
    found = []
    lines = text.splitlines()
    while lines:
        line = lines.pop(0)
        assert line.startswith("$ "), f"a console block starts with a command, got {line!r}"
        shown = []
        while lines and not lines[0].startswith("$ "):
            shown.append(lines.pop(0))
        if line == "$ echo $?":
            found[-1] = found[-1]._replace(status=int(shown[0]))
        else:
            assert line.startswith("$ dovetail "), f"only dovetail is run here, got {line!r}"
            found.append(Command(line[2:], shown, 0))
    return found


def run(command, folder):
    """Run a command and compare its output and exit status with the page."""
    call = run_by_shell if FOR_A_SHELL.search(command.line) else run_here
    status, printed = call(command.line, folder)
    assert status == command.status, f"{command.line}\n{printed}"
    if command.line.endswith("&"):
        announced = Path(os.environ["DOVETAIL_HOME"]) / "service.json"
        wait_until(announced.exists, "the service has not started")
    if command.shown:
        shows(command.line, command.shown, printed)


def run_here(line, folder):
    """Return exit status and output of a command, run in this process."""
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        status = main(shlex.split(line)[1:])
    return status, printed.buffer.getvalue().decode()


def run_by_shell(line, folder):
    """Return exit status and output of a command line, run by a shell."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    child = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    return child.returncode, child.stdout


def shows(what, expected, printed):
    """Assert that the lines are printed, in order and without others but at a line ``...``."""
    lines = [plain(line) for line in printed.splitlines()]
    position, free = 0, False
    chunk = []
    for line in [*expected, None]:
        if line is not None and line.strip() != "...":
            chunk.append(plain(line))
            continue
        starts = range(position, len(lines) - len(chunk) + 1) if free else [position]
        at = next((s for s in starts if same(chunk, lines[s : s + len(chunk)])), None)
        assert at is not None, f"{what}\nshows\n{os.linesep.join(chunk)}\nbut prints\n{printed}"
        position, free, chunk = at + len(chunk), True, []
    cut = bool(expected) and expected[-1].strip() == "..."
    assert cut or position == len(lines), f"{what}\nprints more than is shown:\n{printed}"


def same(expected, printed):
    """Tell whether lines are as expected, up to ``...`` at their ends."""
    if len(expected) != len(printed):
        return False
    return all(
        line.startswith(wanted[:-3]) if wanted.endswith(" ...") else line == wanted
        for wanted, line in zip(expected, printed, strict=True)
    )


def plain(line):
    """Return a line without its variable parts."""
    for pattern, replacement in VARYING:
        line = pattern.sub(replacement, line)
    return line.rstrip()


@every_page
def test_its_links_lead_somewhere(page):
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in LINK.findall(prose):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name} links to {target}"


@every_page
def test_names_of_its_files_can_be_seen(page):
    # Neither GitHub nor the site shows what follows the language of a block.
    for found in FENCE.finditer(page.read_text(encoding="utf-8")):
        assert not found[3].strip(), f"{page.name}: {found[3].strip()} is not shown: `NAME`: is"


def anchors(page):
    """Return the names by which headings of a page are linked to, as GitHub makes them."""
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_in_the_map():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"^- \[.+\]\((.+\.md)\)$", index, re.MULTILINE))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert linked == pages - {"index.md"}


def test_the_reference_is_current(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    for name, text in generate.pages().items():
        written = (generate.REFERENCE / name).read_text(encoding="utf-8")
        assert written == text, f"run python docs/generate.py: {name} is out of date"


def test_what_is_to_be_installed_is_the_clone():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = settings["tool"]["setuptools"]["package-dir"].values()
    sources = [source for folder in folders for source in sorted((ROOT / folder).glob("*.py"))]
    for text in [*sources, *PAGES, *sorted((ROOT / "benchmarks").rglob("*.md"))]:
        content = text.read_text(encoding="utf-8")
        # Dovetail is on no registry: a package of that name there is another project.
        assert not re.search(r"pip install\s+['\"]?dovetail\b", content), text


def test_the_example_of_the_package():
    for module in (dovetail, builder):
        result = doctest.testmod(module)
        assert (result.attempted > 0, result.failed) == (True, 0)


@pytest.mark.parametrize(
    ("shown", "printed", "fits"),
    [
        (["a", "b"], "a\nb\n", True),
        (["a"], "a\nb\n", False),
        (["a", "..."], "a\nb\n", True),
        (["...", "b"], "a\nb\n", True),
        (["a", "...", "c"], "a\nb\nc\n", True),
        (["b", "...", "a"], "a\nb\n", False),
        (["took 0.21 s"], "took 13 ms\n", True),
        (["a ..."], "a b c\n", True),
        (["a ..."], "ab c\n", False),
        (["a ...", "c"], "a b\nd\n", False),
        (["a", "c"], "a\nb\nc\n", False),
    ],
)
def test_what_counts_as_shown(shown, printed, fits):
    with contextlib.nullcontext() if fits else pytest.raises(AssertionError):
        shows("", shown, printed)


def test_the_readme_counts_the_policies():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    # A class under two names is one policy.
    assert f"any of {len(set(map(policy_class, policy_names())))} policies" in readme
