"""The commands that import measurements published with papers."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

from dovetail.data.made_data import write_made_data
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.repository import is_repository
from dovetail.instances.errors import InputError
from dovetail.toolkit.files import write_made


def import_gavel(options: Namespace) -> int:
    """Write an instance of Gavel's measurements."""
    from dovetail.papers.importers.gavel import import_gavel as read

    made = read(
        options.file,
        options.device,
        options.gpus,
        trace=options.trace,
        at_s=options.at,
        gangs_as_single=options.gangs_as_single,
        gpus_per_node=options.gpus_per_node,
    )
    write_made(options, made)
    return 0


def import_lucid(options: Namespace) -> int:
    """Write an instance of Lucid's measurements."""
    from dovetail.papers.importers.lucid import import_lucid as read

    made = read(options.file, options.gpus, gpus_per_node=options.gpus_per_node)
    write_made(options, made)
    return 0


def gavel_data(options: Namespace) -> int:
    """Write a data set of Gavel's throughputs."""
    from dovetail.papers.importers.gavel import gavel_data as read

    return _write_data(read, options)


def lucid_data(options: Namespace) -> int:
    """Write a data set of Lucid's measurements."""
    from dovetail.papers.importers.lucid import lucid_data as read

    return _write_data(read, options)


def miso_data(options: Namespace) -> int:
    """Write a data set of MISO's profiles."""
    from dovetail.papers.importers.miso import miso_data as read

    return _write_data(read, options)


def parvagpu_data(options: Namespace) -> int:
    """Write a data set of ParvaGPU's equal processes."""
    from dovetail.papers.importers.parvagpu import parvagpu_data as read

    return _write_data(read, options)


def _write_data(read: Callable[[str], DataSet], options: Namespace) -> int:
    if is_repository(options.output) and options.parquet:
        raise InputError("goes with a folder, not with a repository", "--parquet")
    write_made_data(options, read(options.path))
    return 0
