"""Run the tutorial of live mode (docs/tutorials/live.md), and print its results.

    python benchmarks/live_tutorial.py [TENTHS]

It writes the files of the page, starts ``dovetail serve`` on one core, submits two rounds of
twelve jobs through the command line, and afterwards runs the same twelve one after another on the
same core. TENTHS is about how long a job takes alone, in tenths of a second (default: 60).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from dovetail.executor.jobs.events import Measured, Placed
from dovetail.executor.jobs.journal import read_events
from dovetail.executor.pools.runs.progress import hook_environment

PAGE = Path(__file__).parents[1] / "docs" / "tutorials" / "live.md"
FILE = re.compile(r"^`([^`\n]+)`:\n\n```\w+\n(.*?)^```$", re.M | re.S)
USUAL = (
    "sample_s=0.2,warm_up_s=1,settle_s=0.5,profile_s=3,profile_most_s=10,window_s=3,tolerance=0.1"
)
_LONGEST_S = 600
KINDS = ("dense", "stream", "means")


class Pair(NamedTuple):
    """A measurement of two jobs: what was believed of each when they met, and what it was.

    ``again`` says that the two had been measured together before, so that what was believed came
    from that, and not from their profiles.
    """

    workloads: tuple[str, ...]
    predicted: tuple[float, ...]
    measured: tuple[float, ...]
    again: bool

    @property
    def error(self) -> float:
        """The mean of what the predictions of both were off."""
        return fmean(abs(p - m) for p, m in zip(self.predicted, self.measured, strict=True))


class Round(NamedTuple):
    """Twelve jobs, as ``dovetail queue --json`` has them, and what was measured of pairs."""

    jobs: Sequence[Mapping[str, Any]]
    pairs: Sequence[Pair]

    @property
    def seconds(self) -> float:
        """From when the first ran until the last ended."""
        began_s = min(job["started_s"] for job in self.jobs)
        return float(max(job["ended_s"] for job in self.jobs) - began_s)


def mean_error(pairs: Iterable[Pair]) -> float:
    """Return the mean of what predictions were off; NaN where there are none."""
    return float(np.mean([pair.error for pair in pairs] or [np.nan]))


class Tutorial:
    """The page's files in a folder, and a service that runs there.

    Parameters
    ----------
    folder : path
        Empty, with a name that is short enough for a socket.
    watch : str
        How long the service looks at runs, as in ``dovetail serve --watch``.
    """

    def __init__(self, folder: Path, watch: str = USUAL) -> None:
        self.folder, self.home = folder, folder / "home"
        self._watch = watch
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self._env = {**os.environ, "PATH": path, "DOVETAIL_HOME": str(self.home)}
        for name, text in FILE.findall(PAGE.read_text(encoding="utf-8")):
            (folder / name).write_text(text, encoding="utf-8")

    @contextmanager
    def service(self) -> Iterator[None]:
        """Run the service of the page."""
        serve = ["dovetail", "serve", "--pool", "cpu:devices=1,shares=none", "--watch", self._watch]
        with (self.folder / "service.log").open("w") as log:
            child = subprocess.Popen(
                serve, cwd=self.folder, env=self._env, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            while not (self.home / "service.json").exists():
                if child.poll() is not None:
                    raise RuntimeError((self.folder / "service.log").read_text())
                time.sleep(0.05)
            yield
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait()

    def run(self, tenths: int, at_once: bool = True) -> Round:
        """Submit twelve jobs and wait until they are over.

        The first starts when all are there (``at_once``), or as soon as it can.
        """
        after = max((entry.sequence for entry in read_events(self.home)), default=0)
        if at_once:
            self.say("dovetail", "drain")
        ids = self.say("sh", "submit.sh", str(tenths)).split()
        if at_once:
            self.say("dovetail", "drain", "--off")
        self.say("dovetail", "wait", *ids)
        jobs = json.loads(self.say("dovetail", "queue", "--all", "--json"))
        return Round([job for job in jobs if job["id"] in ids], self._pairs(after))

    def alone_s(self, kinds: Iterable[str], tenths: int) -> float:
        """Run jobs one after another on the service's core; return the seconds in all."""
        script = (self.folder / "submit.sh").read_text(encoding="utf-8")
        factors = dict(re.findall(r"(\w+)\.py \$\(\((\d+)", script))
        env = {**self._env, **hook_environment(str(self.folder / "progress"), self._env)}
        began_s = time.monotonic()
        for kind in kinds:
            subprocess.run(
                [sys.executable, f"{kind}.py", str(int(factors[kind]) * tenths)],
                cwd=self.folder,
                env=env,
                check=True,
                preexec_fn=_on_one_core,
            )
        return time.monotonic() - began_s

    def say(self, *command: str) -> str:
        """Run a command of the page and return what it prints."""
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self._env,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=_LONGEST_S,
        ).stdout

    def _pairs(self, after: int) -> list[Pair]:
        """Return what was measured of pairs whose predictions are known, after an event."""
        found = []
        placed: dict[str, int] = {}
        first: dict[tuple[str, ...], int] = {}
        for number, event in read_events(self.home):
            if isinstance(event, Placed):
                placed[event.run.id] = number
            elif isinstance(event, Measured) and event.predicted and event.measurement.slowdown:
                names = tuple(name.partition("/")[2] for name in event.measurement.workloads)
                met = max(placed[run] for run in event.runs)
                again = first.setdefault(tuple(sorted(names)), number) < met
                if number > after:
                    found.append(Pair(names, event.predicted, event.measurement.slowdown, again))
        return found


def _on_one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def main() -> None:
    """Run both rounds and the twelve alone, and print them."""
    tenths = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    with tempfile.TemporaryDirectory(prefix="dove-") as folder:
        tutorial = Tutorial(Path(folder))
        before_s = tutorial.alone_s(KINDS * 2, tenths)
        with tutorial.service():
            rounds = [tutorial.run(tenths) for _ in range(2)]
        alone_s = before_s + tutorial.alone_s(KINDS * 2, tenths)
    print("| twelve jobs | seconds | relative time | measurements | prediction error |")
    print("|---|--:|--:|--:|--:|")
    print(f"| one after another | {alone_s:.1f} | 1.00 | | |")
    for k, found in enumerate(rounds, 1):
        figures = f"{found.seconds:.1f} | {found.seconds / alone_s:.2f} | {len(found.pairs)}"
        print(f"| round {k} | {figures} | {mean_error(found.pairs):.3f} |")
    print()
    for k, found in enumerate(rounds, 1):
        for pair in found.pairs:
            print(f"round {k}: {_text(pair)}")


def _text(pair: Pair) -> str:
    believed = ", ".join(f"{value:.2f}" for value in pair.predicted)
    measured = ", ".join(f"{value:.2f}" for value in pair.measured)
    source = "measurements" if pair.again else "profiles"
    return f"{' + '.join(pair.workloads)}: {believed} from {source}, measured {measured}"


if __name__ == "__main__":
    main()
