"""``dovetail completion``: a shell's completion of commands, options and choices.

The script contains all words, so that a key press does not start Python. It is not made by shtab,
which does not support fish.
"""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import Final

from dovetail.toolkit.commands import JSON, Argument, Command, argument, option

COMPLETION: Final = Command(
    "completion",
    "Print the completion script for a shell.",
    "dovetail.cli.completion:completion",
    (argument("SHELL", "bash, zsh or fish", choices=("bash", "zsh", "fish")),),
)

_BASH: Final = """\
_dovetail() {
    local word words path="" before="${COMP_WORDS[COMP_CWORD-1]}"
    COMPREPLY=()
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        # The rest is the command line of a job.
        [[ $word == -- ]] && return
        case "$path $word" in
            @COMMANDS@) path="${path:+$path }$word" ;;
        esac
    done
    case "$path" in
@WORDS@
    esac
    case "$path $before" in
@CHOICES@
    esac
    COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _dovetail dovetail"""


_HELP: Final = option("-h, --help", "show this help message and exit")
_VERSION: Final = option("--version", "show program's version number and exit")


def completion(options: Namespace) -> int:
    """Print the script that completes commands in a shell."""
    from dovetail.cli.commands import commands

    top = Command("dovetail", "", arguments=(_VERSION,), commands=commands())
    known = dict(_below("", top))
    match options.shell:
        case "fish":
            print("\n".join(_fish(known)))
        case "zsh":
            print(f"autoload -U +X bashcompinit && bashcompinit\n{_bash(known)}")
        case _:
            print(_bash(known))
    return 0


def _below(path: str, command: Command) -> Iterator[tuple[str, Command]]:
    """Yield a command and all its subcommands, each with the words that call it."""
    yield path, command
    for each in command.commands:
        yield from _below(f"{path} {each.name}".strip(), each)


@cache
def _values() -> Mapping[str, tuple[str, ...]]:
    """Return known values of arguments that also accept others, by the argument's field."""
    from dovetail.executor.jobs.states import JobState
    from dovetail.instances import library
    from dovetail.instances.objectives import OBJECTIVES
    from dovetail.solver.policies.registry import policy_names
    from dovetail.solver.registry import SOLVERS

    policies = policy_names()
    return MappingProxyType(
        {
            "objective": tuple(OBJECTIVES),
            "solver": tuple(SOLVERS),
            "policy": policies,
            "policies": policies,
            "baseline": policies,
            "state": tuple(state.value for state in JobState),
            "shipped": (*library.names(), *library.DATA_SETS.manifest),
        }
    )


def _arguments(command: Command) -> list[Argument]:
    """Return the arguments of a command, with their completions as choices."""
    own = [_HELP, *([] if command.commands else [JSON]), *command.all_arguments]
    return [each._replace(choices=each.choices or tuple(_known(each))) for each in own]


def _known(argument: Argument) -> Iterator[str]:
    """Yield the known values that an argument accepts."""
    for value in _values().get(argument.field, ()):
        with suppress(ArgumentTypeError):
            if argument.kind is not None:
                argument.kind(value)
            yield value


def _options(command: Command) -> list[Argument]:
    return [each for each in _arguments(command) if each.names]


def _first_words(command: Command) -> list[str]:
    """Return the words that may follow a command, except options."""
    positional = (each.choices for each in _arguments(command) if not each.names)
    return [*(each.name for each in command.commands), *chain.from_iterable(positional)]


def _bash(known: Mapping[str, Command]) -> str:
    words, choices = [], []
    for path, command in known.items():
        names = chain.from_iterable(each.names for each in _options(command))
        said = " ".join([*_first_words(command), *names])
        words.append(f'        "{path}") words="{said}" ;;')
        for each in _options(command):
            if each.choices:
                places = "|".join(f'"{path} {name}"' for name in each.names)
                values = " ".join(each.choices)
                choices.append(f'        {places}) words="{values}" ;;')
    paths = (path.rpartition(" ") for path in known if path)
    commands = "|".join(f'"{above} {name}"' for above, _, name in paths)
    made = _BASH.replace("@COMMANDS@", commands).replace("@WORDS@", "\n".join(words))
    return made.replace("@CHOICES@", "\n".join(choices))


def _fish(known: Mapping[str, Command]) -> Iterator[str]:
    for path, command in known.items():
        seen = " && ".join(f"__fish_seen_subcommand_from {name}" for name in path.split())
        below = " ".join(each.name for each in command.commands)
        first = f"not __fish_seen_subcommand_from {below}" if below else ""
        when = _quoted(" && ".join(filter(None, [seen, first])) or "true")
        for sub in command.commands:
            yield f"complete -c dovetail -n {when} -f -a {sub.name} -d {_quoted(sub.text)}"
        if not below and (words := _first_words(command)):
            yield f"complete -c dovetail -n {when} -f -a {_quoted(' '.join(words))}"
        for each in _options(command):
            yield f"complete -c dovetail -n {_quoted(seen or first)} {_fish_option(each)}"


def _fish_option(declared: Argument) -> str:
    names = [f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in declared.names]
    value = ["-r"] if declared.value else []
    if declared.choices:
        value = ["-x", "-a", _quoted(" ".join(declared.choices))]
    return " ".join([*names, *value, "-d", _quoted(declared.text)])


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
