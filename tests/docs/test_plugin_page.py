"""The page about plugins: its package is installed as it says, and does what it shows."""

from __future__ import annotations

import shlex

import pytest

from tests.docs.test_docs import ROOT, blocks, commands, shows
from tests.installed import dovetail, pip_install

PAGE = ROOT / "docs" / "howto" / "write-a-plugin.md"
SHOWN = [
    command
    for block in blocks(PAGE)
    if block.language == "text"
    for command in commands(block.text)
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The files of the page."""
    folder = tmp_path_factory.mktemp("plugin")
    for block in blocks(PAGE):
        if block.file:
            path = folder / block.file
            path.parent.mkdir(exist_ok=True)
            path.write_text(block.text)
    return folder


@pytest.fixture(scope="module")
def installed(files):
    return pip_install(files / "installed", files / "newest-first")


@pytest.fixture(scope="module")
def with_a_fault(files):
    """The same package, which declares a policy that it does not have."""
    project = files / "newest-first" / "pyproject.toml"
    text = project.read_text()
    line = '"command.largest" ='
    assert line in text
    fault = '"policy.gone" = "newest_first:Gone"\n'
    project.write_text(text.replace(line, fault + line))
    return pip_install(files / "with-a-fault", files / "newest-first")


def test_its_package_is_made_of_thirty_lines():
    module = next(b for b in blocks(PAGE) if b.file.endswith(".py"))
    assert len(module.text.splitlines()) <= 30


@pytest.mark.parametrize("command", SHOWN, ids=[command.line for command in SHOWN])
def test_what_it_shows_comes_out(command, installed, with_a_fault):
    fails = "gone" in command.line
    done = dovetail(with_a_fault if fails else installed, *shlex.split(command.line)[1:])
    shows(command.line, command.shown, done.stderr if fails else done.stdout)
    assert (done.returncode, fails or done.stderr) == (2 if fails else 0, fails or "")


def test_its_policy_lets_the_newest_start_first(installed):
    words = ("simulate", "library:lab-day", "--max-workers", "1", "--json", "--policy")
    newest = dovetail(installed, *words, "newest-first")
    assert newest.returncode == 0, newest.stderr
    assert newest.stdout != dovetail(installed, *words, "fifo").stdout


def test_the_doctor_names_what_is_in_use_and_what_cannot_be_imported(with_a_fault):
    said = " ".join(dovetail(with_a_fault, "doctor").stdout.split())
    assert "added by other packages: command.largest (newest-first), policy.newest-first" in said
    assert "(newest_first:Gone) cannot be imported: AttributeError" in said
