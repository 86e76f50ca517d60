"""The numbers to type in for two jobs that share a GPU, as each scheduler and runtime takes them.

Sources: NVIDIA's documentation of MPS (``CUDA_MPS_ACTIVE_THREAD_PERCENTAGE``,
``CUDA_MPS_PINNED_DEVICE_MEM_LIMIT``), KAI Scheduler (``gpu-memory``), HAMi (``nvidia.com/gpumem``,
``nvidia.com/gpucores``), Amazon ECS (``NvidiaMpsAllocation``), Slurm (``gres/mps``) and vLLM
(``--gpu-memory-utilization``).
"""

from __future__ import annotations

import math
from typing import NamedTuple


class TypedSetting(NamedTuple):
    """What to type in for one job.

    Attributes
    ----------
    system : str
        For which scheduler or runtime.
    text : str
        The text, ready to copy.
    """

    system: str
    text: str


def settings(
    share: int, memory_mib: float, card_mib: float, service: bool
) -> tuple[TypedSetting, ...]:
    """Return the settings of a job.

    Parameters
    ----------
    share : int
        Its SMs in per cent.
    memory_mib : float
        The memory that it may use.
    card_mib : float
        The memory of the card.
    service : bool
        Whether it answers requests: then it may be a server of vLLM.
    """
    mib = math.floor(memory_mib)
    found = [
        TypedSetting(
            "MPS",
            f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={share} CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={mib}M",
        ),
        TypedSetting("KAI", f'annotations: {{gpu-memory: "{mib}"}}'),
        TypedSetting(
            "HAMi",
            f"limits: {{nvidia.com/gpu: 1, nvidia.com/gpumem: {mib}, "
            f"nvidia.com/gpucores: {share}}}",
        ),
        TypedSetting(
            "Amazon ECS", f"NvidiaMpsAllocation: memory {mib} MiB, maxComputePercent {share}"
        ),
        TypedSetting("Slurm", f"--gres=mps:{share}"),
    ]
    if service and card_mib > 0:
        part = math.floor(100 * memory_mib / card_mib) / 100
        found.append(TypedSetting("vLLM", f"--gpu-memory-utilization {part:.2f}"))
    return tuple(found)
