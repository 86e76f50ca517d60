"""Metadata of a fitted predictor: its training data and its errors."""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Self

from pydantic import Field, StrictInt

from dovetail.instances._record import ONE_LINE, FrozenMapping, Name, Number, Record
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.records import Date

Sha256 = Annotated[str, Field(strict=True, pattern="^[0-9a-f]{64}$")]
_Split = Annotated[str, Field(strict=True, min_length=1, max_length=300, pattern=ONE_LINE)]
"""A GPU model and the kind of split, so longer than a name."""

_Amount = Annotated[StrictInt, Field(ge=0)]


class TrainingData(Record):
    """The data set that a predictor was fitted on.

    ``sha256`` is the fingerprint of its records, see ``DataSet.fingerprint``. ``licence`` is the
    licence of the data, as given to the fit.
    """

    name: Name
    sha256: Sha256
    profiles: _Amount
    measurements: _Amount
    sources: tuple[Name, ...] = ()
    licence: Name | None = None

    @classmethod
    def of(cls, data: DataSet, licence: str | None = None) -> Self:
        """Describe a data set.

        Raises
        ------
        InputError
            When the licence is not one line of 1 to 200 characters.
        """
        recorded = chain((p.source for p in data.profiles), (m.source for m in data.measurements))
        sources = sorted({source for source in recorded if source is not None})
        fields = {
            "name": data.name,
            "sha256": data.fingerprint,
            "profiles": len(data.profiles),
            "measurements": len(data.measurements),
            "sources": sources,
        }
        return cls.from_data(fields if licence is None else {**fields, "licence": licence})


class About(Record):
    """Origin and errors of a fitted predictor.

    ``held_out`` has errors on held-out pairs, by GPU model and split (``NVIDIA H200: random``,
    ``NVIDIA H200: family``) and by the name of the figure (``mae``).
    """

    created: Date | None = None
    training: TrainingData | None = None
    held_out: FrozenMapping[_Split, FrozenMapping[Name, Number]] = Field({})
