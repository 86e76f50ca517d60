"""The parser of all commands, made of their declarations."""

from __future__ import annotations

import re
from argparse import SUPPRESS, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NoReturn

from dovetail.cli.commands import command_named, commands, sections
from dovetail.instances._version import VERSION
from dovetail.instances.errors import brief, hint
from dovetail.toolkit.commands import JSON, Argument, Command

_PROGRAM: Final = "job_command"
"""The field of a job's program and its arguments."""

_WORDS: Final = {"help": "--help", "version": "--version"}
"""Commands that replace an option."""

_LIKE_OPTION: Final = 0.75
"""All options begin alike, so they must be more similar than other names."""


_NO_COMMAND: Final = ("-h", "--help", "--version")
"""First words for which no command is looked up."""


class _Parser(ArgumentParser):
    """Reports a wrong usage in one line."""

    def options(self) -> list[str]:
        """Return the long names of the options."""
        names = chain.from_iterable(action.option_strings for action in self._actions)
        return [name for name in names if name.startswith("--")]

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"(.*invalid choice: '(.+?)') \(choose from (.+)\)", message)
        if wrong and (meant := hint(wrong[2], re.findall(r"[\w.:-]+", wrong[3]))):
            message = wrong[1] + meant
        self.exit(2, f"{self.prog}: {brief(message)} (see {self.prog} --help)\n")


class _Top(_Parser):
    """The parser whose help lists all commands; only then are plugins asked for theirs."""

    def format_help(self) -> str:
        self.description = "\n".join(_overview())
        return super().format_help()


def parsed(arguments: Sequence[str]) -> tuple[Command, Namespace]:
    """Return the command that arguments call, and its options.

    Unknown arguments are reported as an error of the command.
    """
    given = list(arguments) or ["help"]
    if given[0] in _WORDS:
        given = [*given[1:], _WORDS[given[0]]]
    top = parser(given[0])
    given, program = _divided(given)
    options, unknown = top.parse_known_args(given)
    if program:
        options.job_command = [*options.job_command, *program]
    if unknown and not _are_more(unknown, options):
        meant = hint(unknown[0], options.parser.options(), _LIKE_OPTION)
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
    if options.command is None:
        top.error("the following arguments are required: COMMAND")
    command = options.command
    del options.command, options.parser
    return command, options


def _divided(given: list[str]) -> tuple[list[str], list[str]]:
    """Return the arguments of a command, and the words of a job's program after ``--``.

    If another argument may precede the program, argparse stops reading the program at an option
    between them. A program without such an argument is left to argparse.
    """
    command = command_named(given[0])
    fields = [each.field for each in command.arguments if not each.names] if command else []
    if len(fields) < 2 or fields[-1] != _PROGRAM or "--" not in given:
        return given, []
    at = given.index("--")
    return given[:at], given[at + 1 :]


def _are_more(unknown: Sequence[str], options: Namespace) -> bool:
    """Add words after an option to the last argument, if it accepts several values."""
    positional = [each for each in getattr(options.command, "arguments", ()) if not each.names]
    several = bool(positional) and positional[-1].number in ("*", "+")
    if not several or positional[-1].field == _PROGRAM or any(w.startswith("-") for w in unknown):
        return False
    field = positional[-1].field
    setattr(options, field, [*getattr(options, field), *unknown])
    return True


def parser(command: str | None = None) -> ArgumentParser:
    """Return the parser of all commands, or of one: making all takes longer than most commands."""
    top = _Top(
        prog="dovetail",
        usage="dovetail COMMAND ...",
        formatter_class=RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"dovetail {VERSION}")
    # Not required by argparse, which would then not report a wrong option before it.
    top.set_defaults(command=None, parser=top)
    below = top.add_subparsers(
        prog=top.prog, metavar="COMMAND", help=SUPPRESS, parser_class=_Parser
    )
    if command in _NO_COMMAND:
        return top
    one = command_named(command) if command else None
    for each in [one] if one else commands():
        _add(each, below.add_parser)
    return top


def _overview() -> Iterator[str]:
    """Yield the lines of the help of all commands."""
    yield "Decides which GPU jobs share which GPUs."
    width = max(len(each.name) for each in chain.from_iterable(sections().values()))
    for section, listed in sections().items():
        yield f"\n{section}:"
        for each in listed:
            yield f"  {each.name:<{width}}  {each.text.partition(';')[0].rstrip('.')}"
    yield "\nfirst steps: dovetail init, which writes lab.yaml; then dovetail plan lab.yaml"
    yield "dovetail COMMAND --help lists the options of a command."


def _add(command: Command, add_parser: Callable[..., ArgumentParser]) -> None:
    """Add the parser of a command."""
    added = add_parser(command.name, help=command.text, description=command.text)
    if command.commands:
        below = added.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
        for each in command.commands:
            _add(each, below.add_parser)
        return
    added.usage = command.usage or None
    added.set_defaults(command=command, parser=added)
    _add_arguments(added, (*command.all_arguments, JSON))


def _add_arguments(to: ArgumentParser, arguments: Iterable[Argument]) -> None:
    groups: dict[str, Any] = {"": to}
    for each in arguments:
        if each.group not in groups:
            groups[each.group] = to.add_argument_group(each.group)
        _add_argument(groups[each.group].add_argument, each)


def _add_argument(add: Callable[..., object], declared: Argument) -> None:
    said = f"{declared.text} (default: {declared.default})" if declared.default else declared.text
    known: dict[str, Any] = {"help": said.replace("%", "%%")}
    if not declared.value:
        add(*declared.names, dest=declared.field, action="store_true", **known)
        return
    known |= {"metavar": declared.value, "type": declared.kind, "default": declared.usual}
    known |= {"choices": declared.choices or None}
    if declared.names:
        action = "append" if declared.repeated else "store"
        add(
            *declared.names, dest=declared.field, action=action, required=declared.required, **known
        )
    else:
        add(declared.field, nargs=declared.number or None, **known)
