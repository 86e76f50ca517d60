"""Plugins: extensions of Dovetail by installed packages, found by their entry points.

A package adds something by an entry point of the group ``dovetail.plugins``, named ``KIND.NAME``::

    [project.entry-points."dovetail.plugins"]
    "policy.newest-first" = "my_package.policies:NewestFirst"

``KINDS`` lists the kinds and what each must be. Dovetail's own rooms (advising, cluster, isolation,
measuring, papers) are added in the same way. A plugin is imported when it is used; if that fails,
only its use fails, with one line that says why. If two packages add the same name, Dovetail's own
is used, else the one of the alphabetically first package; options of several packages are all added
to a command.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar, cast

from dovetail.instances.errors import DovetailError, UnsupportedError, brief

GROUP: Final = "dovetail.plugins"
"""The group of entry points."""

OWN: Final = "dovetail"
"""The package that Dovetail itself is installed as."""

KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "policy": "a class with a method decide, as dovetail.solver.policies.policy.Policy",
        "predictor": "a dovetail.predictors.estimators.registry.ModelSpec",
        "form": "a class with the methods of dovetail.predictors.forms.form.Form",
        "power": "a function of a data set, a GPU model and a seed that returns a "
        "dovetail.predictors.fitted.fits.FittedForm for the power of pairs",
        "trace": "a dovetail.instances.traces.kinds.TraceKind",
        "pool": "a function that makes a dovetail.executor.pools.pool.NodePool",
        "isolation": "a function that makes a dovetail.executor.pools.isolation.Isolation",
        "evidence": "a function that makes a dovetail.executor.pools.share_gate.ShareProgram",
        "reader": "a Reader of the room advising, which adds the command advise",
        "command": "a dovetail.toolkit.commands.Command",
        "options": "a dovetail.toolkit.commands.Addition",
        "doctor": "a function that returns one or several dovetail.executor.doctor.finding.Finding",
    }
)
"""Each kind of plugin, with the object that its entry point must name."""

_ADDED_TO: Final = "options"
"""The kind whose name is a command that exists, to which several packages may add."""

_TARGET: Final = re.compile(r"([\w.]+)\s*:\s*([\w.]+)")
"""``MODULE:NAME``; extras after it, which packaging allows, have no meaning here."""

_T = TypeVar("_T")


class Plugin(NamedTuple):
    """One entry point.

    Attributes
    ----------
    kind : str
        One of ``KINDS``, or a kind that this version does not know.
    name : str
        The name of what it adds.
    package : str
        The installed package that declares it.
    target : str
        ``MODULE:NAME``.
    """

    kind: str
    name: str
    package: str
    target: str

    @property
    def is_own(self) -> bool:
        """Whether it comes with Dovetail."""
        return self.package == OWN

    @property
    def module(self) -> str:
        """The module that is imported for it."""
        return self.target.partition(":")[0].strip()

    @property
    def top_package(self) -> str:
        """The top-level package of its module."""
        return self.module.partition(".")[0]

    def load(self) -> Any:  # noqa: ANN401 - whatever a package names
        """Import the object that the entry point names.

        Raises
        ------
        UnsupportedError
            If that fails: one line with the reason.
        """
        target = _TARGET.match(self.target)
        if not target:
            raise self.unusable("must name an object as MODULE:NAME")
        try:
            return attrgetter(target[2])(import_module(target[1]))
        except UnsupportedError:
            raise
        except (Exception, SystemExit) as error:  # whatever the module does when it is imported
            raise self.unusable(f"cannot be imported: {type(error).__name__}: {error}") from error

    def load_as(self, kind: type[_T]) -> _T:
        """Import an object of a class.

        Raises
        ------
        UnsupportedError
            If it cannot be imported or is of another class.
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
            If it cannot be imported or cannot be called.
        """
        found = self.load()
        if not callable(found):
            raise self.unusable(f"must be a function or a class, got {type(found).__name__}")
        return cast("Callable[..., Any]", found)

    def call(self, *arguments: object) -> Any:  # noqa: ANN401 - whatever the function returns
        """Import a function or a class and call it.

        Raises
        ------
        UnsupportedError
            When it cannot be imported or fails, in one line with the reason. Errors of Dovetail's
            own classes, which say what is wrong with the arguments, are passed on.
        """
        function = self.load_function()
        try:
            return function(*arguments)
        except DovetailError:
            raise
        except Exception as error:  # whatever the package does
            raise self.unusable(f"failed: {type(error).__name__}: {error}") from error

    def unusable(self, why: str) -> UnsupportedError:
        """Return the one-line error of why the plugin cannot be used."""
        return UnsupportedError(f"{self} {why}")

    def __str__(self) -> str:
        full = ".".join(filter(None, (self.kind, self.name)))
        return brief(f"plugin {full} of the package {self.package} ({self.target})")


def plugins(kind: str) -> Mapping[str, Plugin]:
    """Return the installed plugins of a kind by name, Dovetail's own first.

    If several packages add options to a command, the later ones are under ``NAME of PACKAGE``.
    """
    return _installed().used.get(kind, MappingProxyType({}))


def others() -> tuple[Plugin, ...]:
    """Return the plugins in use that do not come with Dovetail."""
    return tuple(
        each for named in _installed().used.values() for each in named.values() if not each.is_own
    )


def left_out() -> Iterator[tuple[Plugin, str]]:
    """Yield the plugins that are never used, and why."""
    installed = _installed()
    for each in installed.left_out:
        if each.kind not in KINDS or not each.name:
            yield each, f"must be called KIND.NAME, where KIND is one of {', '.join(KINDS)}"
        else:
            first = installed.used[each.kind][each.name].package
            yield each, f"is left out: the package {first} has one of the same name"


class _Installed(NamedTuple):
    """The plugins in use by kind and name, and those left out."""

    used: Mapping[str, Mapping[str, Plugin]]
    left_out: tuple[Plugin, ...]


@cache
def _installed() -> _Installed:
    """Return all plugins; the installed packages do not change within a process."""
    used: dict[str, dict[str, Plugin]] = {kind: {} for kind in KINDS}
    without_use = []
    for each in sorted(_declared(), key=lambda each: (not each.is_own, each.package)):
        named = used.get(each.kind, {})
        taken = each.name in named and each.kind == _ADDED_TO
        name = f"{each.name} of {each.package}" if taken else each.name
        if each.name and each.kind in used and name not in named:
            named[name] = each
        else:
            without_use.append(each)
    return _Installed(
        MappingProxyType({kind: MappingProxyType(named) for kind, named in used.items()}),
        tuple(without_use),
    )


def _declared() -> Iterator[Plugin]:
    """Yield the entry points of the group in the metadata of all packages on the path.

    ``importlib.metadata`` gives the same but takes 40 ms more, as long as the whole of ``dovetail
    --help``. If a package is on the path twice, the first is used, as for imports. Packages within
    archives are not searched.
    """
    seen = set()
    for folder in sys.path:
        for name in _metadata_in(folder):
            package = _package(name)
            if package not in seen:
                seen.add(package)
                yield from _entries(package, os.path.join(folder, name, "entry_points.txt"))


def _metadata_in(folder: str) -> list[str]:
    try:
        names = os.listdir(folder or os.curdir)
    except OSError:
        return []
    return sorted(name for name in names if name.endswith((".dist-info", ".egg-info")))


def _package(metadata: str) -> str:
    """Return the name of a package from the name of its metadata folder."""
    name = metadata.rpartition(".")[0].partition("-")[0]
    return re.sub(r"[_.]+", "-", name).lower()


def _entries(package: str, path: str) -> Iterator[Plugin]:
    """Yield the plugins that a package declares; the installer has written this file."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError):
        return
    if GROUP not in text:
        return
    group = ""
    for line in map(str.strip, text.splitlines()):
        key, equals, target = line.partition("=")
        if line.startswith("["):
            group = line.strip("[] ")
        elif equals and group == GROUP and not line.startswith("#"):
            kind, _, name = key.strip().partition(".")
            yield Plugin(kind, name, package, target.strip())


def require_package(module: str, extra: str, what: str) -> None:
    """Raise an error without a package of an extra; it is searched for, not imported.

    Parameters
    ----------
    module : str
        The required top-level module.
    extra : str
        The extra of Dovetail that installs it.
    what : str
        The action that needs it, which begins the error: ``fitting castor``.

    Raises
    ------
    UnsupportedError
        If the module cannot be found.
    """
    if find_spec(module) is None:
        raise UnsupportedError(f"{what} needs {module}: pip install './dovetail[{extra}]'")


__all__ = [
    "GROUP",
    "KINDS",
    "Plugin",
    "left_out",
    "others",
    "plugins",
    "require_package",
]
