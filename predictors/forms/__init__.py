"""Fitted models as arrays, which are saved, loaded and run with NumPy alone."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from dovetail.instances.errors import InputError
from dovetail.instances.plugins import plugins
from dovetail.predictors.forms.form import Form

__all__ = ["FORMS", "Form", "form_class"]

FORMS: Final[Mapping[str, str]] = {
    "analytic": "Analytic",
    "constant": "Constant",
    "hierarchy": "Hierarchy",
    "kernels": "Kernels",
}
"""The core's forms: the name of the class in the module of each kind."""


def form_class(kind: str) -> type[Form]:
    """Return the form class of a kind, from the core or from a plugin ``form.KIND``.

    Raises
    ------
    InputError
        When no form of this kind is installed.
    UnsupportedError
        When the plugin cannot be imported.
    """
    added = plugins("form")
    if kind not in FORMS and kind not in added:
        known = ", ".join(dict.fromkeys((*FORMS, *added)))
        raise InputError(f"must be a form that is installed ({known}), got {kind!r}", "form")
    found: type[Form]
    if kind in FORMS:
        found = getattr(import_module(f"dovetail.predictors.forms.{kind}"), FORMS[kind])
    else:
        found = added[kind].load_as(type)
    return found
