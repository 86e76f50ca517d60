"""What ``dovetail completion`` prints: a shell's completion of commands, options and choices.

The script has all words in it, so that a key press asks no Python. Made here and not by shtab,
which has no fish.
"""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Final

from dovetail.cli.main import parser

_BASH: Final = """\
_dovetail() {
    local word words path="" before="${COMP_WORDS[COMP_CWORD-1]}"
    COMPREPLY=()
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        # What follows is the command line of a job.
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


def completion(options: Namespace) -> int:
    """Print the script that completes commands in a shell."""
    known = dict(_commands("", parser()))
    match options.shell:
        case "fish":
            print("\n".join(_fish(known)))
        case "zsh":
            print(f"autoload -U +X bashcompinit && bashcompinit\n{_bash(known)}")
        case _:
            print(_bash(known))
    return 0


def _commands(path: str, command: argparse.ArgumentParser) -> Iterator[tuple[str, _Command]]:
    """Yield all commands below one, and itself, by the words that lead there."""
    yield path, _Command(command)
    for name, below in _Command(command).below.items():
        yield from _commands(f"{path} {name}".strip(), below)


class _Command:
    """A command's own words.

    Attributes
    ----------
    text : str
        What it is for.
    options : list of argparse.Action
        Those that are no positional arguments.
    below : dict of str to ArgumentParser
        Its sub-commands.
    choices : list of str
        Of its positional arguments.
    """

    def __init__(self, command: argparse.ArgumentParser) -> None:
        actions = command._actions  # argparse tells them nowhere else
        self.text = command.description or ""
        self.options = [action for action in actions if action.option_strings]
        self.below: Mapping[str, argparse.ArgumentParser] = {}
        self.choices: list[str] = []
        for action in actions:
            if isinstance(action, argparse._SubParsersAction):
                self.below = action.choices
            elif not action.option_strings and action.choices:
                self.choices += map(str, action.choices)


def _bash(known: Mapping[str, _Command]) -> str:
    paths = [path.rpartition(" ")[::2] for path in known if path]
    words, choices = [], []
    for path, command in known.items():
        options = [name for action in command.options for name in action.option_strings]
        said = " ".join([*command.below, *command.choices, *options])
        words.append(f'        "{path}") words="{said}" ;;')
        for action in command.options:
            if action.choices:
                places = "|".join(f'"{path} {name}"' for name in action.option_strings)
                values = " ".join(map(str, action.choices))
                choices.append(f'        {places}) words="{values}" ;;')
    commands = "|".join(f'"{above} {name}"' for above, name in paths)
    made = _BASH.replace("@COMMANDS@", commands).replace("@WORDS@", "\n".join(words))
    return made.replace("@CHOICES@", "\n".join(choices))


def _fish(known: Mapping[str, _Command]) -> Iterator[str]:
    for path, command in known.items():
        names = path.split()
        seen = " && ".join(f"__fish_seen_subcommand_from {name}" for name in names)
        below = " ".join(command.below)
        first = f"not __fish_seen_subcommand_from {below}" if below else ""
        when = _quoted(" && ".join(filter(None, [seen, first])) or "true")
        for name in command.below:
            text = _quoted(known[f"{path} {name}".strip()].text)
            yield f"complete -c dovetail -n {when} -f -a {name} -d {text}"
        if command.choices:
            yield f"complete -c dovetail -n {when} -f -a {_quoted(' '.join(command.choices))}"
        for action in command.options:
            yield f"complete -c dovetail -n {_quoted(seen or first)} {_fish_option(action)}"


def _fish_option(action: argparse.Action) -> str:
    names = [f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in action.option_strings]
    value = [] if action.nargs == 0 else ["-r"]
    if action.choices:
        value = ["-x", "-a", _quoted(" ".join(map(str, action.choices)))]
    text = (action.help or "").replace("%%", "%")
    return " ".join([*names, *value, "-d", _quoted(text)])


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
