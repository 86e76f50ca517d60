"""All commands: those of Dovetail's core, and additions by plugins.

An entry point ``command.WORDS`` names a ``Command``; its words are joined by dots
(``command.import.gavel`` is ``dovetail import gavel``). An entry point ``options.WORDS`` names an
``Addition`` to a command that exists. Only plugins of the command that is called are imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Final

from dovetail.instances.errors import UnsupportedError
from dovetail.instances.plugins import Plugin, plugins
from dovetail.toolkit.commands import JSON, Addition, Argument, Command

if TYPE_CHECKING:
    from dovetail.executor.doctor.finding import Finding

_CORE: Final[Mapping[str, Mapping[str, str]]] = {
    "plans from files": {
        "plan": "dovetail.planning.plan:PLAN",
        "check": "dovetail.planning.check:CHECK",
        "explain": "dovetail.planning.explain:EXPLAIN",
        "next": "dovetail.planning.next_round:NEXT",
    },
    "instances and data": {
        "init": "dovetail.data.init:INIT",
        "import": "dovetail.data.groups:IMPORT",
        "import.kernels": "dovetail.data.import_kernels:KERNELS",
        "import.pairs": "dovetail.data.import_pairs:PAIRS",
        "import.slurm": "dovetail.data.import_slurm:SLURM",
        "dataset": "dovetail.data.groups:DATASET",
        "dataset.add": "dovetail.data.dataset_add:ADD",
        "dataset.show": "dovetail.data.dataset_show:SHOW",
        "dataset.pairs": "dovetail.data.dataset_pairs:PAIRS",
        "dataset.instance": "dovetail.data.dataset_instance:INSTANCE",
        "generate": "dovetail.data.generate:GENERATE",
        "library": "dovetail.data.library:LIBRARY",
    },
    "predictions": {
        "predict": "dovetail.predicting.predict:PREDICT",
        "predictors": "dovetail.predicting.options:PREDICTORS",
        "predictors.fit": "dovetail.predicting.fit:FIT",
        "predictors.show": "dovetail.predicting.show:SHOW",
        "predictors.update": "dovetail.predicting.update:UPDATE",
    },
    "simulations": {
        "simulate": "dovetail.simulating.simulate:SIMULATE",
        "compare": "dovetail.simulating.compare:COMPARE",
    },
    "this machine": {"doctor": "dovetail.doctor.doctor:DOCTOR"},
    "the live service": {
        "serve": "dovetail.live.serve:SERVE",
        "submit": "dovetail.live.submit:SUBMIT",
        "queue": "dovetail.live.queue:QUEUE",
        "show": "dovetail.live.show:SHOW",
        "wait": "dovetail.live.wait:WAIT",
        "logs": "dovetail.live.logs:LOGS",
        "cancel": "dovetail.live.cancel:CANCEL",
        "hold": "dovetail.live.hold:HOLD",
        "release": "dovetail.live.hold:RELEASE",
        "pause": "dovetail.live.pause:PAUSE",
        "resume": "dovetail.live.pause:RESUME",
        "edit": "dovetail.live.edit:EDIT",
        "requeue": "dovetail.live.requeue:REQUEUE",
        "drain": "dovetail.live.drain:DRAIN",
        "top": "dovetail.live.top:TOP",
        "page": "dovetail.live.page.command:PAGE",
    },
    "the shell": {"completion": "dovetail.cli.completion:COMPLETION"},
}
"""The commands of the core, by the sections in which help lists them, named as plugins are."""

_TARGETS: Final = dict(chain.from_iterable(each.items() for each in _CORE.values()))


def _declared(name: str) -> Command:
    """Import the declaration of a command of the core, of a group without its commands."""
    module, _, found = _TARGETS[name].partition(":")
    command: Command = getattr(import_module(module), found)
    return command


def _of_core(name: str) -> Command:
    """Return a command of the core, a group with its commands."""
    below = (_declared(each) for each in _TARGETS if each.startswith(f"{name}."))
    return _declared(name)._replace(commands=tuple(below))


@cache
def command_named(name: str) -> Command | None:
    """Return the command that a word on the command line names, or None if there is none.

    Plugins that cannot be used are left out and reported on standard error.
    """
    command, faults = _joined(name)
    for fault in faults:
        print(f"dovetail: left out: {fault}", file=sys.stderr)
    return command


@cache
def _joined(name: str) -> tuple[Command | None, tuple[UnsupportedError, ...]]:
    """Return a command with the additions of plugins, and the faults of plugins left out."""
    both = (*plugins("command").values(), *plugins("options").values())
    # A group comes before additions of other plugins to it.
    added = sorted(
        (each for each in both if each.name.partition(".")[0] == name),
        key=lambda each: (each.kind, each.name.count(".")),
    )
    command, faults = _of_core(name) if name in _TARGETS else None, []
    for plugin in added:
        try:
            command = _with(command, plugin)
        except UnsupportedError as fault:
            faults.append(fault)
    return command, tuple(faults)


def findings() -> Iterator[Finding]:
    """Yield the doctor's findings about commands and options of plugins that do not fit."""
    from dovetail.executor.doctor.finding import lacking

    both = (*plugins("command").values(), *plugins("options").values())
    for word in dict.fromkeys(each.name.partition(".")[0] for each in both):
        for fault in _joined(word)[1]:
            if fault.__cause__ is None:  # else importing it failed, which the doctor reports
                yield lacking(str(fault), "update or uninstall the package")


@cache
def sections() -> Mapping[str, tuple[Command, ...]]:
    """Return the commands as help lists them, without additions of plugins to core commands."""
    found = {
        section: tuple(_declared(name) for name in names if "." not in name)
        for section, names in _CORE.items()
    }
    for word in dict.fromkeys(name.partition(".")[0] for name in plugins("command")):
        if word not in _TARGETS and (added := command_named(word)):
            found[added.section] = (*found.get(added.section, ()), added)
    return found


def commands() -> tuple[Command, ...]:
    """Return all commands in the order of help, with all additions of plugins."""
    listed = chain.from_iterable(sections().values())
    return tuple(command_named(each.name) or each for each in listed)


def _with(command: Command | None, plugin: Plugin) -> Command:
    """Return a command with the addition of a plugin."""
    if plugin.kind == "options":
        return _with_options(command, plugin, plugin.load_as(Addition))
    return _with_command(command, plugin, plugin.load_as(Command))


def _with_command(command: Command | None, plugin: Plugin, added: Command) -> Command:
    """Return a command with another one added where the name of the plugin says."""
    *above, last = plugin.name.split(".")
    if added.name != last:
        raise plugin.unusable(f"must be a command called {last!r}, got {added.name!r}")
    _require_sound(added, plugin)
    if not above:
        if command is not None:
            raise plugin.unusable("must not have the name of a command that exists")
        return added
    return _changed(command, above, plugin, lambda group: _beside(group, added, plugin))


def _beside(group: Command, added: Command, plugin: Plugin) -> Command:
    """Return a group of commands with one more."""
    if group.run:
        raise plugin.unusable(f"must be in a group of commands, which {group.name} is not")
    if any(each.name == added.name for each in group.commands):
        raise plugin.unusable("must not have the name of a command that exists")
    return group._replace(commands=(*group.commands, added))


def _with_options(command: Command | None, plugin: Plugin, added: Addition) -> Command:
    """Return a command with options added where the name of the plugin says."""
    return _changed(
        command, plugin.name.split("."), plugin, lambda leaf: _longer(leaf, added, plugin)
    )


def _longer(leaf: Command, added: Addition, plugin: Plugin) -> Command:
    """Return a command with the arguments of an addition."""
    if not leaf.run:
        raise plugin.unusable(f"must be for one command: {leaf.name} is a group")
    _require_arguments(added.arguments, plugin, leaf.all_arguments)
    for each in added.arguments:
        if not each.names:
            raise plugin.unusable(f"must add options only, got {each.value}")
    return leaf._replace(additions=(*leaf.additions, added))


def _changed(
    command: Command | None, words: Sequence[str], plugin: Plugin, change: Callable[..., Command]
) -> Command:
    """Return a command after a change to the subcommand that ``words`` names."""
    if command is None:
        raise plugin.unusable("must be for a command that exists")
    if len(words) == 1:
        return change(command)
    below = {each.name: each for each in command.commands}
    changed = _changed(below.get(words[1]), words[1:], plugin, change)
    return command._replace(commands=tuple({**below, changed.name: changed}.values()))


def _require_sound(command: Command, plugin: Plugin) -> None:
    """Refuse a declaration from which no parser can be made."""
    if bool(command.run) == bool(command.commands):
        raise plugin.unusable(f"must have either a function to run or commands: {command.name}")
    _require_arguments(command.arguments, plugin)
    for each in command.commands:
        _require_sound(each, plugin)


def _require_arguments(
    arguments: Iterable[Argument], plugin: Plugin, there: Sequence[Argument] = ()
) -> None:
    """Refuse objects that are not arguments, and options that already exist."""
    taken = {"--help", "-h", *JSON.names, *chain.from_iterable(each.names for each in there)}
    fields = {JSON.field, *(each.field for each in there)}
    for each in arguments:
        if not isinstance(each, Argument):
            raise plugin.unusable(f"must have arguments of type Argument, got {each!r}")
        if taken & set(each.names) or each.field in fields:
            name = each.names[-1] if each.names else each.value
            raise plugin.unusable(f"must not have an option that exists: {name}")
        taken |= set(each.names)
        fields.add(each.field)
