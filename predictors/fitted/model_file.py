"""Model files: a fitted predictor as data (``dovetail-model/2``).

A zip with ``model.json``, which describes the content, one ``.npy`` array for each part of a form
or a bound, and the data set that each was fitted on. Reading a file runs no code from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import itemgetter
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictBool, StrictInt

from dovetail.instances._record import FrozenMapping, Name, Record, Slowdown, shown
from dovetail.instances._version import VERSION
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.reading.contents import FilePath, parse_json, read_bytes, write_bytes
from dovetail.instances.reading.json_text import json_text
from dovetail.instances.slowdowns.entry import SharingMode
from dovetail.predictors.features import Features
from dovetail.predictors.fitted.about import About
from dovetail.predictors.fitted.archive import array, packed, unpacked
from dovetail.predictors.fitted.bounds import Calibration
from dovetail.predictors.fitted.evidence import MOST_RECORDS, Evidence
from dovetail.predictors.fitted.fits import Bound, FittedForm, ModelFit
from dovetail.predictors.fitted.trained import TrainedPredictor
from dovetail.predictors.forms import form_class
from dovetail.predictors.forms.form import Arrays

MODEL_FORMAT: Final = "dovetail-model/2"

_READ: Final = ("dovetail-model/1", MODEL_FORMAT)
"""Formats that are read; the first had no training data."""

UNITS: Final[Mapping[str, str]] = {
    "slowdown": "iteration time together / iteration time alone on the whole GPU",
    "fractions": "0 to 1",
    "memory": "MiB",
    "power": "W",
    "rates": "bytes/s",
    "share": "per cent of the SMs, 0 for no cap",
    "throughput": "iterations/s",
}
"""The units of a model file; a file with other units is refused."""

_HEADER = "model.json"

ArrayName = Annotated[str, Field(strict=True, pattern="^[a-z][a-z0-9_]{0,63}$")]
_Position = Annotated[StrictInt, Field(ge=0)]
_Cap = Annotated[StrictInt, Field(ge=0, le=100)]


class MemberRecord(Record):
    """A fitted model: its form and its features.

    ``families`` has the family of each workload in ``known``.
    """

    model: Name
    form: Name
    features: tuple[Name, ...]
    known: tuple[Name, ...] = ()
    families: tuple[Name, ...] = ()
    arrays: tuple[ArrayName, ...]


class FitRecord(Record):
    """The fit for one GPU model; see ``ModelFit``.

    ``data`` says whether the file has its training data.
    """

    gpu_model: Name
    member: MemberRecord
    measured: tuple[Name, ...]
    splits: tuple[tuple[_Cap, _Cap], ...]
    limits: tuple[Slowdown, Slowdown]
    bound: tuple[ArrayName, ...] | None = None
    power: MemberRecord | None = None
    pairs: tuple[tuple[_Position, _Position], ...] = ()
    families: tuple[Name, ...] = ()
    data: StrictBool = False


class ModelRecord(Record):
    """``model.json``: everything about a fitted predictor except its arrays."""

    format: Literal["dovetail-model/1", "dovetail-model/2"] = MODEL_FORMAT
    dovetail: Name
    units: FrozenMapping[Name, Name]
    confidence: Annotated[float, Field(strict=True, gt=0, lt=1)]
    mode: SharingMode = "mps"
    about: About
    fits: Annotated[tuple[FitRecord, ...], Field(min_length=1, max_length=100)]


def save_model(predictor: TrainedPredictor, path: FilePath) -> None:
    """Write a fitted predictor to a file; `load_model` reads it back with the same predictions.

    The same predictor gives the same bytes. The file is written atomically.

    Parameters
    ----------
    predictor : TrainedPredictor
        The predictor to write; its gang sizes belong to an instance and are left out.
    path : str or path
        By convention it ends in ``.dovetail``; ``-`` is standard output.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    entries = dict(sorted(_arrays(predictor), key=itemgetter(0)))
    header = json_text(_header(predictor).model_dump(mode="json", exclude_none=True))
    write_bytes(path, packed({_HEADER: header, **entries, **dict(_data(predictor))}))


def load_model(path: FilePath) -> TrainedPredictor:
    """Read a fitted predictor from a file, which is not trusted.

    Parameters
    ----------
    path : str or path
        The file; ``-`` is standard input.

    Raises
    ------
    InputError
        When the file is no model file, has a newer format, is damaged or too large, lacks a part
        or has an extra one, or a part is invalid; the message is one line.
    """
    raw = read_bytes(path)
    try:
        parts = unpacked(raw)
        record = _record(parts)
        _check_parts(record, parts)
        return _predictor(record, parts)
    except InputError as error:
        raise error.at(source_name(path)) from None


def _header(predictor: TrainedPredictor) -> ModelRecord:
    return ModelRecord(
        dovetail=VERSION,
        units=UNITS,
        confidence=predictor.confidence,
        mode=predictor.mode,
        about=predictor.about,
        fits=tuple(_fit_record(model, fit) for model, fit in predictor.fits.items()),
    )


def _fit_record(gpu_model: str, fit: ModelFit) -> FitRecord:
    return FitRecord(
        gpu_model=gpu_model,
        member=_member_record(fit.member),
        measured=fit.measured,
        splits=fit.splits,
        limits=fit.limits,
        bound=None if fit.bound is None else tuple(sorted(fit.bound.arrays())),
        power=None if fit.power is None else _member_record(fit.power),
        pairs=fit.pairs,
        families=fit.families,
        data=fit.evidence is not None,
    )


def _member_record(member: FittedForm) -> MemberRecord:
    return MemberRecord(
        model=member.model,
        form=member.form.kind,
        features=member.features.names,
        known=member.features.known,
        families=member.features.families,
        arrays=tuple(sorted(member.form.arrays())),
    )


def _arrays(predictor: TrainedPredictor) -> Iterator[tuple[str, NDArray[np.generic]]]:
    for k, fit in enumerate(predictor.fits.values()):
        yield from _entries(_member_place(k), fit.member.form.arrays())
        if fit.power is not None:
            yield from _entries(_power_place(k), fit.power.form.arrays())
        if fit.bound is not None:
            yield from _entries(_bound_place(k), fit.bound.arrays())


def _data(predictor: TrainedPredictor) -> Iterator[tuple[str, str]]:
    for k, fit in enumerate(predictor.fits.values()):
        if fit.evidence is not None:
            yield _data_place(k), json_text(fit.evidence.data.to_data())


def _entries(place: str, arrays: Arrays) -> Iterator[tuple[str, NDArray[np.generic]]]:
    return ((_entry(place, name), np.asarray(values)) for name, values in arrays.items())


def _member_place(fit: int) -> str:
    return f"fits/{fit}/member"


def _power_place(fit: int) -> str:
    return f"fits/{fit}/power"


def _bound_place(fit: int) -> str:
    return f"fits/{fit}/bound"


def _data_place(fit: int) -> str:
    return f"fits/{fit}/data.json"


def _entry(place: str, name: str) -> str:
    return f"{place}/{name}.npy"


def _record(parts: Mapping[str, bytes]) -> ModelRecord:
    if _HEADER not in parts:
        raise InputError(f"is not a model file: it has no {_HEADER}")
    data = _json(parts, _HEADER)
    if isinstance(data, dict) and data.get("format") not in _READ:
        got = data.get("format")
        newer = isinstance(got, str) and got.startswith("dovetail-model/")
        hint = " (a newer Dovetail may read it)" if newer else ""
        raise InputError(f"must be {MODEL_FORMAT!r}, got {shown(got)}{hint}", "format")
    record = ModelRecord.from_data(data)
    for quantity in sorted(UNITS.keys() | record.units.keys()):
        got = record.units.get(quantity)
        if got != UNITS.get(quantity):
            rule = f"must be {shown(UNITS.get(quantity))}, got {shown(got)}"
            raise InputError(rule, f"units.{quantity}")
    _refuse_repeats(record)
    return record


def _json(parts: Mapping[str, bytes], name: str) -> object:
    try:
        return parse_json(parts[name].decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError("must be UTF-8 text", name) from None


def _refuse_repeats(record: ModelRecord) -> None:
    seen: set[str] = set()
    for k, fit in enumerate(record.fits):
        if fit.gpu_model in seen:
            rule = f"GPU models must differ, got {shown(fit.gpu_model)} twice"
            raise InputError(rule, f"fits[{k}].gpu_model")
        seen.add(fit.gpu_model)


def _check_parts(record: ModelRecord, parts: Mapping[str, bytes]) -> None:
    expected = {_HEADER, *_expected(record)}
    for name in sorted(expected - parts.keys()):
        raise InputError("this part is missing", name)
    for name in sorted(parts.keys() - expected):
        raise InputError("is no part of a model file", shown(name))


def _expected(record: ModelRecord) -> Iterator[str]:
    for k, fit in enumerate(record.fits):
        yield from (_entry(_member_place(k), name) for name in fit.member.arrays)
        if fit.power is not None:
            yield from (_entry(_power_place(k), name) for name in fit.power.arrays)
        yield from (_entry(_bound_place(k), name) for name in fit.bound or ())
        if fit.data:
            yield _data_place(k)


def _predictor(record: ModelRecord, parts: Mapping[str, bytes]) -> TrainedPredictor:
    fits = {}
    for k, fit in enumerate(record.fits):
        with _within(f"fits[{k}]"):
            fits[fit.gpu_model] = _fit(fit, k, parts, record.mode)
    return TrainedPredictor(fits, record.confidence, record.about, mode=record.mode)


def _fit(record: FitRecord, k: int, parts: Mapping[str, bytes], mode: SharingMode) -> ModelFit:
    with _within("member"):
        member = _member(record.member, _member_place(k), parts)
    with _within("power"):
        power = record.power and _member(record.power, _power_place(k), parts)
    with _within("bound"):
        bound = record.bound and _bound(record.bound, _bound_place(k), parts)
    with _within("data"):
        evidence = _evidence(record, k, parts, mode) if record.data else None
    return ModelFit(
        member=member,
        measured=record.measured,
        splits=record.splits,
        limits=record.limits,
        bound=bound or None,
        power=power or None,
        pairs=record.pairs,
        families=record.families,
        evidence=evidence,
    )


def _evidence(record: FitRecord, k: int, parts: Mapping[str, bytes], mode: SharingMode) -> Evidence:
    data = DataSet.from_data(_json(parts, _data_place(k)))
    for gpu_model in data.gpu_models:
        if gpu_model != record.gpu_model:
            rule = f"must be of {shown(record.gpu_model)} only, got {shown(gpu_model)}"
            raise InputError(rule, "gpu_model")
    if data.in_mode(mode) is not data:
        raise InputError(f"must be of mode {mode} only", "measurements")
    records = len(data.profiles) + len(data.measurements)
    if records > MOST_RECORDS:
        raise InputError(f"must have at most {MOST_RECORDS} records, got {records}")
    return Evidence(data)


def _member(record: MemberRecord, place: str, parts: Mapping[str, bytes]) -> FittedForm:
    arrays = _read(place, record.arrays, parts)
    return FittedForm(
        model=record.model,
        features=Features(record.features, record.known, record.families),
        form=form_class(record.form).from_arrays(arrays, len(record.features)),
    )


def _bound(names: tuple[str, ...], place: str, parts: Mapping[str, bytes]) -> Bound:
    return Calibration.from_arrays(_read(place, names, parts))


def _read(place: str, names: tuple[str, ...], parts: Mapping[str, bytes]) -> dict[str, Any]:
    return {name: array(name, parts[_entry(place, name)]) for name in names}


@contextmanager
def _within(path: str) -> Iterator[None]:
    """Name the part in its errors."""
    try:
        yield
    except InputError as error:
        raise InputError(error.rule, f"{path}.{error.path}".rstrip(".")) from None
