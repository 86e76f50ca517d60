"""``dovetail dataset instance``: an instance from measurements."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from dovetail.toolkit.commands import (
    DATA,
    GPUS,
    GPUS_PER_NODE,
    OUTPUT,
    SHARING,
    Command,
    confidence,
    option,
)
from dovetail.toolkit.files import naming, write_made

INSTANCE: Final = Command(
    "instance",
    "Make an instance from measurements.",
    "dovetail.data.dataset_instance:dataset_instance",
    (
        DATA,
        option("--gpu-model M", "GPU model of the data", required=True),
        GPUS,
        GPUS_PER_NODE,
        SHARING,
        option(
            "--memory-mib MIB",
            "memory of a GPU; needed if the memory of workloads is known",
            float,
        ),
        option(
            "--memory-confidence C",
            "give workloads the memory that a run stays within with this probability "
            "(default: the largest measured)",
            confidence,
        ),
        option(
            "--sub-batches",
            "let workloads that were timed at several batch sizes start at smaller ones",
        ),
        OUTPUT,
    ),
)


def dataset_instance(options: Namespace) -> int:
    """Write an instance made from a data set's measurements on one GPU model."""
    from dovetail.instances.datasets.files import read_dataset

    data = read_dataset(options.data)
    with naming(options.data):
        made = data.instance(
            options.gpu_model,
            options.gpus,
            memory_mib=options.memory_mib,
            gpus_per_node=options.gpus_per_node,
            sharing=options.sharing,
        )
        if options.memory_confidence is not None:
            from dovetail.predictors.memory import with_memory

            made = with_memory(made, data, options.gpu_model, options.memory_confidence)
        if options.sub_batches:
            from dovetail.predictors.iteration_time import with_sub_batches

            made = with_sub_batches(made, data, options.gpu_model)
    write_made(options, made)
    return 0
