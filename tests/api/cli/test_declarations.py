"""Every declared command runs, has help, and is parsed as declared."""

from importlib import import_module

import pytest

from dovetail.cli.commands import commands
from dovetail.cli.main import main, parser
from dovetail.toolkit.commands import leaves

ALL = list(leaves(commands()))


@pytest.mark.parametrize(("words", "command"), ALL, ids=[words for words, _ in ALL])
def test_a_command(words, command, capsys):
    module, _, function = command.run.partition(":")
    assert callable(getattr(import_module(module), function))
    with pytest.raises(SystemExit, match="0"):
        main([*words.split(), "--help"])
    output = capsys.readouterr().out
    assert all(name in output for each in command.all_arguments for name in each.names)


@pytest.mark.parametrize(("words", "command"), ALL, ids=[words for words, _ in ALL])
def test_arguments_that_are_not_given_are_as_usual(words, command):
    needed = [
        each
        for each in command.all_arguments
        if each.required or each.number == "+" or _is_one(each)
    ]
    texts = {"gpus": "1", "jobs": "1", "shell": "zsh"}
    typed = [word for each in needed for word in (*each.names[:1], texts.get(each.field, "x"))]
    options = vars(parser().parse_args([*words.split(), *typed]))
    for each in set(command.all_arguments) - {*needed}:
        usual = [] if each.number == "*" else each.usual
        assert options[each.field] == usual


def _is_one(argument):
    return not argument.names and not argument.number
