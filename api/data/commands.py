"""The commands that make instances or data: init, import, generate, library, dataset instance."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from importlib.resources import files
from typing import TYPE_CHECKING

from dovetail.instances._record import listed, shown
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.files import write_data
from dovetail.instances.reading.raw_files import write_text
from dovetail.toolkit.inputs import naming
from dovetail.toolkit.outputs import write_made

if TYPE_CHECKING:
    from dovetail.instances.kernel_records import KernelGpu
    from dovetail.instances.library import LibraryInstance
    from dovetail.instances.measured import LibraryDataSet


def init(options: Namespace) -> int:
    """Write an instance to start from; never overwrite a file."""
    text = files(__package__).joinpath("lab.yaml").read_text(encoding="utf-8")
    name = options.file or "lab.yaml"
    if name != "-" and os.path.exists(name):
        raise InputError("exists already: name a new file", "", source_name(name))
    write_text(name, text)
    if name == "-":
        return 0
    if options.json:
        write_data({"written_to": name}, "-")
    else:
        print(f"-> {name}: next, dovetail plan {name}")
    return 0


def import_pairs(options: Namespace) -> int:
    """Write an instance made from a table of pairs."""
    from dovetail.instances.importers.pairs import import_pairs as read

    made = read(
        options.file,
        options.gpus,
        device=options.device,
        gpus_per_node=options.gpus_per_node,
        sharing=options.sharing,
    )
    for note in made.notes:
        print(f"dovetail: {source_name(options.file)}: {note}", file=sys.stderr)
    write_made(options, made.instance)
    return 0


def import_slurm(options: Namespace) -> int:
    """Write an instance of a cluster under Slurm; report what was left out."""
    from dovetail.instances.importers.slurm import import_slurm as read

    made = read(
        {name: float(mib) for name, mib in options.gpu_memory},
        jobs=options.jobs,
        nodes=options.nodes,
        topology=options.topology,
        partition=options.partition,
        constraint=options.constraint,
    )
    if made.left_out:
        print(f"dovetail: left out: {'; '.join(made.left_out)}", file=sys.stderr)
    write_made(options, made.instance)
    return 0


def import_kernels(options: Namespace) -> int:
    """Describe the kernels of a workload in its profile by the file of a profiler."""
    from dovetail.data.dataset import data_at, write_profile
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


def generate(options: Namespace) -> int:
    """Write a synthetic instance."""
    from dovetail.instances.generate import generate as made

    write_made(
        options,
        made(
            options.jobs,
            seed=options.seed,
            gpus=options.gpus,
            workloads=options.workloads,
            gangs=not options.no_gangs,
            gang_sharing=options.gang_sharing,
            running=options.running,
        ),
    )
    return 0


def library(options: Namespace) -> int:
    """List the shipped instances and data sets, or write an instance, or describe a data set."""
    from dovetail.instances import library as shipped
    from dovetail.instances import measured

    name: str | None = options.shipped
    entries: dict[str, LibraryInstance | LibraryDataSet] = {
        **shipped.manifest(),
        **measured.manifest(),
    }
    if name is not None and name in measured.names():
        readme = measured.path(name) / "README.md"
        if options.json:
            write_data(entries[name].to_data(), options.output)
        else:
            write_text(options.output, readme.read_text(encoding="utf-8"))
    elif name:
        write_made(options, shipped.load(name))
    elif options.json:
        write_data({name: entry.to_data() for name, entry in entries.items()}, "-")
    else:
        width = max(map(len, entries))
        for name, entry in entries.items():
            print(f"{name:<{width}}  {entry.title}")
    return 0
