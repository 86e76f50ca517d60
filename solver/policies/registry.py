"""The policies by name, with their options: the core's, those of plugins, any class by its path.

A plugin ``policy.NAME`` names a class with a method ``decide``. Plugins cannot replace the core's
names.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, get_type_hints

from dovetail.instances._record import listed
from dovetail.instances.errors import UnsupportedError, hint, require_call
from dovetail.instances.plugins import plugins
from dovetail.solver.outside import PREFIX, class_at
from dovetail.solver.policies.policy import Policy

POLICIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "castor": "castor:Castor",
        "dovetail": "dovetail:Dovetail",
        "fifo": "exclusive:Fifo",
        "dedicated": "exclusive:Fifo",
        "sjf": "exclusive:Sjf",
        "ssf": "exclusive:Ssf",
        "sjf-ffs": "castor:SjfFfs",
    }
)
"""Module and class of each policy of the core; modules are imported on first use."""

_OWN_NAME: Final = re.compile(rf"([^:=]+)=({PREFIX}.*)", re.S)


def policy_names() -> tuple[str, ...]:
    """Return the names of all policies: the core's, then those of plugins."""
    return tuple(dict.fromkeys((*POLICIES, *plugins("policy"))))


def policy_named(text: str) -> Policy:
    """Return a fresh policy from ``NAME`` or ``NAME:OPTION=VALUE,OPTION=VALUE``.

    ``NAME`` is one of ``policy_names()``, or ``python:MODULE.CLASS`` for any importable class;
    ``LABEL=python:MODULE.CLASS`` gives it a name for display.

    Raises
    ------
    UnsupportedError
        When the name or an option is unknown, a value is not of the option's type, or the
        method ``decide`` of a user's class takes other arguments.
    """
    name, rest = _split(text)
    kind = policy_class(name)
    values = {}
    for part in [] if rest is None else rest.split(","):
        option, equals, value = part.partition("=")
        if not equals:
            raise UnsupportedError(
                f"policy {text!r}: an option is written NAME=VALUE, got {part!r}"
            )
        values[option] = _value(name, kind, option, value)
    try:
        policy = kind(**values)
    except (TypeError, ValueError) as error:
        raise UnsupportedError(f"policy {text!r}: {error}") from None
    if name not in POLICIES:
        require_call(policy.decide, f"{name}.decide must take the argument state", None)
    return policy


def class_named(text: str) -> Callable[..., Policy]:
    """Return the class of a policy that is named with its options, as in ``policy_named``."""
    return policy_class(_split(text)[0])


def policy_label(text: str) -> str:
    """Return the displayed name of a policy: its label, or the whole text if it has none."""
    named = _OWN_NAME.fullmatch(text)
    return named[1] if named else text


def _split(text: str) -> tuple[str, str | None]:
    """Return the name of a policy and the text of its options, None if there is no colon."""
    named = _OWN_NAME.fullmatch(text)
    if named and named[1] in policy_names():
        raise UnsupportedError(f"policy {text!r}: {named[1]} is the name of another policy")
    text = named[2] if named else text
    names = 2 if text.startswith(PREFIX) else 1
    parts = text.split(":", names)
    return ":".join(parts[:names]), parts[names] if len(parts) > names else None


def policy_class(name: str) -> Callable[..., Policy]:
    """Return the class of a policy; its fields are the options.

    Raises
    ------
    UnsupportedError
        When there is no policy of this name, or it cannot be imported.
    """
    if name.startswith(PREFIX):
        return class_at(name, "policy", "decide")
    if name in POLICIES:
        module, _, kind = POLICIES[name].partition(":")
        found: Callable[..., Policy] = getattr(
            import_module(f"dovetail.solver.policies.{module}"), kind
        )
        return found
    plugin = plugins("policy").get(name)
    if plugin is None:
        names = policy_names()
        rule = f"policy must be one of {listed(names, len(names))}, got {name!r}"
        raise UnsupportedError(f"{rule}{hint(name, names)}")
    made = plugin.load_function()
    if not callable(getattr(made, "decide", None)):
        raise plugin.unusable("must be a class with a method decide")
    return made


_READ: Final[Mapping[type, Callable[[str], object]]] = MappingProxyType(
    {int: int, float: float, str: str, bool: lambda text: {"true": True, "false": False}[text]}
)


def _value(name: str, kind: Callable[..., Policy], option: str, value: str) -> object:
    fields: Sequence[dataclasses.Field[Any]] = ()
    if dataclasses.is_dataclass(kind):
        fields = dataclasses.fields(kind)
    options = [field.name for field in fields if field.init]
    if option not in options:
        known = f"its options are {listed(options)}" if options else "it has no options"
        raise UnsupportedError(f"policy {name!r} has no option {option!r}: {known}")
    wanted = get_type_hints(kind)[option]
    if wanted not in _READ:
        raise UnsupportedError(f"policy {name!r}: {option} cannot be given as a text")
    try:
        return _READ[wanted](value)
    except (ValueError, KeyError):
        rule = f"must be of type {wanted.__name__}, got {value!r}"
        raise UnsupportedError(f"policy {name!r}: {option} {rule}") from None
