"""The commands that make instances and data sets."""

from __future__ import annotations

from typing import Final

from dovetail.toolkit.commands import (
    DATA,
    GPUS,
    GPUS_PER_NODE,
    OUTPUT,
    SEED,
    SHARING,
    Command,
    argument,
    option,
)
from dovetail.toolkit.values import confidence, pair, whole

_IMPORT = Command(
    "import",
    "Make an instance from measured slowdowns; describe kernels by a profiler's file.",
    commands=(
        Command(
            "kernels",
            "Add the kernels in a profiler's file to the profile of a workload.",
            "dovetail.data.commands:import_kernels",
            (
                argument(
                    "FILE",
                    "of Nsight Systems (SQLite export, or CSV of cuda_gpu_trace) or of "
                    "torch.profiler (Chrome trace)",
                    "file",
                ),
                option("--workload NAME", "the workload that ran, alone", required=True),
                option("--gpu-model MODEL", "GPU model, as in the data set", required=True),
                option(
                    "--iterations N",
                    "iterations in the file: kernels a second are then those of an iteration times "
                    "the throughput of the profile",
                    whole(1),
                ),
                option(
                    "--batch-size N",
                    "the profile of this batch size (default: the one that plans use)",
                    whole(1),
                ),
                option("--device N", "the GPU in the file, if it has several", whole(0, 10_000)),
                option("--sms N", "SMs of the GPU, if the file does not say", whole(1, 10_000)),
                option(
                    "--capability C",
                    "compute capability of the GPU (9.0), if the file does not say",
                ),
                option(
                    "-o, --output DIR_OR_DB",
                    "data set or repository (.db, .sqlite) with the profile; made if it does not "
                    "exist",
                    required=True,
                ),
            ),
        ),
        Command(
            "pairs",
            "Make an instance from a table of pairs and slowdowns.",
            "dovetail.data.commands:import_pairs",
            (
                argument("FILE.csv", "columns as in docs/howto/import-data.md", "file"),
                option("--device DEVICE", "take the rows of this device only"),
                GPUS,
                GPUS_PER_NODE,
                SHARING,
                OUTPUT,
            ),
        ),
        Command(
            "slurm",
            "Make an instance of a cluster under Slurm, as it is now.",
            "dovetail.data.commands:import_slurm",
            (
                option(
                    "--gpu-memory TYPE=MIB",
                    "memory of GPUs of this type (gpu: of GPUs without a type); may be repeated",
                    pair("TYPE=MIB", r"\d+(?:\.\d+)?"),
                    repeated=True,
                ),
                option("--jobs FILE", "output of squeue --json (default: run it)"),
                option("--nodes FILE", "output of scontrol show node (default: run it)"),
                option("--topology FILE", "topology.conf: leaf switches are racks"),
                option("--partition P", "nodes and jobs of this partition only"),
                option("--constraint F", "nodes with this feature only"),
                OUTPUT,
            ),
        ),
    ),
)

_DATASET = Command(
    "dataset",
    "Keep measured profiles and pairs, in a folder or a repository.",
    commands=(
        Command(
            "add",
            "Append to a repository, all or nothing.",
            "dovetail.data.dataset:add",
            (
                argument("REPO.db", "repository; made if it does not exist", "repository"),
                DATA._replace(number="+"),
            ),
        ),
        Command("show", "Summarise a data set.", "dovetail.data.dataset:show", (DATA,)),
        Command(
            "pairs",
            "List the workloads that were measured together.",
            "dovetail.data.pairs:pairs",
            (DATA, option("--workload NAME", "only pairs and sets with this workload")),
        ),
        Command(
            "instance",
            "Make an instance from measurements.",
            "dovetail.data.commands:dataset_instance",
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
        ),
    ),
)

COMMANDS: Final = (
    Command(
        "init",
        "Write an instance with comments, to start from.",
        "dovetail.data.commands:init",
        (argument("[FILE]", "name of the file (default: lab.yaml); - for standard output"),),
    ),
    _IMPORT,
    _DATASET,
    Command(
        "generate",
        "Make a synthetic instance from a seed.",
        "dovetail.data.commands:generate",
        (
            option("--jobs N", "number of jobs", whole(1), required=True),
            SEED._replace(text="same seed, same instance", kind=int),
            option("--gpus N", "number of GPUs (default: 40 % of the demand)", whole(1)),
            option("--workloads N", "number of workloads (default: at most 64)", whole(1)),
            option("--no-gangs", "one GPU for each job"),
            option(
                "--gang-sharing RULE",
                "the cluster's rule, partial or whole",
                default="partial",
                choices=("partial", "whole"),
            ),
            option("--running F", "fraction of the jobs that run already", float, "0"),
            OUTPUT,
        ),
    ),
    Command(
        "library",
        "List the shipped instances and data sets; write an instance, or describe a data set.",
        "dovetail.data.commands:library",
        (
            argument(
                "[NAME]",
                "write this instance, or print what this data set is (default: list all)",
                "shipped",
            ),
            OUTPUT,
        ),
    ),
)
