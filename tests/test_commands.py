"""All commands and options stay: those of the rooms are found through their entry points."""

from __future__ import annotations

from pathlib import Path

from dovetail.cli.commands import commands
from dovetail.toolkit.commands import Argument, leaves

LISTED = Path(__file__).with_name("commands.txt")
"""Written before the rooms had doors: each command, and its arguments indented below it."""


def as_listed(argument: Argument) -> str:
    return " ".join([*argument.names, argument.value]).strip()


def test_every_command_and_option_of_before_is_there():
    listed: dict[str, set[str]] = {}
    command = ""
    for line in LISTED.read_text().splitlines():
        if line.startswith(" "):
            listed[command].add(line.strip())
        else:
            command = line
            listed[command] = set()
    now = {words: set(map(as_listed, each.all_arguments)) for words, each in leaves(commands())}
    assert listed.keys() <= now.keys()
    missing = {words: gone for words in listed if (gone := listed[words] - now[words])}
    assert not missing
