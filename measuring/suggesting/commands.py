"""``dovetail predictors suggest``: the pairs to measure next."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Group, RenderableType
from rich.text import Text

from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.files import read_dataset
from dovetail.instances.errors import InputError, source_name
from dovetail.toolkit.files import instance_named, print_either
from dovetail.toolkit.progress import working
from dovetail.toolkit.tables import Fitting, Name, fact_lines, plain_table, row_lines

if TYPE_CHECKING:
    from dovetail.measuring.suggesting.suggestions import Suggestion


COLUMNS: Final = ("workload", "and", "shares", "slowdown", "of the other", "worth")


def suggest(options: Namespace) -> int:
    """Print the pairs whose measurement is worth most to the plan."""
    from dovetail.measuring.suggesting.suggestions import SuggestionRound, suggestions
    from dovetail.predictors.fitted.training import process

    data = read_dataset(options.data).in_mode(options.sharing)
    gpu_model = _gpu_model(options, data)
    try:
        if options.instance is None:
            pool = SuggestionRound.of_data(data, gpu_model)
        else:
            pool = SuggestionRound.of_instance(instance_named(options.instance), gpu_model)
        with working("choosing"):
            like = process(data, gpu_model, options.seed)
            found = suggestions(data, gpu_model, like, pool, options.count)
    except InputError as error:
        raise error.at(source_name(options.data)) from None
    print_either(options, [_data(each) for each in found], lambda: _view(data, gpu_model, found))
    return 0


def _gpu_model(options: Namespace, data: DataSet) -> str:
    known = data.gpu_models
    if options.gpu_model in known:
        return str(options.gpu_model)
    if options.gpu_model is None and len(known) == 1:
        return known[0]
    got = "none" if options.gpu_model is None else repr(options.gpu_model)
    rule = f"must be a GPU model of the data ({', '.join(known) or 'none'}), got {got}"
    raise InputError(rule, "--gpu-model", source_name(options.data))


def _data(found: Suggestion) -> dict[str, object]:
    return found._asdict()


def _view(data: DataSet, gpu_model: str, found: Sequence[Suggestion]) -> RenderableType:
    head = fact_lines(("measure next", data.name), ("GPU model", gpu_model))
    if not found:
        return Group(head, Text("\nno pair is expected to change the plan"))
    table = plain_table(*COLUMNS[:2])
    for column in COLUMNS[2:]:
        table.add_column(column, justify="right")
    rows = [_row(each) for each in found]
    for own, other, *cells in rows:
        table.add_row(Name(own), Name(other), *cells)
    return Group(head, Text(), Fitting(table, row_lines(rows, 2, COLUMNS[2:])))


def _row(found: Suggestion) -> tuple[str, ...]:
    shares = "/".join(str(share or "-") for share in found.shares) if any(found.shares) else ""
    slowdowns = (
        f"{slowdown:.2f} ± {slowdown * error:.2f}"
        for slowdown, error in zip(found.slowdown, found.error, strict=True)
    )
    return (*found.workloads, shares, *slowdowns, f"{100 * found.worth:.2f} %")
