"""Fitted models as arrays: what is saved, loaded and run, with numpy alone."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from dovetail.instances.errors import InputError
from dovetail.predictors.forms.form import Form

__all__ = ["FORMS", "Form", "form_class"]

FORMS: Final[Mapping[str, str]] = {
    "analytic": "Analytic",
    "constant": "Constant",
    "forest": "Forest",
    "hierarchy": "Hierarchy",
    "network": "Network",
    "totals": "Totals",
}
"""The forms by kind, each the class of this name in the module of its kind."""


def form_class(kind: str) -> type[Form]:
    """Return the form of a kind.

    Raises
    ------
    InputError
        When there is no such kind.
    """
    if kind not in FORMS:
        raise InputError(f"must be one of {', '.join(FORMS)}, got {kind!r}", "form")
    module = import_module(f"dovetail.predictors.forms.{kind}")
    found: type[Form] = getattr(module, FORMS[kind])
    return found
