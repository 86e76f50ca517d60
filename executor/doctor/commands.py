"""Shell commands that fix what the doctor finds; nothing here runs one."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
from importlib import metadata
from pathlib import Path

from dovetail.instances.plugins import OWN

_PLAIN = frozenset(range(0x20, 0x7F)) - set(b"'\\")


def word(text: str) -> str:
    r"""Return a text as one word of bash, without control characters.

    Examples
    --------
    >>> print(word("/srv/it's"), word("/tmp/a\nb"))
    '/srv/it'"'"'s' $'/tmp/a\x0ab'
    """
    if text.isprintable():
        return shlex.quote(text)
    parts = (chr(byte) if byte in _PLAIN else f"\\x{byte:02x}" for byte in os.fsencode(text))
    return f"$'{''.join(parts)}'"


def command(*words: object) -> str:
    """Return a command with its words quoted."""
    return " ".join(word(str(each)) for each in words)


def as_root(*words: object) -> str:
    """Return a command that needs root, with sudo unless this is root already."""
    return command(*words) if os.geteuid() == 0 else command("sudo", *words)


def own_directory(path: Path) -> str:
    """Return the command that creates a directory of this user where only root can."""
    owner = ("-o", os.geteuid(), "-g", os.getegid())
    return as_root("install", "-d", "-m", "0700", *owner, "--", path)


def moved_away(path: Path) -> str:
    """Return the command that moves a file away, without replacing another."""
    mine = path.lstat().st_uid == os.geteuid() and os.access(path.parent, os.W_OK | os.X_OK)
    return (command if mine else as_root)("mv", "-n", "--", path, f"{path}.moved")


def pip(*words: object) -> str:
    """Return a command of pip for the Python that runs this program."""
    return command(sys.executable, "-m", "pip", *words)


def pip_install(package: str) -> str:
    """Return the command that installs a package in the versions that an extra asks for."""
    wanted = (requirement.partition(";")[0].strip() for requirement in metadata.requires(OWN) or ())
    named = (each for each in wanted if re.split(r"[^\w.-]", each)[0] == package)
    return pip("install", next(named, package))


def system_install(debian: str, ubuntu: str) -> tuple[str, ...]:
    """Return the command that installs a package of Debian or Ubuntu; none elsewhere.

    An empty name means that the system has no such package.
    """
    try:
        system = platform.freedesktop_os_release()["ID"]
    except (OSError, KeyError):
        return ()
    package = {"debian": debian, "ubuntu": ubuntu}.get(system)
    return (as_root("apt-get", "install", package),) if package else ()
