"""Commands and options of installed packages, in processes of their own."""

from __future__ import annotations

import json

import pytest

from tests.installed import dovetail, package, pip_install

GREETING = """\
from dovetail.toolkit.commands import Addition, Command, argument, option

HELLO = Command(
    "hello", "Greet somebody; politely.", "greeting.work:hello",
    (argument("[NAME]", "who"), option("--loudly", "in capitals")),
)
TEAM = Command(
    "team", "Greet a team.", commands=(Command("all", "Everybody.", "greeting.work:hello"),),
    section="greetings",
)
LEAD = Command("lead", "Its lead.", "greeting.work:lead")
ONLY = Addition((option("--only WORD", "only the names with this"),), "greeting.work:announce")
"""
GREETING_WORK = """\
def hello(options):
    text = f"hello {getattr(options, 'name', None) or 'all'}"
    print(text.upper() if getattr(options, "loudly", False) else text)
    return 0

def lead(options):
    return 1 // 0

def announce(options):
    print("only", options.added["only"])
"""
FAULTY = """\
from dovetail.toolkit.commands import Addition, Command, option

PLAN = Command("plan", "Takes a name of the core.", "nothing:nothing")
OTHER = Command("other", "Has another name than its entry point.", "nothing:nothing")
EMPTY = Command("empty", "Does nothing.")
TWICE = Command("twice", "Has --json, as all commands.", "nothing:nothing", (option("--json", ""),))
WORDS = Command("words", "Has a word for an argument.", "nothing:nothing", ("NAME",))
IN_PLAN = Command("below", "In a command that is no group.", "nothing:nothing")
EXISTS = Addition((option("--slowdowns NAME", "exists"),))
NOWHERE = Addition((option("--more", "of no command"),))
GROUP = Addition((option("--more", "of a group"),))
NUMBER = 3
"""
FAULTS = {
    "command.plan": ("PLAN", "plan", "must not have the name of a command that exists"),
    "command.named": ("OTHER", "named", "must be a command called 'named', got 'other'"),
    "command.empty": ("EMPTY", "empty", "must have either a function to run or commands: empty"),
    "command.twice": ("TWICE", "twice", "must not have an option that exists: --json"),
    "command.words": ("WORDS", "words", "must have arguments of type Argument, got 'NAME'"),
    "command.explain.below": (
        "IN_PLAN",
        "explain",
        "must be in a group of commands, which explain is not",
    ),
    "command.nowhere.below": ("IN_PLAN", "nowhere", "must be for a command that exists"),
    "command.number": ("NUMBER", "number", "must be of type Command, got int"),
    "command.gone": ("GONE", "gone", "cannot be imported: AttributeError: "),
    "options.check": ("EXISTS", "check", "must not have an option that exists: --slowdowns"),
    "options.missing": ("NOWHERE", "missing", "must be for a command that exists"),
    "options.import": ("GROUP", "import", "must be for one command: import is a group"),
    "options.compare": ("NUMBER", "compare", "must be of type Addition, got int"),
}
"""By entry point: the object, the word that calls the command, and what is said of it."""


@pytest.fixture(scope="module")
def greeting(tmp_path_factory):
    """A package with a command, a group of commands, a command in that group, and an option."""
    folder = tmp_path_factory.mktemp("greeting")
    plugins = {
        "command.team.lead": "greeting.words:LEAD",
        "command.hello": "greeting.words:HELLO",
        "command.team": "greeting.words:TEAM",
        "options.library": "greeting.words:ONLY",
    }
    modules = {"greeting.__init__": "", "greeting.words": GREETING, "greeting.work": GREETING_WORK}
    return pip_install(folder / "installed", package(folder, "greeting", plugins, modules))


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """A package in which every plugin is wrong, and one that fails whenever it is imported."""
    folder = tmp_path_factory.mktemp("faulty")
    plugins = {key: f"faulty:{name}" for key, (name, _, _) in FAULTS.items()}
    sources = [package(folder, "Faulty.Package", plugins, {"faulty": FAULTY})]
    broken = {"command.ends": "ends:X", "options.library": "absent.module:X"}
    sources.append(package(folder, "broken", broken, {"ends": "import sys\nsys.exit(7)\n"}))
    return pip_install(folder / "installed", *sources)


def test_a_command_of_a_package_runs(greeting):
    done = dovetail(greeting, "hello", "you", "--loudly")
    assert (done.returncode, done.stdout, done.stderr) == (0, "HELLO YOU\n", "")


def test_commands_of_a_package_are_in_the_help_under_their_heading(greeting):
    shown = dovetail(greeting, "--help").stdout
    assert "\nplugins:\n  hello       Greet somebody\n" in shown
    assert "\ngreetings:\n  team        Greet a team\n" in shown
    assert "--loudly" in dovetail(greeting, "hello", "--help").stdout


def test_a_misspelled_command_of_a_package_is_suggested(greeting):
    done = dovetail(greeting, "helo")
    assert done.returncode == 2
    assert "did you mean hello?" in done.stderr


def test_a_command_of_a_package_joins_a_group_whichever_is_declared_first(greeting):
    assert dovetail(greeting, "team", "all").stdout == "hello all\n"
    assert "lead" in dovetail(greeting, "team", "--help").stdout


def test_an_error_in_a_command_of_a_package_is_not_reported_as_dovetails(greeting):
    done = dovetail(greeting, "team", "lead")
    assert done.returncode == 1
    first, *_, last = done.stderr.splitlines()
    assert first == "Traceback (most recent call last):"
    assert "greeting/work.py" in done.stderr
    assert last.startswith("dovetail: ZeroDivisionError in code of a plugin: ")


def test_an_option_of_a_package_runs_before_the_command_that_it_is_added_to(greeting):
    done = dovetail(greeting, "library", "--only", "pairs")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "only pairs")
    assert dovetail(greeting, "library").stdout == done.stdout.partition("\n")[2]
    assert "--only WORD" in dovetail(greeting, "library", "--help").stdout


def test_completion_knows_the_commands_and_options_of_packages(greeting):
    script = dovetail(greeting, "completion", "bash").stdout
    assert '"team") words="all lead ' in script
    assert "--only" in script


@pytest.mark.parametrize(("plugin", "fault"), FAULTS.items(), ids=FAULTS)
def test_a_faulty_plugin_is_named_in_one_line_and_left_out(faulty, plugin, fault):
    name, word, said = fault
    done = dovetail(faulty, word, "--help")
    first, *rest = done.stderr.splitlines()
    what = f"plugin {plugin} of the package faulty-package (faulty:{name})"
    assert first.startswith(f"dovetail: left out: {what} {said}")
    assert "Traceback" not in done.stderr
    if word in ("plan", "check", "explain", "import", "compare"):  # of the core: as ever
        assert (done.returncode, rest) == (0, [])
        assert done.stdout.startswith(f"usage: dovetail {word}")
    else:
        assert done.returncode == 2
        assert any(f"invalid choice: '{word}'" in line for line in rest)


def test_plugins_that_fail_when_imported_leave_the_command_as_it_is(faulty):
    done = dovetail(faulty, "library", "--json")
    what = "plugin options.library of the package broken (absent.module:X)"
    why = "cannot be imported: ModuleNotFoundError: No module named 'absent'"
    assert done.stderr == f"dovetail: left out: {what} {why}\n"
    assert done.returncode == 0
    assert "lab" in json.loads(done.stdout)
    ended = dovetail(faulty, "ends")
    assert ended.returncode == 2
    assert "broken (ends:X) cannot be imported: SystemExit: 7\n" in ended.stderr


def test_the_doctor_names_what_does_not_fit(faulty):
    found = json.loads(dovetail(faulty, "doctor", "--json").stdout)["findings"]
    texts = {each["text"] for each in found if each["id"].startswith("plugins.")}
    for plugin, (name, _, said) in FAULTS.items():
        what = f"plugin {plugin} of the package faulty-package (faulty:{name}) {said}"
        assert any(text.startswith(what) for text in texts)
    assert any("command.ends of the package broken" in text for text in texts)


def test_commands_that_no_plugin_touches_say_nothing_of_faulty_ones(faulty):
    done = dovetail(faulty, "generate", "--help")
    assert (done.returncode, done.stderr) == (0, "")


def test_commands_of_packages_are_imported_for_the_help_and_for_themselves_only(
    greeting, monkeypatch
):
    monkeypatch.setenv("PYTHONVERBOSE", "1")
    assert "import 'greeting" not in dovetail(greeting, "plan", "--help").stderr
    assert "import 'greeting.words'" in dovetail(greeting, "--help").stderr
    assert "import 'greeting.work'" not in dovetail(greeting, "hello", "--help").stderr
