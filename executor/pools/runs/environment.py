"""The environment of a rank: its submitter's, without variables that would mislead it."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from typing import Final

from dovetail.executor.pools.runs.files import Part, Rendezvous
from dovetail.executor.pools.runs.processes import TOKEN
from dovetail.executor.pools.runs.progress import hook_environment
from dovetail.executor.pools.shim.page import OWN

_TAKEN_OUT: Final = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "NVIDIA_VISIBLE_DEVICES",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    }
)
_TAKEN_OUT_BY_PREFIX: Final = ("CUDA_MPS_", "DOVETAIL_", "TORCHELASTIC_", "PET_")


def environment_of(
    part: Part, rank: int, token: str, rendezvous: Rendezvous | None
) -> dict[str, str]:
    """Return the environment of a rank before its pool adds to it.

    Parameters
    ----------
    part : Part
        The part of the run on this node.
    rank : int
        The rank's number.
    token : str
        The token by which its processes are found.
    rendezvous : Rendezvous or None
        Where the ranks of a gang meet; None for a single process, which gets none of the
        variables of ``torch.distributed`` and so remains a plain program.
    """
    run = part.run
    kept = {name: value for name, value in run.spec.env.items() if not misleads(name)}
    own = {
        "DOVETAIL_JOB": run.job,
        "DOVETAIL_RUN": run.id,
        "DOVETAIL_RANK": str(rank),
        "DOVETAIL_GPU": run.seats[rank].gpu,
        TOKEN: token,
    }
    share = run.seats[rank].share
    if share is not None:
        own["DOVETAIL_SHARE"] = str(share)
    if run.spec.index is not None:
        own["DOVETAIL_ARRAY_INDEX"] = str(run.spec.index)
    if run.sub_batch is not None:
        own["DOVETAIL_SUB_BATCH"] = str(run.sub_batch)
    gang = {} if rendezvous is None else gang_environment(part, rank, rendezvous)
    env = {**login_environment(run.spec.owner.uid), **kept, **gang, **own}
    # If progress is read from the job's output, the job does not report it itself.
    counted = OWN if run.spec.progress_pattern is None else None
    return {**env, **hook_environment(counted, env)}


def gang_environment(part: Part, rank: int, rendezvous: Rendezvous) -> Mapping[str, str]:
    """Return the variables that ``torch.distributed`` reads.

    Every rank sees only its own device, so ``LOCAL_RANK`` is 0, as with ``torchrun
    --virtual-local-rank``. ``LOCAL_WORLD_SIZE`` counts the ranks on this node.
    """
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(part.run.seats)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": str(len(part.ranks)),
        "MASTER_ADDR": rendezvous.address,
        "MASTER_PORT": str(rendezvous.port),
    }


def login_environment(uid: int) -> Mapping[str, str]:
    """Return the variables that a login would set, for submitters that do not set them."""
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return {"PATH": os.defpath}
    return {
        "PATH": os.defpath,
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "SHELL": user.pw_shell,
    }


def misleads(name: str) -> bool:
    """Return whether a process on a device must not inherit this variable."""
    return name in _TAKEN_OUT or name.startswith(_TAKEN_OUT_BY_PREFIX)
