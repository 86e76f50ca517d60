"""A table in the columns of ``dovetail.advising.usage``, for records of any other kind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from dovetail.advising.reader import Reader
from dovetail.advising.readers._frames import numbers, require, text_frame
from dovetail.advising.usage import COLUMNS, FLAGS, NUMBERS, STATES, UsageRecords
from dovetail.instances._record import shown
from dovetail.instances.errors import InputError, hint, source_name

if TYPE_CHECKING:
    import pandas as pd

_NEEDED: Final = ("job", "gpus")
_YES: Final = ("yes", "true", "1")
_NO: Final = ("no", "false", "0", "")
MOST_GPUS: Final = 1_000_000
_FRACTIONS: Final = ("fraction", "gpu_util", "mem_util", "sm_", "dram_active")


def _recognises(_name: str, start: str) -> bool:
    header = {name.strip() for name in start.partition("\n")[0].split(",")}
    return header.issuperset(_NEEDED) and not header.isdisjoint(COLUMNS[4:])


def _read(path: Path) -> UsageRecords:
    source = source_name(path)
    frame = text_frame(path, _NEEDED)
    for name in frame.columns:
        if name not in COLUMNS:
            raise InputError(f"unknown column {shown(name)}{hint(name, COLUMNS)}", "line 1", source)
    jobs: dict[str, object] = {}
    for name in frame.columns:
        column = frame[name]
        if name in NUMBERS:
            most = 1.0 if name.startswith(_FRACTIONS) else np.inf
            jobs[name] = numbers(column, source, most=most)
        elif name in FLAGS:
            jobs[name] = _truths(column, source)
        else:
            jobs[name] = column.str.strip().replace("", None).to_numpy(object)
    _require_ids(frame["job"], source)
    asked = np.asarray(jobs["gpus"], np.float64)
    whole = np.isnan(asked) | ((asked == np.floor(asked)) & (asked <= MOST_GPUS))
    require(frame["gpus"], whole, f"must be a whole number <= {MOST_GPUS}", source)
    if "state" in frame:
        known = frame["state"].isin(STATES).to_numpy()
        require(frame["state"], known, f"must be one of {', '.join(STATES)}", source)
    import pandas as pd

    return UsageRecords.of(pd.DataFrame(jobs))


def _truths(column: pd.Series[str], source: str) -> NDArray[np.bool_]:
    words = column.str.strip().str.lower()
    require(column, words.isin((*_YES, *_NO)).to_numpy(), "must be yes or no", source)
    return np.asarray(words.isin(_YES))


def _require_ids(column: pd.Series[str], source: str) -> None:
    require(column, column.str.strip().ne("").to_numpy(), "must not be empty", source)
    require(column, ~column.duplicated().to_numpy(), "must differ in every row", source)


TABLE: Final = Reader("a CSV table in Dovetail's own columns", _recognises, _read)
