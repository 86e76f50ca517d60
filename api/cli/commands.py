"""All commands: Dovetail's core, and what plugins add to them.

An entry point ``command.WORDS`` names a ``Command``; its words are joined by dots
(``command.import.gavel`` is ``dovetail import gavel``). An entry point ``options.WORDS`` names an
``Addition`` to a command that exists. Only plugins of the command that is called are imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, reduce
from itertools import chain
from typing import Final

import dovetail.data.cli
import dovetail.live.cli
import dovetail.measuring.cli
import dovetail.planning.cli
import dovetail.predicting.cli
import dovetail.simulating.cli
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.plugins import Plugin, plugins
from dovetail.toolkit.commands import Addition, Command, argument

_SHELL: Final = Command(
    "completion",
    "Print the completion script for a shell.",
    "dovetail.cli.completion:completion",
    (argument("SHELL", "bash, zsh or fish", choices=("bash", "zsh", "fish")),),
)
_CORE: Final[Mapping[str, tuple[Command, ...]]] = {
    "plans from files": dovetail.planning.cli.COMMANDS,
    "instances and data": dovetail.data.cli.COMMANDS,
    "predictions": dovetail.predicting.cli.COMMANDS,
    "simulations": dovetail.simulating.cli.COMMANDS,
    "this machine": dovetail.measuring.cli.COMMANDS,
    "the live service": dovetail.live.cli.COMMANDS,
    "the shell": (_SHELL,),
}
"""The commands of the core, by the sections in which help lists them."""


def command_named(name: str) -> Command | None:
    """Return the command that a word on the command line calls, None where there is none."""
    core = {each.name: each for each in chain.from_iterable(_CORE.values())}
    return _extended(core.get(name), _of(name))


@cache
def sections() -> Mapping[str, tuple[Command, ...]]:
    """Return all commands, as help lists them."""
    found = {
        section: tuple(_extended(each, _of(each.name)) or each for each in commands)
        for section, commands in _CORE.items()
    }
    known = {each.name for each in chain.from_iterable(found.values())}
    words = dict.fromkeys(name.partition(".")[0] for name in plugins("command"))
    for word in words:
        if word not in known and (added := _extended(None, _of(word))):
            found[added.section] = (*found.get(added.section, ()), added)
    return found


def commands() -> tuple[Command, ...]:
    """Return all commands in the order of help."""
    return tuple(chain.from_iterable(sections().values()))


def _of(word: str) -> list[Plugin]:
    """Return the plugins that add a command of this first word or something to it."""
    both = (*plugins("command").values(), *plugins("options").values())
    return [each for each in both if each.name.partition(".")[0] == word]


def _extended(command: Command | None, added: Iterable[Plugin]) -> Command | None:
    """Return a command with what plugins add to it; those that cannot be used are left out."""
    return reduce(_with, added, command)


def _with(command: Command | None, plugin: Plugin) -> Command | None:
    try:
        if plugin.kind == "options":
            return _with_options(command, plugin, plugin.load_as(Addition))
        return _with_command(command, plugin, plugin.load_as(Command))
    except UnsupportedError as error:
        print(f"dovetail: left out: {error}", file=sys.stderr)
        return command


def _with_command(command: Command | None, plugin: Plugin, added: Command) -> Command:
    """Return a command with another one at the place that the name of the plugin says."""
    *above, last = plugin.name.split(".")
    if added.name != last:
        raise plugin.unusable(f"must be a command of the name {last!r}, got {added.name!r}")
    if not above:
        if command is not None:
            raise plugin.unusable("must not be a command that exists")
        return added
    return _changed(command, above, plugin, lambda group: _beside(group, added, plugin))


def _beside(group: Command, added: Command, plugin: Plugin) -> Command:
    """Return a group of commands with one more."""
    if group.run:
        raise plugin.unusable(f"must be in a group of commands: {group.name} is none")
    if any(each.name == added.name for each in group.commands):
        raise plugin.unusable("must not be a command that exists")
    return group._replace(commands=(*group.commands, added))


def _with_options(command: Command | None, plugin: Plugin, added: Addition) -> Command:
    """Return a command with more options at the place that the name of the plugin says."""
    return _changed(
        command, plugin.name.split("."), plugin, lambda leaf: _longer(leaf, added, plugin)
    )


def _longer(leaf: Command, added: Addition, plugin: Plugin) -> Command:
    """Return a command with the arguments of an addition."""
    if not leaf.run:
        raise plugin.unusable(f"must be for a command that does something: {leaf.name} is a group")
    for each in added.arguments:
        if not each.names:
            raise plugin.unusable(f"must add options only, got {each.value}")
        if any(
            set(each.names) & set(one.names) or each.field == one.field
            for one in leaf.all_arguments
        ):
            raise plugin.unusable(f"must not be an option that exists: {each.names[-1]}")
    return leaf._replace(additions=(*leaf.additions, added))


def _changed(
    command: Command | None, words: Sequence[str], plugin: Plugin, change: Callable[..., Command]
) -> Command:
    """Return a command in which the one that the words call, itself the first, is changed."""
    if command is None:
        raise plugin.unusable("must belong to a command that exists")
    if len(words) == 1:
        return change(command)
    below = {each.name: each for each in command.commands}
    changed = _changed(below.get(words[1]), words[1:], plugin, change)
    return command._replace(commands=tuple({**below, changed.name: changed}.values()))
