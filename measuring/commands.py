"""The command ``dovetail measure``: run a campaign and print its findings."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Final, Self

from rich.console import Console, Group, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from dovetail.executor.gpus.nvml import Nvml, NvmlError, NvmlGpu
from dovetail.executor.gpus.python_libraries import (
    NO_LIBRARIES,
    Libraries,
    NoPythonError,
    libraries_of,
)
from dovetail.executor.gpus.splits import read_splits
from dovetail.executor.mps.manager import MpsManager
from dovetail.executor.pools.isolation import Isolation
from dovetail.executor.pools.opening import find_isolation
from dovetail.instances._record import listed, shown
from dovetail.instances._version import VERSION
from dovetail.instances.datasets.files import read_dataset
from dovetail.instances.datasets.repository import REPOSITORY
from dovetail.instances.errors import InputError, UnsupportedError, source_name
from dovetail.instances.instance import Instance
from dovetail.live.places import default_directory
from dovetail.measuring.campaign import (
    Campaign,
    Experiment,
    WorkerSeat,
    experiments,
    read_campaign,
)
from dovetail.measuring.dataset import known_experiments, write_tables
from dovetail.measuring.device import Device
from dovetail.measuring.gpu_device import GpuDevice, short_directory
from dovetail.measuring.ledger import (
    Ledger,
    fingerprint,
    read_ledger,
    settled,
    today,
)
from dovetail.measuring.results import ExperimentResult, Machine
from dovetail.measuring.runner import Runner, result_of
from dovetail.measuring.stand_ins import CpuDevice, SimulatedDevice
from dovetail.measuring.summary import summary
from dovetail.measuring.tables import STAND_IN_WORDS, campaign_view, stage_text
from dovetail.measuring.worker_pool import WorkerPool
from dovetail.measuring.workloads import BUILT_IN, WORKER
from dovetail.toolkit.commands import INTERRUPTED
from dovetail.toolkit.files import instance_named, print_either
from dovetail.toolkit.tables import plain_table
from dovetail.toolkit.wording import figure, lasting, number

TIME_UP: Final = 3
"""Exit status if the time did not suffice for all experiments."""

END_PART: Final = 0.1
END_MOST_S: Final = 10.0
"""This fraction of the given time, but at most these seconds, is reserved for ending workers."""

SPEED_S: Final = 600.0
"""Length in seconds of the recent past from which the remaining time is estimated."""

_NO_GPU: Final = "see dovetail doctor; --device cpu and simulated:INSTANCE need no GPU"


def measure(options: Namespace) -> int:
    """Run the rest of a campaign; the exit status is 0 if nothing is left afterwards, else 3."""
    begun_s = time.monotonic()
    kind, _, source = options.device.partition(":")
    truth = instance_named(source) if kind == "simulated" else None
    campaign = read_campaign(options.campaign)
    _require_workloads(campaign, options.campaign, truth)
    folder = Path(os.path.realpath(options.output or Path(options.campaign).stem))
    with _ended_by_signals(), ExitStack() as leaving:
        if options.dry_run:
            device, _ = _opened(options, campaign, folder, truth, leaving)
            stages = _plan(options, campaign, folder, device)
            data = {"campaign": campaign.name, "stages": stages}
            print_either(options, data, lambda: _plan_view(campaign, device, stages))
            return 0
        leaving.callback(_remove_empty, folder)
        # The lock comes first: it makes the workers in the folder ours.
        ledger = leaving.enter_context(Ledger(folder))
        device, libraries = _opened(options, campaign, folder, truth, leaving)
        if options.device == "cpu" and campaign.size == "full":
            line = "size: full is made for GPUs, and may take hours here; size: tiny suits a core"
            print(f"dovetail: {line}", file=sys.stderr)
        ledger.begin(_machine(campaign, device, libraries), campaign)
        _leave_out_known(options, campaign, device, ledger)
        leaving.callback(write_tables, folder)
        listener = leaving.enter_context(_Listener(options.verbose))
        workers = leaving.enter_context(WorkerPool(device, _commands(options, campaign)))
        leaving.callback(_ignore_signals)
        until_s = math.inf
        if options.minutes is not None:
            given_s = options.minutes * 60
            until_s = begun_s + given_s - min(END_MOST_S, END_PART * given_s)
        part = campaign.replace(stages=campaign.stages[: options.stages])
        try:
            kernels = device.has_kernels and not options.no_kernels
            runner = Runner(part, ledger, device, workers, until_s, listener, kernels=kernels)
            left = runner.run()
        except KeyboardInterrupt:
            print("dovetail: interrupted: the same command continues from here", file=sys.stderr)
            return INTERRUPTED
    found = summary(read_ledger(folder))
    print_either(options, found.to_data(), lambda: campaign_view(found))
    if left:
        _print_left(options, left)
    return TIME_UP if left else 0


def _require_workloads(campaign: Campaign, path: str, truth: Instance | None) -> None:
    """Refuse workloads that the device cannot run."""
    for at, name in enumerate(campaign.names):
        own = campaign.own.get(name)
        if truth is not None:
            if name not in truth.workloads:
                known = listed(list(truth.workloads))
                rule = f"must be one of the instance's ({known}), got {shown(name)}"
                raise InputError(rule, f"workloads[{at}]", source_name(path))
        elif own is None and name not in BUILT_IN:
            rule = f"must be one of {listed(BUILT_IN, 20)}, or have a program, got {shown(name)}"
            raise InputError(rule, f"workloads[{at}]", source_name(path))
        elif own is not None and not os.path.isfile(own.program):
            rule = f"must name a file, which {own.program} is not"
            raise InputError(rule, f"workloads[{at}].program", source_name(path))


def _opened(
    options: Namespace,
    campaign: Campaign,
    folder: Path,
    truth: Instance | None,
    leaving: ExitStack,
) -> tuple[Device, Libraries]:
    """Open the device; it is closed with the stack."""
    directory = folder / "pool"
    leaving.callback(_remove_pool, directory)
    if options.dry_run:
        directory = Path(leaving.enter_context(TemporaryDirectory(prefix="dovetail-")))
    kind, _, uuid = options.device.partition(":")
    device: Device
    if truth is not None:
        device, libraries = SimulatedDevice(directory, truth), NO_LIBRARIES
    elif kind == "cpu":
        libraries = _libraries(options, campaign, on_gpu=False)
        device = CpuDevice(directory)
    else:
        device, libraries = _open_gpu(options, campaign, directory, uuid, leaving)
    leaving.callback(device.close)
    return device, libraries


def _open_gpu(
    options: Namespace, campaign: Campaign, directory: Path, uuid: str, leaving: ExitStack
) -> tuple[GpuDevice, Libraries]:
    known = Path(options.directory) if options.directory else default_directory()
    splits = read_splits(known)
    try:
        nvml = Nvml()
    except NvmlError as error:
        raise UnsupportedError(f"{error}: {_NO_GPU}") from None
    try:
        gpu, token = _chosen(nvml.gpus(), uuid), str(directory)
        mps = MpsManager(short_directory("measure", token))
        libraries = _libraries(options, campaign, on_gpu=True)
        isolation: Isolation | str = "no stage is isolated"
        if any(stage.mode == "isolated" for stage in campaign.stages):
            isolates = short_directory("isolate", token)
            leaving.callback(shutil.rmtree, isolates, ignore_errors=True)
            isolation = find_isolation(isolates)
        device = GpuDevice(directory, gpu, nvml, mps, splits, libraries.cublas, isolation)
        return device, libraries
    except BaseException:
        nvml.close()
        raise


def _chosen(gpus: Sequence[NvmlGpu], uuid: str) -> NvmlGpu:
    found = [gpu for gpu in gpus if gpu.uuid.startswith(uuid)]
    if not gpus:
        raise UnsupportedError(f"no GPU answers here: {_NO_GPU}")
    if not found or (uuid and len(found) > 1):
        known = listed([gpu.uuid for gpu in gpus], 8)
        raise InputError(f"must name one of {known}, got {shown(uuid)}", "--device")
    return found[0]


def _libraries(options: Namespace, campaign: Campaign, *, on_gpu: bool) -> Libraries:
    """Return the libraries of the workers' Python, which must have PyTorch if it is needed."""
    python = options.python or sys.executable
    try:
        found = libraries_of(python)
    except NoPythonError as error:
        raise InputError(str(error), "--python") from None
    if found.torch is None and (on_gpu or len(campaign.own) < len(campaign.names)):
        raise UnsupportedError(
            f"{python} has no PyTorch: pip install './dovetail[measure]', "
            "or name a Python that has it with --python"
        )
    return found


def _machine(campaign: Campaign, device: Device, libraries: Libraries) -> Machine:
    return Machine(
        **device.facts.model_dump(),
        campaign=campaign.name,
        fingerprint=fingerprint(campaign),
        cublas=libraries.cublas,
        torch=libraries.torch,
        host_cores=len(os.sched_getaffinity(0)),
        dovetail=VERSION,
        date=today(),
    )


def _known(options: Namespace, campaign: Campaign, device: Device) -> Sequence[Experiment]:
    """Return the experiments that the data set of ``--known`` has."""
    if options.known is None:
        return ()
    data = read_dataset(options.known)
    return tuple(known_experiments(campaign, data, device.facts.gpu_model))


def _leave_out_known(
    options: Namespace, campaign: Campaign, device: Device, ledger: Ledger
) -> None:
    done = settled(ledger.results)
    for one in _known(options, campaign, device):
        if one.key not in done:
            found = {"status": "known", "reason": f"{options.known} has it"}
            ledger.append(result_of(one, found))


def _commands(options: Namespace, campaign: Campaign) -> Callable[[WorkerSeat], Sequence[str]]:
    """Return a function from a seat to the command of its worker."""
    python = options.python or sys.executable
    kind = "cpu" if options.device == "cpu" else "cuda"
    how = ("--device", kind, "--size", campaign.size, "--seed", str(campaign.seed))

    def command(seat: WorkerSeat) -> Sequence[str]:
        own = campaign.own.get(seat.workload)
        return (python, "-I", str(WORKER), own.program if own else seat.workload, *how)

    return command


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM interrupt a campaign like Ctrl-C, and restore both handlers afterwards."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _ignore_signals() -> None:
    """Ignore signals while workers are ended, so that nothing is left behind."""
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, signal.SIG_IGN)


def _remove_pool(directory: Path) -> None:
    """Remove the state of a pool, but not logs of workers."""
    with suppress(OSError):
        (directory / "boot").unlink()
    with suppress(OSError):
        # A spare shim that still runs must not find the old directory to write to.
        shutil.rmtree((directory / "rehearsal").rename(directory / "rehearsed"))
    _remove_empty(directory / "runs", directory)


def _remove_empty(*folders: Path) -> None:
    """Remove folders that are empty."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _plan(
    options: Namespace, campaign: Campaign, folder: Path, device: Device
) -> list[dict[str, Any]]:
    """Return the planned experiments of each stage."""
    known = read_ledger(folder).results if (folder / REPOSITORY).exists() else ()
    planned, stages = experiments(campaign), []
    done = settled(known) | {one.key for one in _known(options, campaign, device)}
    for at, stage in enumerate(campaign.stages):
        mine = [one for one in planned if one.stage == at]
        why_not = [
            next((why for seat in one.seats if (why := device.why_not(seat))), None)
            for one in mine
            if one.key not in done
        ]
        left = why_not.count(None)
        stages.append(
            {
                "stage": at,
                "measure": stage.measure,
                "mode": stage.mode,
                "shares": list(stage.caps),
                "planned": len(mine),
                "left": left,
                "refused": sorted({why for why in why_not if why is not None}),
                "seconds": round(left * campaign.windows.usual_s(stage), 1),
            }
        )
    return stages


def _plan_view(
    campaign: Campaign, device: Device, stages: Sequence[dict[str, Any]]
) -> RenderableType:
    table = plain_table("stage", "experiments", "left", "about", "refused")
    for stage, found in zip(campaign.stages, stages, strict=True):
        cells = (
            stage_text(found["stage"], stage, stage.caps),
            str(found["planned"]),
            str(found["left"]),
            _about(found["seconds"]),
            "; ".join(found["refused"]),
        )
        table.add_row(*map(Text, cells))
    facts, left = device.facts, sum(one["left"] for one in stages)
    total = _about(sum(one["seconds"] for one in stages))
    return Group(
        Text(f"{campaign.name} on {facts.stand_in or facts.gpu_model}"),
        *([Text(STAND_IN_WORDS)] if facts.stand_in else []),
        table,
        Text(f"{number(left, 'experiment')} left, about {total} and starts"),
    )


def _about(time_s: float) -> str:
    return lasting(math.ceil(time_s))


def _print_left(options: Namespace, left: Sequence[Experiment]) -> None:
    words = ["dovetail", "measure", options.campaign]
    for name in ("output", "device", "python", "directory", "known", "stages", "minutes"):
        value = getattr(options, name)
        if value is not None:
            words += [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)]
    if options.no_kernels:
        words.append("--no-kernels")
    line = f"time is up: {number(len(left), 'experiment')} left; continue with {shlex.join(words)}"
    print(f"dovetail: {line}", file=sys.stderr)


class _Listener:
    """Shows progress on a terminal, and prints results as lines if ``verbose``."""

    def __init__(self, verbose: bool) -> None:
        self._verbose = verbose
        self._done = 0
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
        )
        err = Console(stderr=True)
        self._progress = Progress(
            *columns,
            console=err,
            transient=True,
            disable=not err.is_terminal,
            speed_estimate_period=SPEED_S,
        )
        self._task = self._progress.add_task("starting workers", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begins(self, experiment: Experiment, left: int) -> None:
        name, total = Text(experiment.key).markup, self._done + left
        self._progress.update(self._task, description=name, completed=self._done, total=total)

    def ends(self, result: ExperimentResult) -> None:
        self._done += 1
        if self._verbose:
            self._progress.console.print(Text(_line(result)), soft_wrap=True)


def _line(result: ExperimentResult) -> str:
    if result.paces is None:
        return f"{result.key}: {result.status}: {result.reason}"
    rates = " + ".join(f"{pace.iterations_s:.4g}/s" for pace in result.paces)
    errors = max(pace.relative_error for pace in result.paces)
    power = "" if result.power_w is None else f", {result.power_w:.0f} W"
    tails = "".join(
        f", p99 {figure(pace.p99_s * 1000, 3)} ms"
        for pace in result.paces
        if pace.p99_s is not None
    )
    disturbed = ", disturbed" if result.disturbed_by else ""
    took = f"in {result.window_s:.1f} s{power}{tails}{disturbed}{_kernels_text(result)}"
    return f"{result.key}: {rates} (+-{errors:.1%}) {took}"


def _kernels_text(result: ExperimentResult) -> str:
    if result.kernels is None:
        return f", kernels: {result.kernels_lack}" if result.kernels_lack else ""
    launches, cost_s = result.kernels.launches, result.kernels.cost_s
    return f", {launches:.4g} kernels an iteration (profiled in {cost_s:.1f} s)"
