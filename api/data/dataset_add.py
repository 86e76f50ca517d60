"""``dovetail dataset add``: append measurements to a repository."""

from __future__ import annotations

import os
from argparse import Namespace
from functools import reduce
from typing import Final

from dovetail.data.made_data import counted_data, tell_data
from dovetail.instances.errors import InputError, source_name
from dovetail.toolkit.commands import DATA, Command, argument

ADD: Final = Command(
    "add",
    "Append to a repository, all or nothing.",
    "dovetail.data.dataset_add:add",
    (
        argument("REPO.db", "repository; made if it does not exist", "repository"),
        DATA._replace(number="+"),
    ),
)


def add(options: Namespace) -> int:
    """Append data sets to a repository, all of them or none."""
    from dovetail.instances.datasets.dataset import DataSet, slowdowns_of
    from dovetail.instances.datasets.files import read_dataset
    from dovetail.instances.datasets.repository import Repository, is_repository
    from dovetail.instances.slowdowns.gathering import require_slowdowns

    if not is_repository(options.repository):
        rule = "must be a repository: a name that ends in .db or .sqlite"
        raise InputError(rule, "", source_name(options.repository))
    if any(os.path.realpath(path) == os.path.realpath(options.repository) for path in options.data):
        raise InputError("is the repository itself", "", source_name(options.repository))
    given = [read_dataset(path) for path in options.data]
    for path, added in zip(options.data, given, strict=True):
        require_slowdowns([*slowdowns_of(added.measurements)], "slowdowns", source_name(path))
    data = reduce(DataSet.merged, given)
    sequence = Repository(options.repository).append(data.profiles, data.measurements)
    name = ", ".join(options.data)
    written = {"written_to": options.repository, "sequence": sequence}
    tell_data(options, {"name": name, **counted_data(data), **written})
    return 0
