"""``dovetail import kernels``: the kernels of a workload, from a file of a profiler."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Final

from dovetail.instances.errors import InputError, source_name
from dovetail.toolkit.commands import Command, argument, option, whole
from dovetail.toolkit.files import naming

if TYPE_CHECKING:
    from dovetail.instances.kernel_records import KernelGpu

KERNELS: Final = Command(
    "kernels",
    "Add the kernels in a profiler's file to the profile of a workload.",
    "dovetail.data.import_kernels:import_kernels",
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
            "data set or repository (.db, .sqlite) with the profile; made if it does not exist",
            required=True,
        ),
    ),
)


def import_kernels(options: Namespace) -> int:
    """Describe the kernels of a workload in its profile by the file of a profiler."""
    from dovetail.data.made_data import data_at, write_profile
    from dovetail.instances.importers.kernels import read_kernels, with_kernels

    found, source = read_kernels(options.file, options.device), source_name(options.file)
    if (gpu := _kernel_gpu(options)) is not None:
        found = found._replace(gpu=gpu)
    with naming(options.file):
        data, profile = with_kernels(
            data_at(options.output),
            options.workload,
            options.gpu_model,
            found,
            iterations=options.iterations,
            batch_size=options.batch_size,
        )
    if found.gpu is None:
        rule = "--sms and --capability say what fills the GPU, which the file does not"
        print(f"dovetail: {source}: {rule}", file=sys.stderr)
    if options.iterations is None or profile.throughput is None:
        missing = "--iterations" if options.iterations is None else "a profile with a throughput"
        rule = f"kernels a second are those under the profiler; {missing} would correct them"
        print(f"dovetail: {source}: {rule}", file=sys.stderr)
    write_profile(options, data, profile, len(found.kernels.start_s))
    return 0


def _kernel_gpu(options: Namespace) -> KernelGpu | None:
    """Return the GPU that the options describe, or None if they do not."""
    from dovetail.instances._record import listed, shown
    from dovetail.instances.kernel_records import LIMITS, KernelGpu

    if (options.sms is None) != (options.capability is None):
        missing, given = ("--sms", "--capability")[:: 1 if options.sms is None else -1]
        raise InputError(f"must be given with {given}", missing)
    if options.capability is None:
        return None
    if options.capability not in LIMITS:
        rule = f"must be one of {listed(list(LIMITS), 20)}, got {shown(options.capability)}"
        raise InputError(rule, "--capability")
    return KernelGpu(options.sms, options.capability)
