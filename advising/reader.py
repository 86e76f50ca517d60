"""Readers of usage by name, and which of them a file is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.advising.usage import UsageRecords
from dovetail.instances.errors import InputError, UnsupportedError, source_name
from dovetail.instances.plugins import plugins
from dovetail.instances.reading.contents import opened

_START: Final = 65_536
"""Bytes of a file from which readers recognise it."""


class Reader(NamedTuple):
    """A form of files that tell of jobs on GPUs; a plugin ``reader.NAME`` names one.

    Attributes
    ----------
    what : str
        What the files are, in a few words for help and errors: ``sacct -P``.
    recognises : callable
        Gets the name of a file (without ``.gz``) and the beginning of its text; returns whether it
        is of this form. No two readers may recognise the same file.
    read : callable
        Gets the path of a file, which may end in ``.gz``, and returns the ``UsageRecords``. A
        faulty file is an ``InputError`` with file, line (or path in the document) and rule.
    """

    what: str
    recognises: Callable[[str, str], bool]
    read: Callable[[Path], UsageRecords]


def readers() -> Mapping[str, Reader]:
    """Return all readers by name; plugins that fail are left out."""
    found = {}
    for name, plugin in plugins("reader").items():
        try:
            found[name] = plugin.load_as(Reader)
        except UnsupportedError:
            continue
    return found


def read_usage(path: str, form: str | None = None) -> UsageRecords:
    """Read a file that tells of jobs on GPUs.

    Parameters
    ----------
    path : str
        The file, which may be compressed by gzip.
    form : str, optional
        The name of its reader; by default the one that recognises it.

    Raises
    ------
    InputError
        When no reader recognises the file, or it is faulty.
    """
    return _reader(path, form).read(Path(path))


def _reader(path: str, form: str | None) -> Reader:
    known = readers()
    if form is not None:
        if form not in known:
            raise InputError(f"must be one of {', '.join(known)}, got {form!r}", "--form")
        return known[form]
    with opened(path) as file:
        content = file.read(_START)
    if content[257:262] == b"ustar":
        raise InputError(
            "is an archive of tar: unpack it, and give its files", "", source_name(path)
        )
    start = content.decode("utf-8-sig", "replace")
    name = Path(path).name.removesuffix(".gz")
    found = next((each for each in known.values() if each.recognises(name, start)), None)
    if found is None:
        rule = f"must be of a form that is read, named with --form: {', '.join(known)}"
        raise InputError(f"{rule} (docs/howto/advise-readers.md)", "", source_name(path))
    return found
