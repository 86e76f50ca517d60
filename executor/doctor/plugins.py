"""Checks added by installed packages, and checks of their plugins."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Final

from dovetail.executor.doctor.commands import pip
from dovetail.executor.doctor.finding import PARTS, Finding, lacking
from dovetail.executor.pools.names import POOL_NAMES
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.plugins import Plugin, left_out, others, plugins
from dovetail.instances.traces.kinds import KINDS
from dovetail.predictors.estimators.registry import MODELS
from dovetail.predictors.forms import FORMS
from dovetail.solver.policies.registry import POLICIES

_OF_THE_CORE: Final[Mapping[str, Container[str]]] = {
    "form": FORMS,
    "policy": POLICIES,
    "pool": POOL_NAMES,
    "predictor": MODELS,
    "trace": KINDS,
}
"""The names that plugins of each kind cannot replace."""


def added() -> Iterator[Finding]:
    """Yield the findings of all plugins ``doctor.NAME``, each with its id."""
    for name, plugin in plugins("doctor").items():
        known = name.partition(".")[0] in PARTS
        for finding in _found(plugin):
            yield finding._replace(id=name if known else f"plugins.{name}")


def _found(plugin: Plugin) -> tuple[Finding, ...]:
    """Return the findings of one plugin, or a finding that it fails."""
    try:
        found = plugin.call()
        several = (found,) if isinstance(found, Finding) else tuple(found)
    except UnsupportedError as error:
        return (_failed(plugin, str(error)),)
    except Exception as error:  # its result cannot be iterated over, or fails on the way
        why = plugin.unusable(f"must return findings: {type(error).__name__}: {error}")
        return (_failed(plugin, str(why)),)
    for one in several:
        if not isinstance(one, Finding):
            why = plugin.unusable(f"must return findings, got {type(one).__name__}")
            return (_failed(plugin, str(why)),)
    return several


def names() -> Iterator[Finding]:
    """Yield a finding for each plugin that is never used because of its name."""
    for plugin, why in left_out():
        yield _failed(plugin, f"{plugin} {why}")
    for plugin in filter(_is_replaced, others()):
        yield _failed(plugin, f"{plugin} is left out: Dovetail has its own of the same name")


def imported() -> Iterator[Finding]:
    """Yield the plugins added by other packages, and those that cannot be imported."""
    well = []
    for plugin in others():
        if _is_replaced(plugin):
            continue
        try:
            plugin.load()
        except UnsupportedError as error:
            yield _failed(plugin, str(error))
        else:
            well.append(_name(plugin))
    if well:
        yield Finding(f"added by other packages: {', '.join(sorted(well))}")


def _is_replaced(plugin: Plugin) -> bool:
    """Return whether the core has its own of the same kind and name, which is used instead."""
    return plugin.name in _OF_THE_CORE.get(plugin.kind, ())


def _failed(plugin: Plugin, why: str) -> Finding:
    upgrade = pip("install", "--upgrade", plugin.package)
    return lacking(why, f"update or uninstall {plugin.package}", upgrade)


def _name(plugin: Plugin) -> str:
    return f"{plugin.kind}.{plugin.name} ({plugin.package})"
