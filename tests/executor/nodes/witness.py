"""A job that bears witness: it records when and where it runs, and what is left of earlier runs.

Every rank appends lines to one file of its job: as it starts, with every former copy of the job
that still has a process and the state of that; ten times a second while it runs; and as it ends.
All nodes of a test are one machine with one clock, so the lines of different nodes can be compared.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import psutil

PROGRAM = """
import json, os, pathlib, signal, sys, time
def boot_s(): return time.clock_gettime(time.CLOCK_BOOTTIME)
def state(pid, began):
    try: fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError: return ""
    return fields[0] if int(fields[19]) == began else ""
folder, stubborn = sys.argv[1:3]
job, run, rank = (os.environ["DOVETAIL_" + name] for name in ("JOB", "RUN", "RANK"))
if stubborn == "yes": signal.signal(signal.SIGTERM, signal.SIG_IGN)
path = pathlib.Path(folder, job + ".lines")
shim = pathlib.Path(f"/proc/{os.getppid()}/cmdline").read_text()
node = next(part for part in shim.split("/") if part in ("n1", "n2", "n3"))
began = int(pathlib.Path("/proc/self/stat").read_text().rpartition(") ")[2].split()[19])
def say(what, **more):
    line = dict(what=what, at_s=boot_s(), run=run, rank=int(rank), node=node, pid=os.getpid())
    with open(path, "a") as file: file.write(json.dumps(line | more) + chr(10))
former = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
starts = [line for line in former if line["what"] == "start" and line["run"] != run]
left = {line["pid"]: state(line["pid"], line["began"]) for line in starts}
say("start", began=began, left={pid: found for pid, found in left.items() if found})
goes = [pathlib.Path(folder, name) for name in ("go", "go-" + job)]
while not any(path.exists() for path in goes) and "brief" not in sys.argv:
    time.sleep(0.1)
    say("beat")
say("end")
"""


def witness(folder: Path, *, stubborn: bool = False, brief: bool = False) -> Sequence[str]:
    """Return the command of a job that runs until a file ``go`` (or ``go-JOB``) is in a folder.

    One that is brief does not wait for that; one that is stubborn takes no notice of SIGTERM.
    """
    words = ("yes" if stubborn else "no", *(["brief"] if brief else []))
    return (sys.executable, "-S", "-c", PROGRAM, str(folder), *words)


class Copy(NamedTuple):
    """One rank of one run, by its own account.

    Attributes
    ----------
    began_s, last_s : float
        Its first and last line, seconds since the machine booted.
    left : mapping of str to str
        Processes of former runs that were there as it began, and their states.
    ended : bool
        Whether it came to its end.
    """

    run: str
    rank: int
    node: str
    pid: int
    began_s: float
    last_s: float
    left: Mapping[str, str]
    ended: bool


def copies(folder: Path, job: str) -> Sequence[Copy]:
    """Return all copies of a job's ranks that ever ran, in the order of their beginnings.

    Raises
    ------
    AssertionError
        When a rank of a run began twice.
    """
    path = folder / f"{job}.lines"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    told: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for line in lines:
        told.setdefault((line["run"], line["rank"]), []).append(line)
    for key, mine in told.items():
        assert [line["what"] for line in mine].count("start") == 1, f"{key} began more than once"
    found = (_copy(mine) for mine in told.values())
    return sorted(found, key=lambda copy: copy.began_s)


def _copy(lines: Sequence[Mapping[str, Any]]) -> Copy:
    first, last = lines[0], lines[-1]
    return Copy(
        run=first["run"],
        rank=first["rank"],
        node=first["node"],
        pid=first["pid"],
        began_s=first["at_s"],
        last_s=last["at_s"],
        left=first["left"],
        ended=last["what"] == "end",
    )


def runs_of(told: Sequence[Copy]) -> Sequence[Sequence[Copy]]:
    """Return the copies of each run, the first run first."""
    names = dict.fromkeys(copy.run for copy in told)
    return [[copy for copy in told if copy.run == name] for name in names]


def assert_one_after_the_other(folder: Path, job: str, frozen: bool = False) -> None:
    """Assert that a job came to its end once, and that of no two runs anything ran together.

    With ``frozen`` a former copy may still have a process as the next one begins, if it is
    stopped and can do nothing.
    """
    runs = runs_of(copies(folder, job))
    assert [all(copy.ended for copy in run) for run in runs] == [False] * (len(runs) - 1) + [True]
    for copy in (copy for run in runs for copy in run):
        assert set(copy.left.values()) <= ({"T"} if frozen else set()), copy
    for former, later in pairwise(runs):
        if not frozen:
            assert max(c.last_s for c in former) < min(c.began_s for c in later), (former, later)


def left_running(folder: Path) -> list[psutil.Process]:
    """Return the witnesses of a folder that still have a process."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if PROGRAM in process.cmdline() and str(folder) in process.cmdline():
                found.append(process)
    return found
