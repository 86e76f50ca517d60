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
    remark : str
        What the system does not do; empty if there is nothing to say.
    """

    system: str
    text: str
    remark: str = ""


def settings(
    share: int, memory_mib: float, card_mib: float, gpus: int, service: bool
) -> tuple[TypedSetting, ...]:
    """Return the settings of a job.

    Parameters
    ----------
    share : int
        Its SMs in per cent.
    memory_mib : float
        The memory that it may use on each of its GPUs.
    card_mib : float
        The memory of a card.
    gpus : int
        How many GPUs it uses.
    service : bool
        Whether it answers requests: then it may be a server of vLLM.
    """
    mib = math.floor(memory_mib)
    limits = ",".join(f"{gpu}={mib}M" for gpu in range(gpus))
    kai = f'gpu-memory: "{mib}"' + (f', gpu-fraction-num-devices: "{gpus}"' if gpus > 1 else "")
    found = [
        TypedSetting(
            "MPS",
            f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={share} CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={limits}",
        ),
        TypedSetting(
            "KAI",
            f"annotations: {{{kai}}}",
            "it limits neither memory nor SMs: set the variables of MPS, too",
        ),
        TypedSetting(
            "HAMi",
            f"limits: {{nvidia.com/gpu: {gpus}, nvidia.com/gpumem: {mib}, "
            f"nvidia.com/gpucores: {share}}}",
            "it limits time, not SMs: slowdowns may differ",
        ),
    ]
    if gpus == 1:
        found += [
            TypedSetting(
                "Amazon ECS", f"NvidiaMpsAllocation: memory {mib} MiB, maxComputePercent {share}"
            ),
            TypedSetting("Slurm", f"--gres=mps:{share}", "it does not limit the memory"),
        ]
    if service and card_mib > 0:
        part = math.floor(100 * memory_mib / card_mib) / 100
        found.append(TypedSetting("vLLM", f"--gpu-memory-utilization {part:.2f}"))
    return tuple(found)
