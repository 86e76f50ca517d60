"""The declaration of a command, of which parser, help, completion and reference are made.

A package of commands has them in its module ``cli``, which imports nothing heavy: all are imported
whenever ``dovetail`` starts.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from dovetail.toolkit.values import output_file, whole

INTERRUPTED: Final = 130
"""The exit status after Ctrl-C, as shells have it."""

MOST_SEEDS: Final = 2**32
"""scikit-learn takes no more."""


class Argument(NamedTuple):
    """An option, or a positional argument, which has no names."""

    names: tuple[str, ...]
    value: str
    """The placeholder of its value in help; empty for a flag."""
    field: str
    """Its name among the options that a command gets."""
    text: str
    kind: Callable[[str], object] | None = None
    """Makes its value of a text, or raises ``argparse.ArgumentTypeError``."""
    default: str | None = None
    """As a user would write it."""
    choices: tuple[str, ...] = ()
    number: str = ""
    """Of a positional argument, as argparse has it: ``?``, ``+``, ``*`` or empty for one."""
    required: bool = False
    repeated: bool = False
    group: str = ""
    """The heading under which help lists it."""

    @property
    def usual(self) -> object:
        """The value that it has where it is not given."""
        if not self.value:
            return False
        if self.default is None:
            return [] if self.repeated else None
        return self.kind(self.default) if self.kind else self.default


class Addition(NamedTuple):
    """What a plugin adds to a command that exists."""

    arguments: tuple[Argument, ...]
    """More options. The command finds those that are given in ``added``, by their fields."""
    before: str = ""
    """``MODULE:FUNCTION`` that gets the options, before the command runs with one of these."""


class Command(NamedTuple):
    """A command, or a group of commands."""

    name: str
    text: str
    run: str = ""
    """``MODULE:FUNCTION`` that gets the options and returns the exit status."""
    arguments: tuple[Argument, ...] = ()
    """All commands have ``--json`` as well."""
    commands: tuple[Command, ...] = ()
    usage: str = ""
    """How it is called, where that does not follow from its arguments."""
    section: str = "plugins"
    """Of a plugin's command: the heading under which the help of all commands lists it."""
    additions: tuple[Addition, ...] = ()
    """What plugins add to it."""

    @property
    def all_arguments(self) -> tuple[Argument, ...]:
        """Its arguments and those that plugins add."""
        return (*self.arguments, *(one for each in self.additions for one in each.arguments))


def option(
    names: str,
    text: str,
    kind: Callable[[str], object] | None = None,
    default: str | None = None,
    *,
    field: str = "",
    choices: tuple[str, ...] = (),
    required: bool = False,
    repeated: bool = False,
) -> Argument:
    """Declare an option as help shows it: ``-o, --output FILE``; a flag has no ``FILE``."""
    *short, last = names.split(", ")
    long, _, value = last.partition(" ")
    field = field or long.strip("-").replace("-", "_")
    return Argument(
        (*short, long), value, field, text, kind, default, choices, "", required, repeated
    )


def argument(shape: str, text: str, field: str = "", choices: tuple[str, ...] = ()) -> Argument:
    """Declare a positional argument: ``FILE``, ``[FILE]``, ``FILE ...`` or ``[FILE ...]``."""
    value = shape.strip("[. ]")
    several = "+" if shape.endswith("...") else "*" if shape.endswith("...]") else ""
    number = several or ("?" if shape.startswith("[") else "")
    return Argument((), value, field or value.lower(), text, choices=choices, number=number)


def grouped(heading: str, *arguments: Argument) -> tuple[Argument, ...]:
    """Put arguments under a heading of the help."""
    return tuple(each._replace(group=heading) for each in arguments)


def given(command: Command, options: Namespace) -> Iterator[Argument]:
    """Yield the arguments of a command that have another value than they usually have."""
    for each in command.all_arguments:
        if getattr(options, each.field) != each.usual:
            yield each


def given_additions(command: Command, options: Namespace) -> Iterator[tuple[Addition, str]]:
    """Yield the options of plugins that are given: the addition that each is of, and its field."""
    for each in command.additions:
        for one in each.arguments:
            if getattr(options, one.field) != one.usual:
                yield each, one.field


def leaves(commands: Sequence[Command], path: str = "") -> Iterator[tuple[str, Command]]:
    """Yield all commands that do something, each by the words that call it."""
    for each in commands:
        words = f"{path} {each.name}".strip()
        yield from leaves(each.commands, words) if each.commands else [(words, each)]


JSON: Final = option("--json", "print JSON")
GPUS: Final = option("--gpus N", "number of GPUs", whole(1), required=True)
GPUS_PER_NODE: Final = option("--gpus-per-node N", "GPUs of a node", whole(1), "8")
INSTANCE: Final = argument(
    "INSTANCE", "instance file (JSON or YAML, .gz too), - for standard input, or library:NAME"
)
SLOWDOWNS: Final = option(
    "--slowdowns FILE.csv",
    "add these measured pairs to the instance; columns as in docs/howto/import-data.md",
)
DATA: Final = argument(
    "DATA", "folder with profiles or pairs (.csv, .csv.gz, .parquet), or repository (.db, .sqlite)"
)
OUTPUT: Final = option(
    "-o, --output FILE", "write to this file; -: to standard output", output_file, "-"
)
REPORT: Final = option("--report FILE.html", "write a report page")
FIGURES: Final = option(
    "--figures FOLDER",
    "write every chart of the page as PDF, SVG and PNG, with its data as CSV",
)
SEED: Final = option("--seed N", "same seed, same result", whole(0, MOST_SEEDS), "0")
