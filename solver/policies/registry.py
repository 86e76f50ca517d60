"""The policies by name, with their options."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final, get_type_hints

from dovetail.instances._record import listed
from dovetail.instances.errors import UnsupportedError
from dovetail.solver.policies.policy import Policy

POLICIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "castor": "castor:Castor",
        "dovetail": "dovetail:Dovetail",
        "fifo": "fifo:Fifo",
        "dedicated": "fifo:Fifo",
        "sjf": "sjf:Sjf",
        "ssf": "ssf:Ssf",
        "tiresias": "tiresias:Tiresias",
        "gavel": "gavel:Gavel",
        "lucid": "lucid:Lucid",
        "muri": "muri:Muri",
        "sjf-ffs": "sjf_ffs:SjfFfs",
        "tensorshare": "tensorshare:TensorShare",
        "random": "random_pairs:RandomPairs",
        "unaware": "unaware:Unaware",
        "reactive": "reactive:Reactive",
        "horus": "horus:Horus",
        "binpack": "binpack:Binpack",
        "loadbalance": "loadbalance:LoadBalance",
        "mystic": "mystic:Mystic",
        "coscheml": "coscheml:CoScheML",
    }
)
"""Module and class of each policy; modules are imported when a policy is first made."""


def policy_named(text: str) -> Policy:
    """Return a fresh policy from ``NAME`` or ``NAME:OPTION=VALUE,OPTION=VALUE``.

    Raises
    ------
    UnsupportedError
        When the name or an option is unknown, or a value is not of the option's type.
    """
    name, _, rest = text.partition(":")
    kind = policy_class(name)
    values = {}
    for part in filter(None, rest.split(",")):
        option, equals, value = part.partition("=")
        if not equals:
            raise UnsupportedError(
                f"policy {text!r}: an option is written NAME=VALUE, got {part!r}"
            )
        values[option] = _value(name, kind, option, value)
    try:
        return kind(**values)
    except ValueError as error:
        raise UnsupportedError(f"policy {text!r}: {error}") from None


def policy_class(name: str) -> Callable[..., Policy]:
    """Return the class of a policy; its fields are the options.

    Raises
    ------
    UnsupportedError
        When there is none of this name.
    """
    if name not in POLICIES:
        raise UnsupportedError(f"policy must be one of {listed(POLICIES, 40)}, got {name!r}")
    module, _, kind = POLICIES[name].partition(":")
    found: Callable[..., Policy] = getattr(
        import_module(f"dovetail.solver.policies.{module}"), kind
    )
    return found


_READ: Final[Mapping[type, Callable[[str], object]]] = MappingProxyType(
    {int: int, float: float, str: str, bool: lambda text: {"true": True, "false": False}[text]}
)


def _value(name: str, kind: Callable[..., Policy], option: str, value: str) -> object:
    options = [field.name for field in dataclasses.fields(kind) if field.init]  # type: ignore[arg-type]
    if option not in options:
        known = f"its options are {listed(options)}" if options else "it has no options"
        raise UnsupportedError(f"policy {name!r} has no option {option!r}: {known}")
    wanted = get_type_hints(kind)[option]
    try:
        return _READ[wanted](value)
    except (ValueError, KeyError):
        rule = f"must be of type {wanted.__name__}, got {value!r}"
        raise UnsupportedError(f"policy {name!r}: {option} {rule}") from None
