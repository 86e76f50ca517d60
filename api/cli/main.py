"""The command line: arguments in, exit status out; its parser is made of the declarations.

0: done; 1: checked and found wrong, or no valid plan; 2: bad input or usage, with one line on
standard error. The function of a command is imported when it runs.
"""

from __future__ import annotations

import os
import re
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, Final, NoReturn

from dovetail.cli.commands import command_named, commands, sections
from dovetail.instances._version import VERSION
from dovetail.instances.errors import DovetailError, VerificationError, brief, hint, source_name
from dovetail.toolkit.commands import INTERRUPTED, JSON, Argument, Command, given_additions

_PROGRAM: Final = "job_command"
"""The field of a job's program and its arguments."""

_WORDS: Final = {"help": "--help", "version": "--version"}
"""Commands that replace an option."""

_LIKE_OPTION: Final = 0.75
"""All options begin alike, so they must be more similar than other names."""

_NO_COMMAND: Final = ("-h", "--help", "--version")
"""First words for which no command is looked up."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    _open_closed_streams()
    command, options = parsed(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _run(command, options)
        sys.stdout.flush()
    except VerificationError as error:
        return _failed(f"verification failed: {error}", 1)
    except DovetailError as error:
        return _failed(str(error), 2)
    except BrokenPipeError:
        _silence_output()
        return 0
    except OSError as error:
        if error.filename is not None:
            name = source_name(os.fsdecode(error.filename))
            return _failed(f"{name}: cannot be read or written: {error.strerror}", 2)
        _silence_output()
        return _failed(f"output cannot be written: {error.strerror or error}", 2)
    except KeyboardInterrupt:
        return _failed("interrupted", INTERRUPTED)
    except Exception as error:
        if os.environ.get("DOVETAIL_DEBUG"):
            raise
        if own := _own_traceback(error, options):
            sys.stderr.write(own)
            whose = "code of your own" if _names_own_class(options) else "code of a plugin"
            return _failed(brief(f"{type(error).__name__} in {whose}: {error}"), 1)
        what = f"internal error, please report it: {type(error).__name__}: {error}"
        return _failed(f"{brief(what)} (DOVETAIL_DEBUG=1 shows where)", 1)
    return status


def _open_closed_streams() -> None:
    """Discard output to a stream that the caller has closed (``>&-``)."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - until the end


def program() -> NoReturn:
    """Run the command line as a process."""
    _part_from_libraries()
    status = main()
    if status == INTERRUPTED:
        # A solver's thread may still be in compiled code, which must not outlive the interpreter.
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _part_from_libraries() -> None:
    """Keep standard output for this program: compiled solvers print debugging lines to it."""
    theirs = sys.__stdout__
    if theirs is None:
        return
    ours = open(  # noqa: SIM115 - until the end
        os.dup(1), "w", encoding=theirs.encoding, errors=theirs.errors
    )
    ours.reconfigure(write_through=theirs.write_through)
    for name in ("stdout", "__stdout__"):
        setattr(sys, name, ours)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _run(command: Command, options: Namespace) -> int:
    if _names_own_class(options) and os.getcwd() not in sys.path:
        # Such a class may be there; the processes of a comparison inherit the path.
        sys.path.append(os.getcwd())
    given = tuple(given_additions(command, options))
    options.added = {field: getattr(options, field) for _, field in given}
    for before in dict.fromkeys(addition.before for addition, _ in given if addition.before):
        _function(before)(options)
    status: int = _function(command.run)(options)
    return status


def _function(path: str) -> Callable[[Namespace], Any]:
    """Import the function that ``MODULE:FUNCTION`` names."""
    module, _, name = path.partition(":")
    found: Callable[[Namespace], Any] = getattr(import_module(module), name)
    return found


def _own_traceback(error: Exception, options: Namespace) -> str:
    """Return the traceback of an error in the user's or a plugin's code; empty if it is ours."""
    import traceback

    from dovetail.solver.outside import own_traceback

    frames = traceback.format_list(own_traceback(error, vars(options).values()))
    return "".join(["Traceback (most recent call last):\n", *frames]) if frames else ""


def _names_own_class(options: Namespace) -> bool:
    return any("python:" in str(value) for value in vars(options).values())


def _silence_output() -> None:
    """Discard further standard output, so that Python's exit does not fail on it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(message: str, status: int) -> int:
    print(f"dovetail: {message}", file=sys.stderr)
    return status


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
