"""Plugins: what installed packages add to Dovetail, found by the entry points that they declare.

A package adds something by an entry point of the group ``dovetail.plugins``, named ``KIND.NAME``::

    [project.entry-points."dovetail.plugins"]
    "policy.newest-first" = "my_package.policies:NewestFirst"

``KINDS`` lists the kinds and what each has to be. Dovetail's own rooms (papers, cluster, isolation,
measuring) are added in the same way. A plugin is imported when what it adds is used, and one that
cannot be imported is an error of what asked for it; nothing else is affected. Where two packages
add the same name, Dovetail's own counts, then that of the package that comes first in the alphabet.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from dovetail.instances.errors import UnsupportedError, brief

GROUP: Final = "dovetail.plugins"
"""The group of entry points."""

OWN: Final = "dovetail"
"""The package that Dovetail itself is installed as."""

KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "policy": "a class with a method decide, as dovetail.solver.policies.policy.Policy",
        "predictor": "a dovetail.predictors.estimators.registry.ModelSpec",
        "form": "a subclass of dovetail.predictors.forms.form.Form",
        "power": "a function from the power of two jobs alone to that of the pair",
        "trace": "a dovetail.instances.traces.kinds.TraceKind",
        "pool": "a function that makes a dovetail.executor.pools.pool.NodePool",
        "isolation": "a function that makes a dovetail.executor.pools.isolation.Isolation",
        "command": "a dovetail.toolkit.commands.Command",
        "options": "a dovetail.toolkit.commands.Addition",
        "doctor": "a function that returns one or several dovetail.executor.doctor.finding.Finding",
    }
)
"""Each kind of plugin, and what its entry point has to name."""

_T = TypeVar("_T")


class Plugin(NamedTuple):
    """One entry point.

    Attributes
    ----------
    kind : str
        One of ``KINDS``, or another that this version does not know.
    name : str
        What it adds is called so.
    package : str
        The installed package that declares it.
    target : str
        ``MODULE:NAME``.
    """

    kind: str
    name: str
    package: str
    target: str

    def load(self) -> Any:  # noqa: ANN401 - whatever a package names
        """Import what the entry point names.

        Raises
        ------
        UnsupportedError
            In one line with the reason, whatever it is, when that fails.
        """
        module, _, name = self.target.partition(":")
        try:
            found = import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except UnsupportedError:
            raise
        except Exception as error:  # whatever the module does when it is imported
            raise self.unusable(f"cannot be imported: {type(error).__name__}: {error}") from error
        return found

    def load_as(self, kind: type[_T]) -> _T:
        """Import an object of a class.

        Raises
        ------
        UnsupportedError
            When it cannot be imported or is of another class.
        """
        found = self.load()
        if not isinstance(found, kind):
            raise self.unusable(f"must be of type {kind.__name__}, got {type(found).__name__}")
        return found

    def load_function(self) -> Callable[..., Any]:
        """Import a function or a class.

        Raises
        ------
        UnsupportedError
            When it cannot be imported or cannot be called.
        """
        found = self.load()
        if not callable(found):
            raise self.unusable(f"must be callable, got {type(found).__name__}")
        return found  # type: ignore[no-any-return]

    def call(self, *arguments: object) -> Any:  # noqa: ANN401 - whatever the function returns
        """Import a function or a class and call it.

        Raises
        ------
        UnsupportedError
            When it cannot be imported or fails, in one line with the reason.
        """
        function = self.load_function()
        try:
            return function(*arguments)
        except UnsupportedError:
            raise
        except Exception as error:  # whatever the package does
            raise self.unusable(f"failed: {type(error).__name__}: {error}") from error

    def unusable(self, why: str) -> UnsupportedError:
        """Return the error that says in one line why the plugin cannot be used."""
        what = f"plugin {self.kind}.{self.name} of the package {self.package}"
        return UnsupportedError(brief(f"{what} ({self.target}) {why}"))


def plugins(kind: str) -> Mapping[str, Plugin]:
    """Return the installed plugins of a kind by name, those of Dovetail first."""
    return _installed().get(kind, MappingProxyType({}))


def unknown_plugins() -> tuple[Plugin, ...]:
    """Return the plugins of kinds that this version of Dovetail does not know."""
    return tuple(
        each for kind, named in _installed().items() if kind not in KINDS for each in named.values()
    )


@cache
def _installed() -> Mapping[str, Mapping[str, Plugin]]:
    """Return all plugins by kind and name; what is installed does not change within a process."""
    found: dict[str, dict[str, Plugin]] = {}
    for each in sorted(_declared(), key=lambda each: (each.package != OWN, each.package)):
        found.setdefault(each.kind, {}).setdefault(each.name, each)
    return MappingProxyType({kind: MappingProxyType(named) for kind, named in found.items()})


def _declared() -> Iterator[Plugin]:
    """Yield the entry points of the group in the metadata of all packages on the path.

    ``importlib.metadata`` gives the same and takes 40 ms more, which is what all of
    ``dovetail --help`` takes. Of a package that is on the path twice the first counts, as for
    imports. Packages within archives are not searched.
    """
    seen = set()
    for folder in sys.path:
        for metadata in _metadata_in(Path(folder)):
            package = _package(metadata)
            if package in seen:
                continue
            seen.add(package)
            yield from _entries(package, metadata / "entry_points.txt")


def _metadata_in(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.name.endswith((".dist-info", ".egg-info")))
    except OSError:
        return []


def _package(metadata: Path) -> str:
    """Return the name of a package from that of the folder of its metadata."""
    return metadata.stem.partition("-")[0].replace("_", "-").lower()


def _entries(package: str, file: Path) -> Iterator[Plugin]:
    """Yield the plugins that a package declares; its file is written by the installer."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    _, found, rest = text.partition(f"[{GROUP}]")
    if not found:
        return
    for line in rest.splitlines():
        if line.startswith("["):
            return
        key, equals, target = line.partition("=")
        kind, _, name = key.strip().partition(".")
        if equals and name:
            yield Plugin(kind, name, package, target.strip())


def require_package(module: str, extra: str, what: str) -> None:
    """Refuse to go on without a package of an extra; it is looked for, not imported.

    Parameters
    ----------
    module : str
        The module that is needed, of the top level.
    extra : str
        The extra of Dovetail that has it.
    what : str
        What needs it, the begin of the error: ``fitting castor``.

    Raises
    ------
    UnsupportedError
        When the module cannot be found.
    """
    if find_spec(module) is None:
        raise UnsupportedError(f"{what} needs {module}: pip install './dovetail[{extra}]'")


__all__ = [
    "GROUP",
    "KINDS",
    "Plugin",
    "plugins",
    "require_package",
    "unknown_plugins",
]
