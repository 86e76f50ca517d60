"""The errors that a user can cause, each reported in one line.

::

    DovetailError ├── ArgumentError       a function was called with an argument that breaks its
    rule ├── InputError          a file or a record breaks a rule of the format ├──
    UnsupportedError    a solver or an objective does not support the request └── VerificationError
    a claim of a result does not hold
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

_LONGEST_WORD = 200
_LONGEST_TEXT = 1500
_LONGEST_NAME = 60


class DovetailError(Exception):
    """Base of every error that Dovetail raises on purpose; its text is one line."""

    def __init__(self, text: str = "") -> None:
        super().__init__(brief(text))


class ArgumentError(DovetailError, ValueError):
    """An argument of a function that breaks its rule."""


class InputError(DovetailError):
    """Input that breaks a rule of the format.

    Parameters
    ----------
    rule : str
        The broken rule, with the offending value, for example ``must be >= 1, got 0.5``.
    path : str
        The path in the record, for example ``jobs[3].gsla``; empty for the whole record.
    source : str
        The file, ``-`` for standard input, or empty if there is none.
    """

    def __init__(self, rule: str, path: str = "", source: str = "") -> None:
        self.rule = brief(rule)
        self.path = brief(path)
        self.source = source
        # Not through DovetailError: the name of a file is never shortened.
        Exception.__init__(self, ": ".join(part for part in (source, self.path, self.rule) if part))

    def at(self, source: str) -> InputError:
        """Return the same error with the file that it comes from."""
        return InputError(self.rule, self.path, source)


class UnsupportedError(DovetailError):
    """A request that a solver or an objective does not support."""


class VerificationError(DovetailError):
    """A verified result with a claim that does not hold."""


def require_type(name: str, value: object, kind: type) -> None:
    """Refuse an argument of the wrong type.

    Raises
    ------
    ArgumentError
        With the required type, and the argument's own.
    """
    if not isinstance(value, kind):
        rule = f"must be {with_article(kind.__name__)}"
        raise ArgumentError(f"{name} {rule}, got {with_article(type(value).__name__)}")


def with_article(noun: str) -> str:
    """Return a noun with its indefinite article."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def require_call(function: Callable[..., object], rule: str, *arguments: object) -> None:
    """Refuse a user's callable that does not take these arguments.

    Raises
    ------
    UnsupportedError
        With the rule and the reason.
    """
    from inspect import signature

    try:
        signature(function).bind(*arguments)
    except ValueError:  # not written in Python: only a call shows it
        return
    except TypeError as error:
        raise UnsupportedError(f"{rule}: {error}") from None


def brief(text: str) -> str:
    """Return a message on one line, with long parts shortened and unprintable ones replaced."""
    line = " ".join(_cut(word, _LONGEST_WORD) for word in text.split())
    return "".join(sign if sign.isprintable() else "?" for sign in _cut(line, _LONGEST_TEXT))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 60]}...{text[-40:]}"


def source_name(path: str | os.PathLike[str]) -> str:
    """Return the name of a file for messages: as given, on one line; ``-`` as standard input."""
    name = os.fspath(path)
    if name == "-":
        return "standard input"
    return name if name.isprintable() and name else repr(name)


def hint(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return ``, did you mean X?`` for a misspelled name, or an empty text if none is similar."""
    close = closest(name, known, cutoff)
    return f", did you mean {close}?" if close else ""


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the name most similar to a misspelled one, or None if none is similar."""
    from difflib import get_close_matches

    # A comparison takes time proportional to the product of the lengths.
    found = get_close_matches(name[:_LONGEST_NAME], list(known), n=1, cutoff=cutoff)
    return found[0] if found else None
