"""The identity of an agent, and its fence: it obeys only the newest controller of one directory."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

from pydantic import Field, StrictInt

from dovetail.cluster.messages import FencedError
from dovetail.executor.system.small_files import write_kept
from dovetail.instances._record import Name, Record
from dovetail.instances.files import read_data


class Mark(Record):
    """The mark of a controller: the id of its state directory, and its number of starts there."""

    home: Name
    epoch: Annotated[StrictInt, Field(ge=0)] = 0

    @classmethod
    def read(cls, path: Path) -> Mark | None:
        """Return the mark in a file, or None if there is no file.

        Raises
        ------
        InputError
            When the file is invalid.
        """
        return cls.from_data(read_data(path), str(path)) if path.exists() else None


class _Identity(Record):
    agent: Name


def identity(path: Path) -> str:
    """Return the id of the agent of a directory, which is random, created once, and durable.

    Only the directory records which runs were started, so an agent with another id does not know
    the runs of the previous one.

    Raises
    ------
    InputError
        When the file is invalid or cannot be written.
    """
    if path.exists():
        return _Identity.from_data(read_data(path), str(path)).agent
    drawn = _Identity(agent=secrets.token_hex(8))
    write_kept(drawn.to_data(), path)
    return drawn.agent


def raise_epoch(path: Path) -> Mark:
    """Return the mark of a starting controller: durable, with a higher epoch than any before."""
    known = Mark.read(path) or Mark(home=secrets.token_hex(8))
    mark = known.replace(epoch=known.epoch + 1)
    write_kept(mark.to_data(), path)
    return mark


class Fence:
    """The last controller of an agent.

    Parameters
    ----------
    path : path
        The file of its mark.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.mark = Mark.read(path)

    def admit(self, mark: Mark, held: bool) -> bool:
        """Admit a controller, and return whether it is a new one.

        Parameters
        ----------
        mark : Mark
            The controller's mark.
        held : bool
            Whether the last controller's lease is running, or a job of its home may be.

        Raises
        ------
        FencedError
            When a newer controller, or one of another directory, has this node.
        """
        known = self.mark
        if known == mark:
            return False
        if known is not None and known.home == mark.home and known.epoch > mark.epoch:
            raise FencedError(f"a newer controller has this node (epoch {known.epoch})")
        if known is not None and known.home != mark.home and held:
            raise FencedError("a controller with another state directory has this node")
        write_kept(mark.to_data(), self._path)
        self.mark = mark
        return True
