"""Run the steps that say whether isolation is right and quick on a GPU, within ten minutes.

Each step runs in a process of its own with a time limit, so a hang or a crash loses that step
only. Each keeps its results in a file of the output folder, ``STEP.json``, as it goes, with the
GPU, its driver and the date, and prints a table.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from blocks import claims, costs, right, tails
from blocks.prepared import write
from blocks.setting import KERNELS, Setting
from slice import (
    DOVETAIL,
    RESERVE_S,
    Slice,
    Step,
    kept,
    made_up,
    measuring,
    no_gpu,
    no_pytorch,
    unpack,
    workers_python,
)

HERE: Final = Path(__file__).resolve()
PREPARED: Final = HERE.parent / "wheels" / KERNELS


class _Part(NamedTuple):
    """A step: a function that yields the lines of its table, and its usual and longest seconds."""

    run: Callable[[Setting], Iterator[str]]
    usual_s: float
    most_s: float


STEPS: Final[Mapping[str, _Part]] = {
    "right": _Part(right.step, 90, 150),
    "costs": _Part(costs.step, 70, 120),
    "turnaround": _Part(tails.turnaround, 75, 110),
    "throughput": _Part(tails.throughput, 115, 150),
    "p99": _Part(tails.p99, 120, 170),
}


CAMPAIGN: Final = "campaign"
"""The last step: ``isolated.yaml``, which needs PyTorch."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps: 0 when all are done, 3 when some are left or failed."""
    parser = argparse.ArgumentParser(
        prog="run.sh isolation", description="What isolation does on this machine's GPU."
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("isolation"),
        metavar="FOLDER",
        help="folder of results, gone on with (default: isolation)",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=[*STEPS, CAMPAIGN],
        metavar="STEP",
        help=f"of {', '.join([*STEPS, CAMPAIGN])}",
    )
    parser.add_argument(
        "--archive",
        type=Path,
        metavar="FILE",
        help="archive of the folder, renewed every 20 s, from which a missing folder is unpacked "
        "(default: FOLDER.tgz)",
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="in all (default: 10)")
    parser.add_argument(
        "--stand-in", action="store_true", help="no GPU: the steps on a stand-in, small and short"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--prepare", type=Path, metavar="FILE", help="only write kernels with their forms to a file"
    )
    how.add_argument("--step", choices=[*STEPS], help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.prepare:
        print(f"{write(given.prepare)} kernels in {given.prepare}")
        return 0
    setting = Setting(given.out.resolve(), given.stand_in)
    if given.step:
        return _step(given.step, setting)
    if not setting.stand_in and (lack := no_gpu()):
        print(f"run.sh: nothing can be measured: {lack} (--stand-in needs none)", file=sys.stderr)
        return 2
    ends_at = time.monotonic() + 60 * given.minutes - RESERVE_S
    archive = (given.archive or setting.out.with_name(f"{setting.out.name}.tgz")).resolve()
    if archive.exists() and not setting.out.exists():
        unpack(archive, setting.out)
    setting.out.mkdir(parents=True, exist_ok=True)
    if not (setting.out / KERNELS).exists():
        _prepare(setting.out / KERNELS)
    if setting.stand_in:
        _stand_in(setting.out)
    with kept(setting.out, archive):
        status = Slice(setting.out, ends_at).carry_out(list(_steps(setting, given.only)))
        found = claims.table([*claims.claims(setting.out, list(STEPS))])
        text = "\n".join([setting.mark(), *found])
        (setting.out / "claims.txt").write_text(f"{text}\n", "utf-8")
        print(text)
    return status


def _steps(setting: Setting, only: Sequence[str] | None) -> Iterator[Step]:
    as_stand_in = ("--stand-in",) if setting.stand_in else ()
    command = (sys.executable, str(HERE), "--out", str(setting.out), *as_stand_in)
    for name, part in STEPS.items():
        if name in (only or STEPS):
            its = (*command, "--step", name)
            yield Step(name, its, part.usual_s, 10.0, most_s=part.most_s, stopping_s=10.0)
    if CAMPAIGN not in (only or [CAMPAIGN]):
        return
    if lack := "" if setting.stand_in else no_pytorch(workers_python()):
        print(f"run.sh: {CAMPAIGN} is left out: {lack}", flush=True)
    else:
        yield from _campaign(setting)


def _campaign(setting: Setting) -> Iterator[Step]:
    """Yield what measures a service beside trainings, after a proof that halves compute right."""
    campaign = HERE.with_name("isolated.yaml")
    if setting.stand_in:
        truth = setting.out / "made-up.yaml"
        truth.write_text(made_up("encoder", "bulk"), encoding="utf-8")
        only_listed = ("--dry-run", "--device", f"simulated:{truth}")
        yield measuring(setting.out, campaign, CAMPAIGN, 5, 5, *only_listed)
        return
    where = ("--directory", str(setting.out), "--python", workers_python())
    yield Step(
        "halves",
        (*DOVETAIL, "doctor", "--splits", "--shares", "50", *where),
        12,
        most_s=60,
        good=(0, 3),
    )
    yield measuring(setting.out, campaign, CAMPAIGN, 110, 40, *where)


def _step(name: str, setting: Setting) -> int:
    """Run a step in this process."""
    began = time.monotonic()
    for line in STEPS[name].run(setting):
        print(line, flush=True)
    print(f"{name}: {setting.mark()}, {time.monotonic() - began:.0f} s", flush=True)
    return 0


def _prepare(path: Path) -> None:
    """Take the kernels that were prepared elsewhere; without any, prepare them here."""
    if PREPARED.exists():
        shutil.copyfile(PREPARED, path)
    else:
        write(path)


def _stand_in(out: Path) -> None:
    """Let this process's children find a stand-in of the driver."""
    from blocks import stand_in

    folder = str(stand_in.build(out / "driver"))
    os.environ["LD_LIBRARY_PATH"] = f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")


if __name__ == "__main__":
    sys.exit(main())
