"""The base of all records, and the text of a broken rule: path first, then rule, then value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NoReturn,
    Self,
    TypeVar,
    get_args,
)

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    StrictInt,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError, PydanticKnownError
from pydantic_core.core_schema import (
    CoreSchema,
    no_info_wrap_validator_function,
    plain_serializer_function_ser_schema,
)

from dovetail.instances.errors import InputError, hint, with_article

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails
    from typing_extensions import TypeIs

# Control characters, line separators, characters that change the direction of text or have no
# width, and code points that are no characters.
_NOT_IN_NAMES = (
    r"\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufffe\uffff"
)
_IN_NAMES = f"[^{_NOT_IN_NAMES}]"
SEEN_IN_NAMES = rf"[^{_NOT_IN_NAMES}\s]"
"""A character of a name that is not blank."""

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
LEAST_POSITIVE = 1e-9
Positive = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=LEAST_POSITIVE, le=1e15)]
"""No measured value is smaller, and quotients of such numbers stay finite."""
NonNegative = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1e15)]
Variance = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1e30)]
"""The variance of numbers up to 1e15 is at most their square."""
Fraction = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1)]
Confidence = Annotated[float, Field(strict=True, gt=0, lt=1)]
Count = Annotated[StrictInt, Field(ge=1, le=1_000_000)]


def _whole(text: str) -> str:
    """Refuse lone surrogates, which no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PydanticKnownError("string_unicode") from None
    return text


Text = Annotated[str, Field(strict=True), AfterValidator(_whole)]
ONE_LINE = f"^{_IN_NAMES}*{SEEN_IN_NAMES}{_IN_NAMES}*$"
"""The pattern of one line of printable characters, not all blank."""
Name = Annotated[str, Field(strict=True, min_length=1, max_length=200, pattern=ONE_LINE)]
Share = Annotated[StrictInt, Field(ge=1, le=100)]
"""A cap on the percentage of a GPU's SMs that a job may use there."""


Idle = Literal["idle"]

IDLE: Final[Idle] = "idle"
"""No SMs of its own: a job's thread blocks run while its co-runners have none."""

AnyShare = int | Idle | None
"""A cap in percent, ``idle``, or None for no cap; ``instances.slowdowns.shares`` has its codes."""


def _cap_or_idle(value: object, cap: ValidatorFunctionWrapHandler) -> int | Idle:
    if value == IDLE:
        return IDLE
    if isinstance(value, str):
        raise rule_broken("", f"must be a whole number or idle, got {shown(value)}")
    number: int = cap(value)
    return number


def _schema_of_share(_: object, handler: GetCoreSchemaHandler) -> CoreSchema:
    """Return the schema of a cap, where ``idle`` may stand in its place."""
    return no_info_wrap_validator_function(
        _cap_or_idle,
        handler.generate_schema(Share),
        serialization=plain_serializer_function_ser_schema(lambda share: share),
    )


SeatShare = Annotated[
    int | Idle,
    GetPydanticSchema(_schema_of_share),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 100}, {"const": "idle"}]}
    ),
]
"""A job's share of a GPU: a cap, or ``idle``."""

Slowdown = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=1e-3, le=1e15)]
"""Iteration time together / alone. Measured slowdowns are hardly below 0.5."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_SHOWN = 60


class FrozenDict(dict[_Key, _Value]):
    """A dict that refuses changes, so that a record stays as it was checked."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a record's mapping cannot be changed; Record.replace makes a new record")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[Self], tuple[dict[_Key, _Value]]]:
        return type(self), (dict(self),)


FrozenMapping = Annotated[
    Mapping[_Key, _Value], Field(validate_default=True), AfterValidator(FrozenDict)
]
"""A mapping of a record, which cannot be changed in place."""


class Record(BaseModel):
    """A frozen record that refuses unknown fields and impossible values when it is built."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    elsewhere: ClassVar[Mapping[str, str]] = {}
    """Advice for field names of other systems that this record does not have."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """Register the names of the fields."""
        _FIELDS.update(cls.model_fields)

    @classmethod
    def from_data(cls, data: object, source: str = "") -> Self:
        """Build the record from plain data, such as the content of a JSON or YAML file.

        Raises
        ------
        InputError
            One line with the path and the rule of the first field that breaks one.
        """
        try:
            if _is_long(data):
                _refuse_beginning(cls, data)
            return cls.model_validate(data)
        except ValidationError as error:
            raise input_error(cls, error.errors(include_url=False), source) from None

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
    """Return the error for a validator to raise for values that do not fit together.

    Parameters
    ----------
    path : str
        Path below the record whose validator raises, for example ``jobs[3].gpus[0]``.
    rule : str
        The broken rule, with the offending value.
    """
    return PydanticCustomError("rule", "{rule}", {"rule": rule, "path": path})


@contextmanager
def as_input_error() -> Iterator[None]:
    """Convert an error of `rule_broken` into an `InputError`, outside of validation."""
    try:
        yield
    except PydanticCustomError as error:
        context = error.context or {}
        raise InputError(context["rule"], context["path"]) from None


def shown(value: object) -> str:
    """Return ``value`` as shown in messages: short, on one line, spelled as in a file."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return _shown_number(value)
        case str():
            text = repr(value[:_SHOWN])
            return text if len(value) <= _SHOWN else f"{text}..."
        case Mapping():
            return "a mapping"
        case Sequence():
            return "an empty list" if not value else "a list"
    return with_article(type(value).__name__)


def listed(names: Iterable[str], most: int = 6, total: int | None = None) -> str:
    """Return at most ``most`` of the names, comma separated, and how many more there are.

    If only the first names are given, ``total`` is the number of all.
    """
    known = list(names)
    number = len(known) if total is None else total
    more = f", ... ({number - most} more)" if number > most else ""
    return ", ".join(map(_brief, known[:most])) + more


def _brief(name: str) -> str:
    return name if name.isprintable() and len(name) <= _SHOWN else shown(name)


def _shown_number(value: float) -> str:
    # Python refuses to write out integers of thousands of digits.
    return "a huge number" if abs(value) > 1e100 and isinstance(value, int) else f"{value!r}"


def input_error(record: type[Record], errors: list[ErrorDetails], source: str = "") -> InputError:
    """Return the most helpful of pydantic's errors for the data of a record."""
    first = _most_telling(errors)
    kind, location = first["type"], first["loc"]
    path = _path(location)
    if kind == "rule":
        context = first["ctx"]
        return InputError(context["rule"], joined_path(path, context["path"]), source)
    if kind == "missing":
        thing = "item" if isinstance(location[-1], int) else "field"
        return InputError(f"this {thing} is required", path, source)
    if kind == "extra_forbidden":
        return InputError(_unknown_field(record, location), path, source)
    got = first.get("ctx", {}).get("actual_length", first["input"])
    return InputError(f"{_rule(first)}, got {shown(got)}", path, source)


def _refuse_beginning(record: type[Record], data: object) -> None:
    """Refuse data with a long mapping or list if its first items break a rule.

    Each error takes about a kilobyte, and a file of a few megabytes can have a million. References
    into the rest of the data are left to the validation of the whole.

    Raises
    ------
    ValidationError
        With the errors of the first items.
    """
    try:
        record.model_validate(_beginning(data))
    except ValidationError as error:
        if error.errors(include_url=False)[0]["type"] != "rule":
            raise


def _is_long(data: object) -> bool:
    if isinstance(data, Mapping):
        return len(data) > _FIRST_ITEMS or any(map(_is_long, data.values()))
    if isinstance(data, list):
        return len(data) > _FIRST_ITEMS or any(map(_is_long, data))
    return False


def _beginning(data: object) -> object:
    """Return data with the first items of each mapping and list, and all fields of records."""
    if isinstance(data, Mapping):
        keys = [*islice(data, _FIRST_ITEMS), *(_FIELDS & data.keys())]
        return {key: _beginning(data[key]) for key in keys}
    if isinstance(data, list):
        return [_beginning(value) for value in data[:_FIRST_ITEMS]]
    if isinstance(data, Sequence) and not isinstance(data, str):
        return data[:_FIRST_ITEMS]
    return data


def _most_telling(errors: list[ErrorDetails]) -> ErrorDetails:
    """Return the first error, preferring a misspelled name to the field that it leaves missing."""
    first = errors[0]
    if first["type"] != "missing":
        return first
    record = first["loc"][:-1]
    misspelled = (
        error
        for error in errors
        if error["type"] == "extra_forbidden" and error["loc"][:-1] == record
    )
    return next(misspelled, first)


def _rule(error: ErrorDetails) -> str:
    if error["type"] == "float_type" and type(error["input"]) is int:
        return _RULES["float_overflow"]
    template = _RULES.get(error["type"])
    if template is None:
        return error["msg"][:1].lower() + error["msg"][1:]
    if error["type"] == "greater_than_equal" and _is_not_positive(error):
        return _RULES["greater_than"].format(gt=0)
    context = {name: _limit(value) for name, value in error.get("ctx", {}).items()}
    if error["type"] == "float_type" and _is_percentage(error["input"]):
        of_a_gpu = str(error["loc"][-1]).endswith("memory_mib")
        return f"{template}{' (MiB; memory_percent takes a percentage)' * of_a_gpu}"
    subject = "the key " if error["loc"][-1:] == (_KEY,) else ""
    return subject + template.format(**context)


def _is_not_positive(error: ErrorDetails) -> bool:
    """Return whether a number that must be positive is not."""
    return bool(error["ctx"]["ge"] == LEAST_POSITIVE and error["input"] <= 0)


def _is_percentage(value: object) -> bool:
    return isinstance(value, str) and value.rstrip().endswith("%")


def _limit(value: object) -> object:
    return f"{value:.15g}" if isinstance(value, float | int) else value


def _unknown_field(record: type[Record], location: tuple[int | str, ...]) -> str:
    owner, name = _record_at(record, location[:-1]), str(location[-1])
    if name in owner.elsewhere:
        return f"unknown field: {owner.elsewhere[name]}"
    known = owner.model_fields
    near = hint(name, known, cutoff=0.7)
    return f"unknown field{near}" if near else f"unknown field, known are: {listed(known, 20)}"


def _record_at(record: type[Record], location: tuple[int | str, ...]) -> type[Record]:
    """Return the type of the record that a file holds at ``location`` below ``record``."""
    kind: object = record
    for part in location:
        kind = kind.model_fields[str(part)].annotation if _is_record(kind) else _element(kind)
        kind = get_args(kind)[0] if NoneType in get_args(kind) else kind
    return kind if _is_record(kind) else record


def _element(container: object) -> object:
    bases = (*getattr(container, "__orig_bases__", ()), container)
    return next(kind for base in bases for kind in get_args(base) if _is_record(kind))


def _is_record(kind: object) -> TypeIs[type[Record]]:
    return isinstance(kind, type) and issubclass(kind, Record)


def joined_path(path: str, below: str) -> str:
    return ".".join(part for part in (path, below) if part).replace(".[", "[")


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part != _KEY:
            path = field_path(path, part)
    return path


def field_path(path: str, name: str) -> str:
    """Return the path of the field or key ``name`` below ``path``; odd names are quoted."""
    if len(name) > _SHOWN or not _PLAIN_NAME.fullmatch(name):
        return f"{path}[{shown(name)}]"
    return f"{path}.{name}" if path else name


_FIRST_ITEMS = 1_000
_FIELDS: set[str] = set()
"""The names of the fields of all records."""

_KEY = "[key]"
"""Pydantic's mark for a rule broken by the key of a mapping instead of its value."""

_PLAIN_NAME = re.compile(r"[\w-]+")

_RULES = {
    "greater_than_equal": "must be >= {ge}",
    "greater_than": "must be > {gt}",
    "less_than": "must be < {lt}",
    "less_than_equal": "must be <= {le}",
    "float_overflow": "must be <= 1e+15",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping of names to values",
    "model_type": "must be a mapping of field names to values",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "string_unicode": "must be text of whole Unicode characters",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must be one line of printable characters, not all blank",
    "too_long": "must have {max_length} or fewer items",
    "too_short": "must have {min_length} or more items",
}
