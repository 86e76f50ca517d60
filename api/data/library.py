"""``dovetail library``: what is shipped."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import TYPE_CHECKING, Final

from dovetail.instances.errors import InputError
from dovetail.toolkit.commands import OUTPUT, Command, argument
from dovetail.toolkit.files import print_either, write_made
from dovetail.toolkit.tables import text_rows

if TYPE_CHECKING:
    from dovetail.instances.library import LibraryDataSet, LibraryInstance

LIBRARY: Final = Command(
    "library",
    "List the shipped instances and data sets; write an instance, or describe a data set.",
    "dovetail.data.library:library",
    (
        argument(
            "[NAME]",
            "write this instance, or print what this data set is (default: list all)",
            "shipped",
        ),
        OUTPUT,
    ),
)


def library(options: Namespace) -> int:
    """List the shipped instances and data sets, or write an instance, or describe a data set."""
    from dovetail.instances import library as shipped
    from dovetail.instances.files import write_data
    from dovetail.instances.reading.contents import write_text

    name: str | None = options.shipped
    entries: dict[str, LibraryInstance | LibraryDataSet] = {
        **shipped.manifest(),
        **shipped.DATA_SETS.manifest,
    }
    if name is None:
        if options.output != OUTPUT.usual:
            raise InputError("--output needs the NAME of an instance or a data set")
        data = {name: entry.to_data() for name, entry in entries.items()}
        view = partial(text_rows, [(name, entry.title) for name, entry in entries.items()])
        print_either(options, data, view)
    elif name not in entries:
        raise shipped.not_shipped(name, entries, "an instance or a data set")
    elif name not in shipped.DATA_SETS.manifest:
        write_made(options, shipped.load(name))
    elif options.json:
        write_data(entries[name].to_data(), options.output)
    else:
        readme = shipped.DATA_SETS.folder / name / "README.md"
        write_text(options.output, readme.read_text(encoding="utf-8"))
    return 0
