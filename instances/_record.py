"""The base of all records, and how a broken rule is told: path first, then rule, then value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError
from pydantic_core import PydanticCustomError

from dovetail.instances.errors import InputError

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=1e15)]
NonNegative = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1e15)]
Fraction = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1)]
Count = Annotated[StrictInt, Field(ge=1, le=1_000_000)]
Text = Annotated[str, Field(strict=True)]
Name = Annotated[
    str, Field(strict=True, min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")
]
Share = Annotated[StrictInt, Field(ge=1, le=100)]
"""A cap on the percentage of a GPU's SMs that a job may use there."""

_SHOWN = 60


class Record(BaseModel):
    """A frozen record that refuses unknown fields and impossible values when it is built."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    @classmethod
    def from_data(cls, data: object, source: str = "") -> Self:
        """Build the record from plain data (what a JSON or YAML file holds).

        Raises
        ------
        InputError
            One line with the path and the rule of the first field that breaks one.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise _told(error, source) from None

    def to_data(self) -> dict[str, Any]:
        """Return the record as plain data; fields at their default are left out."""
        data = self.model_dump(mode="json", exclude_defaults=True)
        stamp = getattr(self, "format", None)
        return {"format": stamp, **data} if stamp else data

    def replace(self, **changes: object) -> Self:
        """Return a copy with other values in the named fields, checked like a new record.

        Raises
        ------
        InputError
            When the changed record breaks a rule.
        """
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).from_data({**fields, **changes})


def rule_broken(path: str, rule: str) -> PydanticCustomError:
    """Return the error with which a validator refuses values that do not fit each other.

    Parameters
    ----------
    path : str
        Path below the record whose validator raises, for example ``jobs[3].gpus[0]``.
    rule : str
        What must hold, with the offending value.
    """
    return PydanticCustomError("rule", "{rule}", {"rule": rule, "path": path})


def shown(value: object) -> str:
    """Return ``value`` as a message shows it: short and on one line."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def listed(names: Iterable[str], most: int = 6) -> str:
    """Return at most ``most`` of the names, comma separated, and how many more there are."""
    known = list(names)
    more = f", ... ({len(known) - most} more)" if len(known) > most else ""
    return ", ".join(known[:most]) + more


def _told(error: ValidationError, source: str) -> InputError:
    first = error.errors()[0]
    context: Mapping[str, Any] = first.get("ctx") or {}
    location = first["loc"]
    path = _path(location)
    if first["type"] == "rule":
        path = ".".join(part for part in (path, context["path"]) if part).replace(".[", "[")
        return InputError(context["rule"], path, source)
    rule = _RULES.get(first["type"], first["msg"][:1].lower() + first["msg"][1:])
    if first["type"] in ("missing", "extra_forbidden"):
        return InputError(rule, path, source)
    return InputError(f"{rule.format(**context)}, got {shown(first['input'])}", path, source)


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part != "[key]":
            path += f".{part}" if path else part
    return path


_RULES = {
    "missing": "this field is required",
    "extra_forbidden": "unknown field",
    "greater_than_equal": "must be >= {ge:g}",
    "greater_than": "must be > {gt:g}",
    "less_than_equal": "must be <= {le:g}",
    "less_than": "must be < {lt:g}",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "string_type": "must be a text",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping of names to values",
    "mapping_type": "must be a mapping of names to values",
    "model_type": "must be a mapping of field names to values",
    "model_attributes_type": "must be a mapping of field names to values",
    "literal_error": "must be {expected}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must be one line of printable characters",
    "too_long": "must have at most {max_length} items",
    "too_short": "must have at least {min_length} items",
}
