"""What the readers of Slurm's output share: GPUs, states, nodes and times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from dovetail.advising.readers._mig import mig_instance
from dovetail.instances.errors import InputError
from dovetail.instances.importers._hostlist import hostnames
from dovetail.instances.importers._tres import gpus_by_type

NO_GPU: Final = "used no GPU"
NONE_LISTED: Final = "list no GPU, as none does: AccountingStorageTRES may lack gres/gpu"
_PART: Final = re.compile(r"(?:^|,)gres/(mps|shard)(?::[^=,]*)?=0*[1-9]")
_WAITS: Final = {
    *("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"),
    *("PD", "RQ", "RF", "RH", "RD", "SE"),
}
_RUNS: Final = {
    *("RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "RESIZING", "SIGNALING"),
    *("STAGE_OUT", "EXPEDITING", "R", "S", "CG", "CF", "ST", "RS", "SI", "SO"),
}


class HeldGpus(NamedTuple):
    """The GPUs in a list of resources.

    Attributes
    ----------
    gpus : int
        How many; instances of MIG count as GPUs.
    gpu_model : str or None
        Their model, if it is given and one.
    fraction : float
        The part of each GPU that an instance of MIG is by its compute slices, else NaN.
    memory_mib : float
        The memory of an instance of MIG by its name, else NaN.
    in_parts : bool
        Whether it lists a part of a GPU by ``gres/mps`` or ``gres/shard``, and no GPU.
    nodes : int
        The number of nodes, 0 if it is not given.
    """

    gpus: int
    gpu_model: str | None
    fraction: float
    memory_mib: float
    in_parts: bool
    nodes: int


def held_gpus(text: str) -> HeldGpus:
    """Return the GPUs in a list like ``cpu=8,gres/gpu:a100=2,gres/gpu=2,node=1``."""
    found = {model: count for model, count in gpus_by_type(text).items() if count}
    (model,) = found if len(found) == 1 else (None,)
    mig = mig_instance(model or "")
    nodes = re.search(r"(?:^|,)node=(\d{1,7})(?=,|$)", text)
    return HeldGpus(
        sum(found.values()),
        (mig.model or None) if mig else model,
        mig.fraction if mig else np.nan,
        mig.memory_mib if mig else np.nan,
        not found and bool(_PART.search(text)),
        int(nodes[1]) if nodes else 0,
    )


def workers_per_node(gpus: int, nodes: int) -> float:
    """Return the GPUs on each node of a job with several; NaN if unequal or unknown."""
    return gpus / nodes if gpus > 1 and nodes and gpus % nodes == 0 else np.nan


def state_of(text: str) -> str:
    """Return one of ``STATES`` for a state like ``CANCELLED by 1003`` or ``CG``."""
    word = re.split(r"[^A-Z_]", text.strip().upper(), maxsplit=1)[0]
    return "waiting" if word in _WAITS else "running" if word in _RUNS else "ended"


def nodes_in(text: str) -> str | None:
    """Return the nodes of a list like ``gpu[01-03,07]``, joined by commas; None if it has none.

    Raises
    ------
    InputError
        When it names too many.
    """
    return ",".join(hostnames(text)) or None if re.match(r"[^\s(]+$", text.strip()) else None


def tasks_of(job: str, most: int) -> Sequence[str] | None:
    """Return the jobs of a waiting array like ``102_[3-9%2]``, or the job itself.

    None if they are not all listed, or are more than ``most``.
    """
    array = re.fullmatch(r"(\d+)_\[([\d,:-]*)(?:%\d+)?\]", job)
    if array is None:
        return None if "_[" in job or job.endswith("_*") else (job,)
    parts = []
    for part in array[2].split(","):
        listed = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?(?::(\d{1,9}))?", part)
        if listed is None:
            return None
        first, last = int(listed[1]), int(listed[2] or listed[1])
        parts.append(range(first, last + 1, int(listed[3] or 1) or 1))
    if sum(map(len, parts)) > most:
        return None
    return [f"{array[1]}_{task}" for part in parts for task in part]


def seconds_of(text: str) -> float:
    """Return the seconds of a duration ``[DAYS-[HOURS:]]MINUTES:SECONDS``.

    Raises
    ------
    InputError
        For any other text.
    """
    found = re.fullmatch(r"(?:(\d{1,6})-)?(?:(\d{1,8}):)?(\d{1,8}):(\d{1,8})(?:\.\d+)?", text)
    if found is None:
        raise InputError("must be a duration like 1-02:30:00")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return 86_400.0 * days + 3_600.0 * hours + 60.0 * minutes + seconds
