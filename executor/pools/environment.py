"""The environment of a rank: its submitter's, without what would lead it astray."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from typing import Final

from dovetail.executor.pools.parts import Part, Rendezvous
from dovetail.executor.pools.processes import TOKEN
from dovetail.executor.pools.progress import hook_environment
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
        What is kept of the run on this node.
    rank : int
        Which of its ranks.
    token : str
        What its processes are found by.
    rendezvous : Rendezvous or None
        Where the ranks of a gang meet; None for a single process, which gets none of the
        variables of ``torch.distributed``: a plain program stays one.
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
    # If the job's output says how far it is, it does not itself.
    counted = OWN if run.spec.progress_pattern is None else None
    return {**env, **hook_environment(counted, env)}


def gang_environment(part: Part, rank: int, rendezvous: Rendezvous) -> Mapping[str, str]:
    """Return what ``torch.distributed`` reads.

    Every rank sees one device, its own, hence ``LOCAL_RANK`` 0, as ``torchrun
    --virtual-local-rank`` has it. ``LOCAL_WORLD_SIZE`` counts the ranks of this node.
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
    """Return what a login would set, for submitters that do not."""
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
    """Return whether a variable, inherited, would lead a process on a device astray."""
    return name in _TAKEN_OUT or name.startswith(_TAKEN_OUT_BY_PREFIX)
