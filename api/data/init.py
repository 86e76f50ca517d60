"""``dovetail init``: an instance with comments, to start from."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import Final

from dovetail.instances.errors import InputError, source_name
from dovetail.toolkit.commands import Command, argument

INIT: Final = Command(
    "init",
    "Write an instance with comments, to start from.",
    "dovetail.data.init:init",
    (argument("[FILE]", "name of the file (default: lab.yaml); - for standard output"),),
)


def init(options: Namespace) -> int:
    """Write an instance to start from; never overwrite a file."""
    from importlib.resources import files

    from dovetail.instances.files import write_data
    from dovetail.instances.reading.contents import write_text

    text = files(__package__).joinpath("lab.yaml").read_text(encoding="utf-8")
    name = options.file or "lab.yaml"
    if name != "-" and os.path.exists(name):
        raise InputError("exists already: name a new file", "", source_name(name))
    write_text(name, text)
    if name == "-":
        return 0
    if options.json:
        write_data({"written_to": name}, "-")
    else:
        print(f"-> {name}: next, dovetail plan {name}")
    return 0
