"""What ``dovetail measure`` does: carry out a campaign, and tell what it has found."""

from __future__ import annotations

import math
import os
import shlex
import signal
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from dovetail.executor.doctor.jobs_python import (
    NO_LIBRARIES,
    Libraries,
    NoPythonError,
    libraries_of,
)
from dovetail.executor.gpus.nvml import Gpu, Nvml, NvmlError
from dovetail.executor.gpus.splits import read_splits
from dovetail.executor.measuring.campaign import Campaign, OwnWorkload, Stage, read_campaign
from dovetail.executor.measuring.cpu_device import CpuDevice
from dovetail.executor.measuring.device import Device
from dovetail.executor.measuring.experiments import experiments, remaining
from dovetail.executor.measuring.gpu_device import GpuDevice, campaign_mps
from dovetail.executor.measuring.ledger import (
    Ledger,
    fingerprint,
    has_ledger,
    read_ledger,
    settled,
    today,
)
from dovetail.executor.measuring.outcome import write_tables
from dovetail.executor.measuring.records import Experiment, Machine, Result, Seat
from dovetail.executor.measuring.runner import Runner
from dovetail.executor.measuring.simulated_device import SimulatedDevice
from dovetail.executor.measuring.summary import summary
from dovetail.executor.measuring.worker_pool import WorkerPool
from dovetail.executor.measuring.workloads import BUILT_IN, WORKER
from dovetail.instances._record import listed, shown
from dovetail.instances._version import VERSION
from dovetail.instances.errors import InputError, UnsupportedError, source_name
from dovetail.instances.instance import Instance
from dovetail.live.places import default_directory
from dovetail.measuring.tables import STAND_IN_WORDS, campaign_view
from dovetail.toolkit.commands import INTERRUPTED
from dovetail.toolkit.inputs import instance_named
from dovetail.toolkit.outputs import print_either
from dovetail.toolkit.tables import plain_table
from dovetail.toolkit.wording import lasting, number

TIME_UP: Final = 3
"""The exit status where more is left than there was time for."""

END_PART: Final = 0.1
END_MOST_S: Final = 10.0
"""Of the time that was given, this part, at most so long, is kept for ending the workers."""

SPEED_S: Final = 600.0
"""The time left is told from the experiments of so many seconds."""

_NO_GPU: Final = "dovetail doctor tells what is lacking; --device cpu tries a campaign without"


def measure(options: Namespace) -> int:
    """Carry out what is left of a campaign; the exit status is 0 where nothing is, else 3."""
    begun_s = time.monotonic()
    truth = _truth(options.device)
    campaign = _checked(read_campaign(options.campaign), options.campaign, truth)
    folder = Path(os.path.realpath(options.output or Path(options.campaign).stem))
    with _ended_by_signals(), ExitStack() as leaving:
        if options.dry_run:
            device, _ = _opened(options, campaign, folder, truth, leaving)
            _tell_plan(options, campaign, folder, device)
            return 0
        leaving.callback(_remove_empty, folder)
        # Nobody else's workers are in a folder that is ours.
        ledger = leaving.enter_context(Ledger(folder))
        device, versions = _opened(options, campaign, folder, truth, leaving)
        _warn_of_size(options, campaign)
        ledger.begin(_machine(campaign, device, versions), campaign)
        leaving.callback(write_tables, folder)
        audience = leaving.enter_context(_audience(options))
        workers = WorkerPool(device, _commands(options, campaign))
        leaving.enter_context(workers)
        leaving.callback(_undisturbed)
        until_s = _until(begun_s, options.minutes)
        stages = campaign.stages[: options.stages]
        part = campaign.replace(stages=stages)
        try:
            left = Runner(part, ledger, device, workers, until_s, audience).run()
        except KeyboardInterrupt:
            print("dovetail: interrupted: the same command goes on from here", file=sys.stderr)
            return INTERRUPTED
    found = summary(read_ledger(folder))
    print_either(options, found.to_data(), campaign_view(found))
    if left:
        _tell_left(options, left)
    return TIME_UP if left else 0


def _until(begun_s: float, minutes: float | None) -> float:
    if minutes is None:
        return float("inf")
    given_s = minutes * 60
    return begun_s + given_s - min(END_MOST_S, END_PART * given_s)


# What is measured, where and by whom.


def _truth(device: str) -> Instance | None:
    """Return the instance that is simulated; None where nothing is."""
    kind, _, source = device.partition(":")
    return instance_named(source) if kind == "simulated" else None


def _checked(campaign: Campaign, path: str, truth: Instance | None) -> Campaign:
    for at, (name, plain) in enumerate(zip(campaign.workloads, campaign.names, strict=True)):
        if truth is not None:
            if plain not in truth.workloads:
                known = listed(list(truth.workloads))
                rule = f"must be one of the instance's ({known}), got {shown(plain)}"
                raise InputError(rule, f"workloads[{at}]", source_name(path))
            continue
        if isinstance(name, str) and name not in BUILT_IN:
            rule = f"must be one of {listed(BUILT_IN, 20)}, or have a program, got {shown(name)}"
            raise InputError(rule, f"workloads[{at}]", source_name(path))
        if isinstance(name, OwnWorkload) and not os.path.isfile(name.program):
            rule = f"must name a file, and {name.program} is none"
            raise InputError(rule, f"workloads[{at}].program", source_name(path))
    return campaign


def _opened(
    options: Namespace,
    campaign: Campaign,
    folder: Path,
    truth: Instance | None,
    leaving: ExitStack,
) -> tuple[Device, Libraries]:
    """Open the device that is asked for; it is closed when the stack is left."""
    directory = folder / "pool"
    leaving.callback(_remove_empty, directory / "runs", directory)
    if options.dry_run:
        directory = Path(leaving.enter_context(TemporaryDirectory(prefix="dovetail-")))
    kind, _, uuid = options.device.partition(":")
    python = options.python or sys.executable
    device: Device
    if truth is not None:
        device, versions = SimulatedDevice(directory, truth), NO_LIBRARIES
    elif kind == "cpu":
        versions = _asked(python)
        _need_torch(versions, python, campaign, on_gpu=False)
        device = CpuDevice(directory)
    else:
        device, versions = _open_gpu(options, campaign, directory, uuid)
    leaving.callback(device.close)
    return device, versions


def _open_gpu(
    options: Namespace, campaign: Campaign, directory: Path, uuid: str
) -> tuple[GpuDevice, Libraries]:
    python = options.python or sys.executable
    known = Path(options.directory) if options.directory else default_directory()
    splits = read_splits(known)
    nvml = _open_nvml()
    try:
        gpu, mps = _chosen(nvml.gpus(), uuid), campaign_mps(str(directory))
        versions = _asked(python)
        _need_torch(versions, python, campaign, on_gpu=True)
        return GpuDevice(directory, gpu, nvml, mps, splits, versions.cublas), versions
    except BaseException:
        nvml.close()
        raise


def _asked(python: str) -> Libraries:
    try:
        return libraries_of(python)
    except NoPythonError as error:
        raise InputError(str(error), "--python") from None


def _open_nvml() -> Nvml:
    try:
        return Nvml()
    except NvmlError as error:
        raise UnsupportedError(f"{error}: {_NO_GPU}") from None


def _chosen(gpus: Sequence[Gpu], uuid: str) -> Gpu:
    found = [gpu for gpu in gpus if gpu.uuid.startswith(uuid)]
    if not gpus:
        raise UnsupportedError(f"no GPU answers here: {_NO_GPU}")
    if not found or (uuid and len(found) > 1):
        known = listed([gpu.uuid for gpu in gpus], 8)
        raise InputError(f"must name one of {known}, got {shown(uuid)}", "--device")
    return found[0]


def _need_torch(versions: Libraries, python: str, campaign: Campaign, *, on_gpu: bool) -> None:
    needed = on_gpu or any(isinstance(one, str) for one in campaign.workloads)
    if needed and versions.torch is None:
        raise UnsupportedError(
            f"{python} has no PyTorch: name one that has with --python, "
            "or pip install './dovetail[measure]'"
        )


def _machine(campaign: Campaign, device: Device, versions: Libraries) -> Machine:
    return Machine(
        **device.facts.model_dump(),
        campaign=campaign.name,
        fingerprint=fingerprint(campaign),
        cublas=versions.cublas,
        torch=versions.torch,
        host_cores=len(os.sched_getaffinity(0)),
        dovetail=VERSION,
        date=today(),
    )


def _warn_of_size(options: Namespace, campaign: Campaign) -> None:
    if options.device == "cpu" and campaign.size == "full":
        line = "size: full is made for GPUs, and may take hours here; size: tiny suits a core"
        print(f"dovetail: {line}", file=sys.stderr)


def _commands(options: Namespace, campaign: Campaign) -> Callable[[Seat], Sequence[str]]:
    """Return how workers of a seat are started."""
    python = options.python or sys.executable
    kind = "cpu" if options.device == "cpu" else "cuda"
    own = {one.name: one.program for one in campaign.workloads if isinstance(one, OwnWorkload)}

    def command(seat: Seat) -> Sequence[str]:
        program = own.get(seat.workload, seat.workload)
        how = ("--device", kind, "--size", campaign.size, "--seed", str(campaign.seed))
        return (python, "-I", str(WORKER), program, *how)

    return command


# How it ends before its time.


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM end a campaign as Ctrl-C does; both are as before afterwards."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, _interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _remove_empty(*folders: Path) -> None:
    """Remove folders in which nothing was left, no log of a worker say."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _undisturbed() -> None:
    """Let nothing keep a campaign from leaving nothing behind."""
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, signal.SIG_IGN)


# What is told.


def _tell_plan(options: Namespace, campaign: Campaign, folder: Path, device: Device) -> None:
    done = settled(read_ledger(folder).results) if has_ledger(folder) else frozenset()
    left = remaining(campaign, done)
    refused = {one.key: why for one in left if (why := _why_not(device, one))}
    view = _plan_view(campaign, device, left, refused)
    print_either(options, _plan_data(campaign, left, refused), view)


def _why_not(device: Device, experiment: Experiment) -> str | None:
    return next((why for seat in experiment.seats if (why := device.why_not(seat))), None)


def _plan_data(
    campaign: Campaign, left: Sequence[Experiment], refused: dict[str, str]
) -> dict[str, object]:
    stages = []
    for at, stage in enumerate(campaign.stages):
        planned = sum(one.stage == at for one in experiments(campaign))
        mine = [one for one in left if one.stage == at]
        usable = [one for one in mine if one.key not in refused]
        stages.append(
            {
                "stage": at,
                "measure": stage.measure,
                "mode": stage.mode,
                "shares": list(stage.caps),
                "planned": planned,
                "left": len(usable),
                "refused": sorted({refused[one.key] for one in mine if one.key in refused}),
                "seconds": round(len(usable) * campaign.windows.usual_s, 1),
            }
        )
    return {"campaign": campaign.name, "stages": stages}


def _plan_view(
    campaign: Campaign, device: Device, left: Sequence[Experiment], refused: dict[str, str]
) -> RenderableType:
    usable = [one for one in left if one.key not in refused]
    planned = Counter(one.stage for one in experiments(campaign))
    table = plain_table("stage", "experiments", "left", "about", "refused")
    for at, stage in enumerate(campaign.stages):
        mine = [one for one in usable if one.stage == at]
        why = sorted({refused[one.key] for one in left if one.stage == at and one.key in refused})
        time_s = len(mine) * campaign.windows.usual_s
        cells = (_stage_text(at, stage), str(planned[at]), str(len(mine)), _about(time_s))
        table.add_row(*map(Text, cells), Text("; ".join(why)))
    facts = device.facts
    total_s = len(usable) * campaign.windows.usual_s
    return Group(
        Text(f"{campaign.name} on {facts.stand_in or facts.gpu_model}"),
        *([Text(STAND_IN_WORDS)] if facts.stand_in else []),
        table,
        Text(f"{number(len(usable), 'experiment')} left, about {_about(total_s)} and starts"),
    )


def _stage_text(at: int, stage: Stage) -> str:
    what = f"{stage.measure} of {listed(stage.workloads)}" if stage.workloads else stage.measure
    caps = "" if set(stage.caps) == {None} else f" at {'+'.join(map(_cap, stage.caps))} %"
    preferred = f"; preferred: {listed(stage.first)}" if stage.first else ""
    return f"{at} {what}, {stage.mode}{caps}{preferred}"


def _about(time_s: float) -> str:
    return lasting(math.ceil(time_s))


def _cap(share: int | None) -> str:
    return "none" if share is None else str(share)


def _tell_left(options: Namespace, left: Sequence[Experiment]) -> None:
    words = ["dovetail", "measure", options.campaign]
    for name in ("output", "device", "python", "directory", "stages", "minutes"):
        value = getattr(options, name)
        if value is not None:
            words += [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)]
    line = f"time is up: {number(len(left), 'experiment')} left; go on with {shlex.join(words)}"
    print(f"dovetail: {line}", file=sys.stderr)


@contextmanager
def _audience(options: Namespace) -> Iterator[_Listener]:
    listener = _Listener(options.verbose)
    with listener.progress:
        yield listener


class _Listener:
    """Shows progress on a terminal, and results as lines if that is asked for."""

    def __init__(self, verbose: bool) -> None:
        self._lines = verbose
        self._done = 0
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
        )
        err = Console(stderr=True)
        self.progress = Progress(
            *columns,
            console=err,
            transient=True,
            disable=not err.is_terminal,
            speed_estimate_period=SPEED_S,
        )
        self._task = self.progress.add_task("starting workers", total=None)

    def begins(self, experiment: Experiment, left: int) -> None:
        name, total = Text(experiment.key).markup, self._done + left
        self.progress.update(self._task, description=name, completed=self._done, total=total)

    def ends(self, result: Result) -> None:
        self._done += 1
        if self._lines:
            self.progress.console.print(Text(_line(result)), soft_wrap=True)


def _line(result: Result) -> str:
    if result.paces is None:
        return f"{result.key}: {result.status}: {result.told}"
    rates = " + ".join(f"{pace.iterations_s:.4g}/s" for pace in result.paces)
    errors = max(pace.relative_error for pace in result.paces)
    power = "" if result.power_w is None else f", {result.power_w:.0f} W"
    disturbed = ", disturbed" if result.disturbed_by else ""
    return f"{result.key}: {rates} (+-{errors:.1%}) in {result.window_s:.1f} s{power}{disturbed}"
