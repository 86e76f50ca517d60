"""The declaration of a command, from which parser, help, completion and reference are made.

The kinds of values lead from the text of an argument to its value, or to one line that says what it
must be.

A verb has a file, which begins with the declaration. It imports nothing heavy, as it is imported
for the help of all commands, too: what the work needs is imported when it runs.
"""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import Final, NamedTuple

INTERRUPTED: Final = 130
"""The exit status after Ctrl-C, as in shells."""

MOST_SEEDS: Final = 2**32
"""The limit of scikit-learn."""

_SECONDS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


class Argument(NamedTuple):
    """An option, or a positional argument, which has no names."""

    names: tuple[str, ...]
    value: str
    """The placeholder of its value in help; empty for a flag."""
    field: str
    """Its name in the options passed to a command."""
    text: str
    kind: Callable[[str], object] | None = None
    """Converts a text to its value, or raises ``argparse.ArgumentTypeError``."""
    default: str | None = None
    """As a user would write it."""
    choices: tuple[str, ...] = ()
    number: str = ""
    """``nargs`` of a positional argument in argparse: ``?``, ``+``, ``*``, or empty for one."""
    required: bool = False
    repeated: bool = False
    group: str = ""
    """The heading under which help lists it."""

    @property
    def usual(self) -> object:
        """Its value if it is not given."""
        if not self.value:
            return False
        if self.default is None:
            return [] if self.repeated else None
        return self.kind(self.default) if self.kind else self.default


class Addition(NamedTuple):
    """Options that a plugin adds to an existing command."""

    arguments: tuple[Argument, ...]
    """The options. The command finds the given ones in ``added``, by their fields."""
    before: str = ""
    """``MODULE:FUNCTION`` that is called with the options before the command, if one is given."""


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
    """Its usage, if that does not follow from its arguments."""
    section: str = "plugins"
    """For a plugin's command, the heading under which the help of all commands lists it."""
    additions: tuple[Addition, ...] = ()
    """Additions of plugins."""

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
    """Yield the arguments of a command whose value is not the default."""
    for each in command.all_arguments:
        if getattr(options, each.field) != each.usual:
            yield each


def given_additions(command: Command, options: Namespace) -> Iterator[tuple[Addition, str]]:
    """Yield the addition and the field of each option of a plugin that is given."""
    for each in command.additions:
        for one in each.arguments:
            if getattr(options, one.field) != one.usual:
                yield each, one.field


def leaves(commands: Sequence[Command], path: str = "") -> Iterator[tuple[str, Command]]:
    """Yield all commands that are not groups, each with the words that call it."""
    for each in commands:
        words = f"{path} {each.name}".strip()
        yield from leaves(each.commands, words) if each.commands else [(words, each)]


def whole(least: int, below: int | None = None) -> Callable[[str], int]:
    """Return a parser of whole numbers from ``least`` on, and below ``below`` if given."""
    rule = f"must be a whole number >= {least}" + ("" if below is None else f" and < {below}")

    def parsed(text: str) -> int:
        if text.isascii() and text.isdecimal():
            number = int(text)
            if least <= number and (below is None or number < below):
                return number
        raise ArgumentTypeError(f"{rule}, got {text!r}")

    return parsed


def finite(text: str) -> float:
    """Return a number that is neither infinite nor NaN."""
    number = _number(text)
    if not math.isfinite(number):
        raise ArgumentTypeError(f"must be a finite number, got {text!r}")
    return number


def confidence(text: str) -> float:
    """Return a probability that is neither 0 nor 1."""
    number = _number(text)
    if not 0 < number < 1:
        raise ArgumentTypeError(f"must be > 0 and < 1, got {text!r}")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def limit(text: str) -> float:
    """Return the seconds of a time limit; inf for none."""
    time_s = _number(text)
    if not time_s >= 0:
        raise ArgumentTypeError(f"must be a number of seconds >= 0, or inf, got {text!r}")
    return time_s


def duration(text: str) -> float:
    """Return the seconds of ``90``, ``90s``, ``15m``, ``2h`` or ``1d``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text, re.ASCII)
    time_s = float(found[1]) * _SECONDS[found[2]] if found else math.inf
    if time_s == math.inf:
        raise ArgumentTypeError(f"must be a time like 90, 15m, 2h or 1d, got {text!r}")
    return time_s


def names(text: str) -> tuple[str, ...]:
    """Return the names separated by commas, each once."""
    found = (part.strip() for part in text.split(","))
    return tuple(dict.fromkeys(filter(None, found)))


def shares(text: str) -> tuple[int, ...]:
    """Return SM shares in per cent, written with commas."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and 1 <= int(part) <= 100 for part in parts):
        raise ArgumentTypeError(f"must be whole numbers from 1 to 100, got {text!r}")
    return tuple(dict.fromkeys(map(int, parts)))


def pair(shape: str, value: str = ".+") -> Callable[[str], tuple[str, str]]:
    """Return a reader of ``NAME=VALUE``, described by ``shape``, with a value of this pattern."""

    def parsed(text: str) -> tuple[str, str]:
        found = re.fullmatch(f"([^=]+)=({value})", text, re.DOTALL)
        if not found:
            raise ArgumentTypeError(f"must be {shape}, got {text!r}")
        return found[1], found[2]

    return parsed


def one_of(known: Sequence[str], text: str) -> str:
    """Return the text if it is one of the known ones."""
    if text not in known:
        raise ArgumentTypeError(f"must be one of {', '.join(known)}, got {text!r}")
    return text


def host_and_port(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise ArgumentTypeError(f"must be HOST:PORT, got {text!r}")
    return host, int(port)


def output_file(name: str) -> str:
    """Refuse a file name with the ending of a format other than JSON and YAML."""
    ending = PurePath(name.removesuffix(".gz")).suffix
    if ending in (".csv", ".html", ".parquet", ".tsv", ".xlsx"):
        raise ArgumentTypeError(f"is written as JSON or YAML, got {name!r}")
    return name


JSON: Final = option("--json", "print JSON")
GPUS: Final = option("--gpus N", "number of GPUs", whole(1), required=True)
GPUS_PER_NODE: Final = option("--gpus-per-node N", "GPUs of a node", whole(1), "8")
SHARING: Final = option(
    "--sharing MODE",
    "how jobs share a GPU, mps or time_sliced; only pairs measured so are taken",
    default="mps",
    choices=("mps", "time_sliced"),
)
INSTANCE: Final = argument(
    "INSTANCE", "instance file (JSON or YAML, .gz too), - for standard input, or library:NAME"
)
PLAN_FILE: Final = argument("PLAN", "plan file, or - for standard input")
SLOWDOWNS: Final = option(
    "--slowdowns FILE.csv",
    "add these measured pairs to the instance; columns as in docs/howto/import-data.md",
)
DATA: Final = argument(
    "DATA",
    "folder with profiles or pairs (.csv, .csv.gz, .parquet), repository (.db, .sqlite), or "
    "library:NAME",
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
