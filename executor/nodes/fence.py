"""Which controller an agent obeys (the newest of one state directory), and which agent it is."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

from pydantic import Field, StrictInt

from dovetail.executor.nodes.messages import FencedError
from dovetail.executor.system.small_files import write_kept
from dovetail.instances._record import Name, Record
from dovetail.instances.files import read_data


class Mark(Record):
    """A state directory of controllers, and how often one of them has been started there."""

    home: Name
    epoch: Annotated[StrictInt, Field(ge=0)] = 0

    @classmethod
    def read(cls, path: Path) -> Mark | None:
        """Return what a file says, None where there is none.

        Raises
        ------
        InputError
            When it cannot be understood.
        """
        return cls.from_data(read_data(path), str(path)) if path.exists() else None


class _Identity(Record):
    agent: Name


def identity(path: Path) -> str:
    """Return the id of the agent that keeps a directory: drawn once, and durable.

    The directory alone records what was started, so an agent with another id does not know what the
    last one has started.

    Raises
    ------
    InputError
        When its file cannot be understood, or written.
    """
    if path.exists():
        return _Identity.from_data(read_data(path), str(path)).agent
    drawn = _Identity(agent=secrets.token_hex(8))
    write_kept(drawn.to_data(), path)
    return drawn.agent


def raise_epoch(path: Path) -> Mark:
    """Return the mark of a controller that starts: durable, and higher than all before it."""
    known = Mark.read(path) or Mark(home=secrets.token_hex(8))
    mark = known.replace(epoch=known.epoch + 1)
    write_kept(mark.to_data(), path)
    return mark


class Fence:
    """Remembers the last controller of an agent.

    Parameters
    ----------
    path : path
        The file that keeps it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.mark = Mark.read(path)

    def admit(self, mark: Mark, held: bool) -> bool:
        """Admit a controller, and return whether it is another than the last one.

        Parameters
        ----------
        mark : Mark
            The controller's.
        held : bool
            Whether the lease of the last one lasts, or anything of its home may still run.

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
