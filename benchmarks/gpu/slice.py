"""Run the steps of the first campaign within the minutes of one slice, most valuable first.

Each step is a command of ``dovetail`` or a part of the acceptance suite (``tests/gpu``). It stores
every finding at once, so stopping it loses nothing. ``log.txt`` in the output folder lists the
steps that are done; a later slice continues from there, also on another machine of the same kind.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.executor.gpus.nvml import Nvml
from dovetail.instances.errors import DovetailError

HERE: Final = Path(__file__).resolve().parent
SUITE: Final = HERE.parents[1] / "tests" / "gpu"
DOVETAIL: Final = (sys.executable, "-m", "dovetail")
PYTEST: Final = (sys.executable, "-m", "pytest", "-q")

RESERVE_S: Final = 20.0
"""Seconds of a slice that are reserved for stopping cleanly."""

STOPPING_S: Final = 45.0
"""Seconds that a step may take to stop, some of them for ending MPS."""

MOST_SAID: Final = 4000
"""Characters that are kept of a worker's log."""

DONE: Final = "everything is done"

TRIES: Final = 2
"""How often a failing step is tried, in different slices."""

FIRST_SHARES: Final = "50,10,90,100"
"""The shares of the campaign: halves, a split reported to compute correctly, and the whole."""

MORE_SHARES: Final = "25,75,30,70"
LAST_SHARES: Final = "5,95,20,80,40,60"

FIRST_TESTS: Final = ("test_programs.py", "test_clients.py", "test_shares.py::test_shares")
"""Whether MPS starts, its answers with 0, 1 and 2 clients, and the SMs of shares."""

CORE: Final = 8
ALL_BUT_EXTRAS: Final = 15
"""Numbers of stages of ``first.yaml``: the core, and all up to the extras."""

_WITHIN: Final = ("--minutes", "{minutes}")


class Step(NamedTuple):
    """A command of a slice.

    Attributes
    ----------
    name : str
        Its name in the log.
    command : tuple of str
        ``{minutes}`` in it is replaced by the minutes left in the slice.
    least_s : float
        If fewer seconds are left, the step is left to the next slice.
    output : str
        File of the output folder for its standard output; the log by default.
    most_s : float
        Seconds after which it counts as hung and is given up.
    good : tuple of int
        Exit statuses if it is done.
    unfinished : tuple of int
        Exit statuses if it continues in the next slice.
    """

    name: str
    command: tuple[str, ...]
    least_s: float
    output: str = ""
    most_s: float = math.inf
    good: tuple[int, ...] = (0,)
    unfinished: tuple[int, ...] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run steps until none is left (0) or the time is up (3)."""
    parser = argparse.ArgumentParser(prog="run.sh", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of results, gone on with")
    parser.add_argument("--cpu", action="store_true", help="a dry run: this processor, tiny sizes")
    parser.add_argument("--minutes", type=float, default=9.0, help="of this slice (default: 9)")
    given = parser.parse_args(arguments)
    out = given.out.resolve()
    if not given.cpu and (lack := no_gpu()):
        print(f"run.sh: nothing can be measured: {lack} (--cpu: a dry run)", file=sys.stderr)
        return 2
    if lack := no_pytorch(workers_python()):
        text = f"{lack}: name a Python that has it with DOVETAIL_TORCH_PYTHON"
        print(f"run.sh: nothing can be measured: {text}", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    steps = cpu_steps(out) if given.cpu else gpu_steps(out)
    return Slice(out, time.monotonic() + 60 * given.minutes - RESERVE_S).carry_out(list(steps))


def gpu_steps(out: Path) -> Iterator[Step]:
    """Yield the steps on a GPU, the most valuable first and those that may break it last."""
    doctor = (*DOVETAIL, "doctor", "--directory", str(out), "--python", workers_python())
    gate = (*doctor, "--splits", "--shares")
    campaign = partial(_measuring, out, HERE / "first.yaml")
    yield Step("doctor", (*doctor, "--json"), 15, "doctor.json", most_s=90, good=(0, 1, 3))
    yield _testing(out, "first checks", *(str(SUITE / one) for one in FIRST_TESTS), most_s=180)
    yield Step("first shares", (*gate, FIRST_SHARES), 60, most_s=240, good=(0, 3))
    yield campaign("core", "--stages", str(CORE))
    yield _testing(out, "harmless checks", *_WITHIN, str(SUITE), most_s=240)
    yield campaign("unequal splits and repeats", "--stages", str(ALL_BUT_EXTRAS))
    # From here on it is as time allows.
    yield Step("more shares", (*gate, MORE_SHARES), 50, most_s=150, good=(0, 3))
    yield _testing(out, "faults", "-m", "", *_WITHIN, str(SUITE), most_s=300)
    yield campaign("repeats without MPS")
    yield Step("last shares", (*gate, LAST_SHARES), 60, most_s=200, good=(0, 3))
    yield Step("SMs of every share", (*doctor, "--sms"), 40, most_s=90, good=(0, 3))


def cpu_steps(out: Path) -> Iterator[Step]:
    """Yield the steps of a dry run without a GPU."""
    doctor = (*DOVETAIL, "doctor", "--directory", str(out), "--python", workers_python())
    yield Step("doctor", (*doctor, "--json"), 5, "doctor.json", good=(0, 1, 3))
    yield _measuring(out, HERE / "tiny.yaml", "campaign", "--device", "cpu", least_s=5)


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


def _measuring(out: Path, campaign: Path, name: str, *more: str, least_s: float = 30) -> Step:
    options = (
        *("--output", str(out), "--directory", str(out), "--python", workers_python()),
        *("--verbose", *_WITHIN, *more),
    )
    command = (*DOVETAIL, "measure", str(campaign), *options)
    return Step(name, command, least_s, "summary.txt", unfinished=(3,))


def _testing(out: Path, name: str, *which: str, most_s: float) -> Step:
    """Return a part of the acceptance suite, which ends with 0 or 1, or with 6 if more is left."""
    kept = ("--proof", str(out / "proof.json"), "--junitxml", str(out / f"{name}.xml"))
    return Step(name, (*PYTEST, *kept, *which), 40, most_s=most_s, good=(0, 1), unfinished=(6,))


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

    def carry_out(self, steps: Sequence[Step]) -> int:
        """Run the steps that are left, in order."""
        for step in steps:
            if self._is_over(step):
                continue
            if self._left_s < step.least_s:
                return self._stopped(step)
            began = time.monotonic()
            self._note(f"{step.name}: begins, {self._left_s:.0f} s left")
            status = self._do(step)
            took = f"{time.monotonic() - began:.0f} s"
            if status in step.good:
                self._note(f"{step.name}: done after {took}")
            elif status is None and self._left_s > 0:
                self._note(f"{step.name}: given up after {took}")
            elif status is None or status in step.unfinished:
                self._note(f"{step.name}: goes on in the next slice, after {took}")
                return 3
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

    def _stopped(self, step: Step) -> int:
        self._note(f"{step.name}: is left to the next slice")
        return 3

    def _do(self, step: Step) -> int | None:
        """Run a step, and return its exit status; None if its time or the slice's was up."""
        minutes = f"{self._left_s / 60:.2f}"
        command = [one.replace("{minutes}", minutes) for one in step.command]
        with self._log.open("ab") as log:
            output = (self._out / step.output).open("wb") if step.output else log
            with output:
                process = subprocess.Popen(command, stdout=output, stderr=log)
                status = self._awaited(process, step.most_s)
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
        for pool in ("pool", "probes"):
            shutil.rmtree(self._out / pool, ignore_errors=True)

    def _awaited(self, process: subprocess.Popen[bytes], most_s: float) -> int | None:
        """Wait for a command; interrupt it like Ctrl-C when the time is up."""
        try:
            return process.wait(min(most_s, max(1.0, self._left_s) + RESERVE_S / 2))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(STOPPING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return None

    def _note(self, message: str) -> None:
        line = f"{datetime.now(UTC).isoformat(timespec='seconds')} | {message}"
        print(line, flush=True)
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
