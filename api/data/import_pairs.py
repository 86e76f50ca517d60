"""``dovetail import pairs``: an instance from a table of pairs."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Final

from dovetail.instances.errors import source_name
from dovetail.toolkit.commands import (
    GPUS,
    GPUS_PER_NODE,
    OUTPUT,
    SHARING,
    Command,
    argument,
    option,
)
from dovetail.toolkit.files import write_made

PAIRS: Final = Command(
    "pairs",
    "Make an instance from a table of pairs and slowdowns.",
    "dovetail.data.import_pairs:import_pairs",
    (
        argument("FILE.csv", "columns as in docs/howto/import-data.md", "file"),
        option("--device DEVICE", "take the rows of this device only"),
        GPUS,
        GPUS_PER_NODE,
        SHARING,
        OUTPUT,
    ),
)


def import_pairs(options: Namespace) -> int:
    """Write an instance made from a table of pairs."""
    from dovetail.instances.importers.pairs import import_pairs as read

    made = read(
        options.file,
        options.gpus,
        device=options.device,
        gpus_per_node=options.gpus_per_node,
        sharing=options.sharing,
    )
    for note in made.notes:
        print(f"dovetail: {source_name(options.file)}: {note}", file=sys.stderr)
    write_made(options, made.instance)
    return 0
