"""The means by which this machine limits jobs that share a GPU, found once by trying.

The doctor and the pool decide by this module alone. ``docs/explanation/memory.md`` has the table of
means and what each binds.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.executor.gpus.nvml import Nvml
from dovetail.executor.mps.program import ControlModes, modes
from dovetail.executor.pools.runs.memory_groups import (
    ROOT,
    MemoryGroups,
    NoGroups,
    find_memory_groups,
)

BY_GROUP: Final = "a control group for the whole job"
BY_MPS: Final = "MPS for each of its processes"
BY_NOTHING: Final = "nothing"


class Means(NamedTuple):
    """The means of a machine.

    Attributes
    ----------
    mps : bool
        Whether jobs run under MPS, which limits the memory of each process.
    groups : MemoryGroups or NoGroups
        Control groups that limit all processes of a rank together, or why there are none.
    modes : ControlModes
        The modes of MPS's control program.
    """

    mps: bool
    groups: MemoryGroups | NoGroups
    modes: ControlModes

    @property
    def holders(self) -> tuple[str, ...]:
        """What holds the memory limit of a job, the strongest first; empty if nothing does."""
        by_group = (BY_GROUP,) if isinstance(self.groups, MemoryGroups) else ()
        return (*by_group, *((BY_MPS,) if self.mps else ()))

    def held_by(self, uncounted: bool = False) -> str:
        """Return the holders in words.

        Parameters
        ----------
        uncounted : bool
            Whether the driver was seen to count no memory in control groups.
        """
        counted = [one for one in self.holders if one != BY_GROUP or not uncounted]
        text = ", and ".join(counted) or BY_NOTHING
        return f"{text} (its control group counts nothing)" if uncounted else text


def find_means(
    name: str, nvml: Nvml, uuids: Sequence[str], program: str | None, root: Path = ROOT
) -> Means:
    """Return the means of this machine.

    Parameters
    ----------
    name : str
        Name of the common control group.
    nvml : Nvml
        An open session.
    uuids : sequence of str
        The GPUs; at least one.
    program : str or None
        The control program of MPS; None if there is no MPS.
    root : path
        Where NVIDIA's driver looks for control groups.
    """
    path = None if program is None else shutil.which(program)
    return Means(
        path is not None,
        find_memory_groups(name, nvml, uuids, root),
        ControlModes(False, False) if path is None else modes(path),
    )
