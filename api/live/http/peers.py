"""Users at the other end: identified by the kernel on a UNIX socket, by a token over TCP."""

from __future__ import annotations

import hashlib
import os
import pwd
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from dovetail.executor.jobs.specs import Owner
from dovetail.instances.errors import InputError

LEAST_TOKEN: Final = 20
"""Characters; ``openssl rand -hex 16`` gives 32."""

_NAMED_BY_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def owner_of(uid: int, gid: int) -> Owner:
    """Return a user of this machine, with the number as the name if there is none."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    return Owner(name=name, uid=uid, gid=gid)


class Tokens:
    """The tokens of users that may connect over TCP, kept as digests.

    Parameters
    ----------
    users : mapping of bytes to Owner
        Users by SHA-256 of the token: the time of a look-up reveals nothing about other tokens.
    """

    def __init__(self, users: Mapping[bytes, Owner]) -> None:
        self._users = MappingProxyType(dict(users))

    @classmethod
    def read(cls, path: str) -> Tokens:
        """Read a file with a user's name and a token on each line; ``#`` begins a comment.

        Raises
        ------
        InputError
            When it cannot be read, users other than its owner may read it, or a line breaks a rule.
        """
        users: dict[bytes, Owner] = {}
        for number, line in enumerate(_private_lines(path), 1):
            words = line.partition("#")[0].split()
            if words:
                digest, owner = _token_line(words, f"line {number}", path)
                users[digest] = owner
        if not users:
            raise InputError("must have a user and a token on a line, got none", "", path)
        return cls(users)

    def user(self, token: str) -> Owner | None:
        """Return the user of a token; None if there is no such token."""
        return self._users.get(_digest(token))


def _private_lines(path: str) -> list[str]:
    try:
        with Path(path).open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & _NAMED_BY_OTHERS:
                rule = "must be readable by its owner only (chmod 600)"
                raise InputError(f"{rule}, got mode {stat.S_IMODE(mode):o}", "", path)
            return file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8 text"
        raise InputError(f"cannot be read: {reason}", "", path) from None


def _token_line(words: list[str], where: str, path: str) -> tuple[bytes, Owner]:
    if len(words) != 2:
        raise InputError("must be USER TOKEN, separated by a blank", where, path)
    name, token = words
    if len(token) < LEAST_TOKEN:
        rule = f"must be a token of at least {LEAST_TOKEN} characters, got {len(token)}"
        raise InputError(rule, where, path)
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise InputError(f"must be a user of this machine, got {name!r}", where, path) from None
    return _digest(token), Owner(name=name, uid=user.pw_uid, gid=user.pw_gid)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
