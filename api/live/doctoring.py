"""What ``dovetail doctor`` does: look at this machine, and measure the split gate if asked to."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from dovetail.executor.live.doctor import Diagnosis, Level, diagnose
from dovetail.executor.live.mps.manager import MpsManager
from dovetail.executor.live.nvml import Gpu, Nvml
from dovetail.executor.live.split_measuring import CANDIDATES, Measuring, measure_shares
from dovetail.executor.live.splits import WHOLE, SplitEvidence, read_splits, write_splits
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.files import write_data
from dovetail.live.places import default_directory, mps_directory
from dovetail.tables import console, plain_table

_MARKS: Final = {
    Level.GOOD: ("ok", "green"),
    Level.NOTE: ("note", "cyan"),
    Level.LACKING: ("lacking", "yellow"),
    Level.BROKEN: ("broken", "red"),
}


def doctor(options: Namespace) -> int:
    """Tell what this machine has for live mode; the exit status is ``Usable``."""
    directory = Path(options.directory) if options.directory else default_directory()
    mps = MpsManager(mps_directory(directory))
    if options.splits:
        _measure(directory, mps, options.python or sys.executable, options.shares or CANDIDATES)
    diagnosis = diagnose(directory, mps)
    if options.json:
        write_data(_plain(diagnosis), "-")
    else:
        console().print(_view(diagnosis))
    return int(diagnosis.usable)


def _measure(directory: Path, mps: MpsManager, python: str, shares: Sequence[int]) -> None:
    """Measure shares on one GPU of each model; what was measured is kept at once."""
    why_not = mps.why_not()
    if why_not is not None:
        raise UnsupportedError(f"shares cannot be measured: {why_not}")
    path = directory / "splits.json"
    splits = read_splits(path)
    directory.mkdir(parents=True, exist_ok=True)
    with closing(mps), Nvml() as nvml:
        driver = nvml.driver()
        for gpu in {gpu.name: gpu for gpu in nvml.gpus() if not gpu.mig}.values():
            _refuse_busy(nvml, gpu)
            measuring = Measuring(gpu.name, driver, gpu.sms, python, partial(_client, mps, gpu))
            for evidence in measure_shares(measuring, shares):
                splits = splits.with_evidence(evidence)
                write_splits(splits, path)
                print(_told(evidence), file=sys.stderr)


def _refuse_busy(nvml: Nvml, gpu: Gpu) -> None:
    """Refuse a GPU with jobs on it: they would be slowed, and shares judged beside them."""
    pids = sorted(nvml.processes(gpu.uuid))
    if pids:
        told = ", ".join(map(str, pids))
        raise UnsupportedError(f"{gpu.uuid[:12]} is in use (pid {told}): drain it and try again")


def _client(mps: MpsManager, gpu: Gpu, share: int) -> dict[str, str]:
    """Return the environment of an MPS client on a GPU."""
    cap = share if share < WHOLE else None
    return mps.environment(gpu.uuid, os.geteuid(), cap, None, latency=False)


def _told(evidence: SplitEvidence) -> str:
    wrong = sum(not product.right for product in evidence.products)
    verdict = f"WRONG in {wrong}" if wrong else "right in all"
    return (
        f"{evidence.gpu_model}: {evidence.share} % is {evidence.sms} SMs and computes "
        f"{verdict} of {len(evidence.products)} products"
    )


def _view(diagnosis: Diagnosis) -> RenderableType:
    table = plain_table("", "what", "seen", "what to do")
    for finding in diagnosis.findings:
        word, style = _MARKS[finding.level]
        told = (finding.about, finding.told, finding.remedy)
        table.add_row(Text(word, style), *map(Text, told))
    return Group(table, Text(), Text(diagnosis.usable.told, "bold"))


def _plain(diagnosis: Diagnosis) -> dict[str, object]:
    findings = [finding._asdict() for finding in diagnosis.findings]
    return {"usable": diagnosis.usable.name.lower(), "findings": findings}
