"""Run the steps of the first campaign within the minutes of one slice, most valuable first.

Each step is a command of ``dovetail`` or a part of the acceptance suite (``tests/gpu``). It stores
every finding at once, so stopping it loses nothing. ``log.txt`` in the output folder lists the
steps that are done; a later slice continues from there, also on another machine of the same kind.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from itertools import combinations_with_replacement, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from dovetail.executor.gpus.nvml import Nvml
from dovetail.executor.simulation.worlds import world_of
from dovetail.instances.datasets import read_dataset
from dovetail.instances.errors import DovetailError

HERE: Final = Path(__file__).resolve().parent
SUITE: Final = HERE.parents[1] / "tests" / "gpu"
DOVETAIL: Final = (sys.executable, "-m", "dovetail")
PYTEST: Final = (sys.executable, "-m", "pytest", "-q")

KEEP_S: Final = 20.0
"""Seconds between two archives."""

RESERVE_S: Final = 20.0
"""Seconds of a slice that are reserved for stopping cleanly."""

STOPPING_S: Final = 45.0
"""Seconds that most steps may take to stop, some of them for ending MPS."""

MOST_SAID: Final = 4000
"""Characters that are kept of a worker's log."""

DONE: Final = "everything is done"

TRIES: Final = 2
"""How often a failing step is tried, in different slices."""

SHARES: Final = "50,10,90,33,25,75"
"""The shares of the campaign."""

KNOWN: Final = "library:h200-2026-11"
"""What was measured before, on its GPU model."""

PARTS: Final = (
    ("kernels and solos", 1, 115.0),
    ("solos under caps", 4, 125.0),
    ("pairs without caps and at halves", 6, 75.0),
    ("pairs at 10/90", 7, 215.0),
    ("time-sliced", 9, 150.0),
    ("25/75", 12, 160.0),
    ("three jobs", 13, 90.0),
    ("repeats", 16, 100.0),
)
"""Parts of ``first.yaml``: name, number of its stages so far, and estimated seconds."""

_WITHIN: Final = ("--minutes", "{minutes}")


class Step(NamedTuple):
    """A command of a slice.

    Attributes
    ----------
    name : str
        Its name in the log.
    command : tuple of str
        ``{minutes}`` in it is replaced by the minutes left in the slice.
    usual_s : float
        Estimate of its seconds.
    least_s : float
        If fewer seconds are left, a later step may have them; by default ``usual_s``. Less for
        steps that go on in the next slice.
    output : str
        File of the output folder for its standard output; the log by default.
    most_s : float
        Seconds after which it counts as hung and is given up.
    good : tuple of int
        Exit statuses if it is done.
    unfinished : tuple of int
        Exit statuses if it continues in the next slice.
    stopping_s : float
        Seconds that it may take to stop.
    """

    name: str
    command: tuple[str, ...]
    usual_s: float
    least_s: float | None = None
    output: str = ""
    most_s: float = math.inf
    good: tuple[int, ...] = (0,)
    unfinished: tuple[int, ...] = ()
    stopping_s: float = STOPPING_S

    @property
    def needs_s(self) -> float:
        """Seconds with which it is begun."""
        return self.usual_s if self.least_s is None else self.least_s


def main(arguments: Sequence[str] | None = None) -> int:
    """Run steps until none is left (0) or the time is up (3)."""
    parser = argparse.ArgumentParser(prog="run.sh", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "out",
        nargs="?",
        type=Path,
        default=Path("results"),
        metavar="RESULTS",
        help="folder of results, gone on with (default: results)",
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="of this slice (default: 9)")
    parser.add_argument(
        "--archive",
        type=Path,
        metavar="FILE",
        help="archive of the folder, renewed every 20 s, from which a missing folder is unpacked "
        "(default: RESULTS.tgz)",
    )
    parser.add_argument(
        "--measure-all", action="store_true", help=f"also the pairs that {KNOWN} has"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="no GPU: the same steps with made-up slowdowns"
    )
    given = parser.parse_args(arguments)
    out = given.out.resolve()
    if not given.dry_run and (lack := no_gpu()):
        print(f"run.sh: nothing can be measured: {lack} (--dry-run needs none)", file=sys.stderr)
        return 2
    if not given.dry_run and (lack := no_pytorch(workers_python())):
        text = f"{lack}: name a Python that has it with DOVETAIL_TORCH_PYTHON"
        print(f"run.sh: nothing can be measured: {text}", file=sys.stderr)
        return 2
    ends_at = time.monotonic() + 60 * given.minutes - RESERVE_S
    archive = (given.archive or out.with_name(f"{out.name}.tgz")).resolve()
    if archive.exists() and not out.exists():
        unpack(archive, out)
    out.mkdir(parents=True, exist_ok=True)
    known = () if given.measure_all else ("--known", KNOWN)
    steps = dry_steps(out, known) if given.dry_run else gpu_steps(out, known)
    with kept(out, archive):
        return Slice(out, ends_at).carry_out(list(steps))


def gpu_steps(out: Path, known: Sequence[str]) -> Iterator[Step]:
    """Yield the steps on a GPU, the most valuable first and those that may break it last."""
    python = ("--python", workers_python())
    doctor = (*DOVETAIL, "doctor", "--directory", str(out), *python)
    yield Step("doctor", (*doctor, "--json"), 15, output="doctor.json", most_s=90, good=(0, 1, 3))
    gate = (*doctor, "--splits", "--shares", SHARES)
    yield Step("shares", gate, 45, most_s=240, good=(0, 3))
    for name, stages, usual_s in PARTS:
        more = ("--stages", str(stages), "--directory", str(out), *python, *known)
        yield measuring(out, HERE / "first.yaml", name, usual_s, 30, *more)
    batch = (sys.executable, str(HERE / "batch.py"), str(out))
    yield Step("batch", batch, 300, 150, most_s=420)
    yield _testing(out, "harmless checks", *_WITHIN, str(SUITE), most_s=240)
    yield _testing(out, "faults", "-m", "not long", *_WITHIN, str(SUITE), most_s=300)


def dry_steps(out: Path, known: Sequence[str]) -> Iterator[Step]:
    """Yield the same steps for a machine without a GPU; what they measure is made up, and short."""
    truth, campaign = out / "made-up.yaml", out / "first.yaml"
    truth.write_text(made_up(), encoding="utf-8")
    campaign.write_text(shortened((HERE / "first.yaml").read_text(encoding="utf-8")), "utf-8")
    doctor = (*DOVETAIL, "doctor", "--directory", str(out), "--json")
    yield Step("doctor", doctor, 5, output="doctor.json", good=(0, 1, 3))
    for name, stages, _ in PARTS:
        more = ("--stages", str(stages), "--device", f"simulated:{truth}", *known)
        yield measuring(out, campaign, name, 5, 5, *more)
    pool = ("--pool", "cpu:devices=1,shares=none", "--seconds", "1")
    yield Step("batch", (sys.executable, str(HERE / "batch.py"), str(out), *pool), 30)


def shortened(campaign: str) -> str:
    """Return a campaign with short windows and few of the groups of which nothing is known."""
    short = "windows: {settle_s: 0, least_s: 0.1, most_s: 0.1}"
    text = re.sub("^windows: .*", short, campaign, flags=re.M)
    known = r"(?!pairs}|pairs, shares: \[50, 50\]})"
    groups = rf"^(  - {{measure: {known}(?:pairs|triples).*?)(?:, most: \d+)?}}$"
    return re.sub(groups, r"\1, most: 3}", text, flags=re.M)


def made_up(*more: str) -> str:
    """Return an instance of one H200 with slowdowns that are made up.

    ``more`` are workloads beyond those of the data set.
    """
    world = world_of(read_dataset(KNOWN), 1, 1).to_data()
    world["workloads"] |= dict.fromkeys(more, world["workloads"]["transformer"])
    names = sorted(world["workloads"])
    splits = [(None, None), (50, 50), (33, 33), (10, 90), (25, 75)]
    pairs = {
        frozenset(zip(pair, caps, strict=True)): (pair, caps)
        for pair in product(names, repeat=2)
        for caps in splits
    }
    groups = [
        *pairs.values(),
        *((three, (33, 33, 33)) for three in combinations_with_replacement(names, 3)),
    ]
    world["cluster"] |= {"shares": [10, 25, 33, 50, 75, 90], "max_jobs_per_gpu": 3}
    world["slowdowns"] = [
        {
            ("pair" if len(group) == 2 else "set"): group,
            "share": caps,
            "slowdown": [
                1 + (sum(map(len, group)) - len(name)) / (cap or 60)
                for name, cap in zip(group, caps, strict=True)
            ],
        }
        for group, caps in groups
    ]
    return json.dumps(world)


@contextmanager
def kept(out: Path, archive: Path) -> Iterator[None]:
    """Keep an archive of a folder that is renewed every 20 s, and once more at the end."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(KEEP_S):
            pack(out, archive)

    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        yield
    finally:
        over.set()
        renewing.join()
        pack(out, archive)


def pack(out: Path, archive: Path) -> None:
    """Archive the files of a folder; databases as they are between two transactions."""
    part = archive.with_name(f"{archive.name}.part")
    with TemporaryDirectory() as folder, tarfile.open(part, "w:gz") as tar:
        for path in sorted(one for one in out.iterdir() if one.is_file()):
            if path.suffix == ".db":
                copy = Path(folder) / path.name
                with closing(sqlite3.connect(path)) as now, closing(sqlite3.connect(copy)) as then:
                    now.backup(then)
                tar.add(copy, path.name)
            elif not path.name.endswith(("-wal", "-shm")):
                tar.add(path, path.name)
    os.replace(part, archive)


def unpack(archive: Path, out: Path) -> None:
    """Unpack what ``pack`` has kept."""
    with tarfile.open(archive) as tar:
        tar.extractall(out, filter="data")


def no_gpu() -> str | None:
    """Return in one line why no GPU answers; None if one does."""
    try:
        with Nvml() as nvml:
            return None if nvml.gpus() else "no GPU answers here"
    except DovetailError as error:
        return str(error)


def no_pytorch(python: str) -> str | None:
    """Return in one line why a Python cannot run workloads; None if it has PyTorch."""
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    try:
        lacks = subprocess.run([python, "-c", look], check=False).returncode
    except OSError as error:
        return f"{python} cannot be run: {error.strerror}"
    return f"{python} has no PyTorch" if lacks else None


def measuring(
    out: Path, campaign: Path, name: str, usual_s: float, least_s: float, *more: str
) -> Step:
    """Return a part of the campaign, which can be stopped after each experiment."""
    options = ("--output", str(out), "--verbose", *_WITHIN, *more)
    command = (*DOVETAIL, "measure", str(campaign), *options)
    return Step(name, command, usual_s, least_s, "summary.txt", unfinished=(3,))


def _testing(out: Path, name: str, *which: str, most_s: float) -> Step:
    """Return a part of the acceptance suite, which ends with 0 or 1, or with 6 if more is left."""
    kept = ("--proof", str(out / "proof.json"), "--junitxml", str(out / f"{name}.xml"))
    command = (*PYTEST, *kept, *which)
    return Step(name, command, 180, 40, most_s=most_s, good=(0, 1), unfinished=(6,))


def _text(path: Path) -> str:
    """Return what was written into a file, which may not be there yet or any more."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def workers_python() -> str:
    """Return the Python with the PyTorch of the workloads."""
    return os.environ.get("DOVETAIL_TORCH_PYTHON", sys.executable)


class Slice:
    """Runs steps until a deadline, and logs their outcomes.

    Parameters
    ----------
    out : path
        The output folder.
    ends_at : float
        The deadline in seconds of ``time.monotonic``.
    """

    def __init__(self, out: Path, ends_at: float) -> None:
        self._out, self._ends_at = out, ends_at
        self._log = out / "log.txt"
        self._shown = len(_text(self._log))

    def carry_out(self, steps: Sequence[Step]) -> int:
        """Run the steps that are left, in order."""
        for step in steps:
            if self._is_over(step):
                continue
            if self._left_s < step.needs_s:
                self._note(f"{step.name}: is left to the next slice")
                continue
            began = time.monotonic()
            of = f"about {step.usual_s:.0f} of {self._left_s:.0f} s left"
            self._note(f"{step.name}: begins, {of}")
            status = self._do(step)
            took = f"{time.monotonic() - began:.0f} s"
            if status in step.good:
                self._note(f"{step.name}: done after {took}")
            elif status is None and self._left_s > 0:
                self._note(f"{step.name}: given up after {took}")
            elif status is None or status in step.unfinished:
                self._note(f"{step.name}: goes on in the next slice, after {took}")
            else:
                why = self._last_words()
                self._note(f"{step.name}: failed with status {status} after {took}: {why}")
        if not all(self._is_over(step) for step in steps):
            return 3
        given_up = ", ".join(step.name for step in steps if not self._is_done(step))
        self._note(f"everything is done but what was given up: {given_up}" if given_up else DONE)
        return 0

    @property
    def _left_s(self) -> float:
        return self._ends_at - time.monotonic()

    def _is_over(self, step: Step) -> bool:
        """Return whether a step is done, was given up, or has failed too often, by the log."""
        failures = sum(line.startswith(f"{step.name}: failed") for line in self._messages())
        given_up = any(line.startswith(f"{step.name}: given up") for line in self._messages())
        return failures >= TRIES or given_up or self._is_done(step)

    def _is_done(self, step: Step) -> bool:
        return any(line.startswith(f"{step.name}: done") for line in self._messages())

    def _messages(self) -> list[str]:
        """Return the messages of the log."""
        return [line.partition(" | ")[2] for line in _text(self._log).splitlines()]

    def _do(self, step: Step) -> int | None:
        """Run a step, and return its exit status; None if its time or the slice's was up."""
        minutes = f"{self._left_s / 60:.2f}"
        command = [one.replace("{minutes}", minutes) for one in step.command]
        with self._log.open("ab") as log:
            output = (self._out / step.output).open("wb") if step.output else log
            with output:
                process = subprocess.Popen(command, stdout=output, stderr=log)
                status = self._awaited(process, step)
        self._show()
        self._gather()
        return status

    def _last_words(self) -> str:
        """Return the last message of a command in the log."""
        lines = _text(self._log).splitlines()
        why = ("dovetail: ", "ERROR: ", "SKIPPED ")
        return next((line for line in reversed(lines) if line.startswith(why)), "?")

    def _gather(self) -> None:
        """Move the ends of workers' logs into the log, so that the folder has few files."""
        with self._log.open("a", encoding="utf-8") as log:
            for run in sorted(self._out.glob("p*/runs/*")):
                said = _text(run / "rank0" / "log")[-MOST_SAID:]
                log.write(f"== {run.name}\n{said}\n")
        self._shown = len(_text(self._log))  # logs of workers are for the file only
        for pool in ("pool", "probes"):
            shutil.rmtree(self._out / pool, ignore_errors=True)

    def _awaited(self, process: subprocess.Popen[bytes], step: Step) -> int | None:
        """Wait for a command; interrupt it like Ctrl-C when the time is up."""
        until_s = time.monotonic() + min(step.most_s, max(1.0, self._left_s) + RESERVE_S / 2)
        while time.monotonic() < until_s:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(0.5)
            self._show()
        process.send_signal(signal.SIGINT)
        try:
            process.wait(step.stopping_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return None

    def _note(self, message: str) -> None:
        line = f"{datetime.now(UTC).isoformat(timespec='seconds')} | {message}"
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")
        self._show()

    def _show(self) -> None:
        """Print what the log has gained."""
        text = _text(self._log)
        print(text[self._shown :], end="", flush=True)
        self._shown = len(text)


if __name__ == "__main__":
    sys.exit(main())
