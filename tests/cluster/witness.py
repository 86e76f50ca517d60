"""A job that records when and where it runs, and which processes of its earlier runs are left.

Every rank appends lines to one file of its job: when it starts, with the processes of earlier runs
and their states; ten times a second while it runs; and when it ends. All nodes of a test are on one
machine with one clock, so the lines of different nodes can be compared.
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

    A brief one does not wait for the file; a stubborn one ignores SIGTERM.
    """
    words = ("yes" if stubborn else "no", *(["brief"] if brief else []))
    return (sys.executable, "-S", "-c", PROGRAM, str(folder), *words)


class Copy(NamedTuple):
    """One rank of one run, as recorded by itself.

    Attributes
    ----------
    began_s, last_s : float
        The times of its first and last line, in seconds since the machine booted.
    left : mapping of str to str
        The processes of earlier runs that existed when it began, and their states.
    ended : bool
        Whether it ended by itself.
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
    """Return all copies of a job's ranks, in the order in which they began.

    Raises
    ------
    AssertionError
        When a rank of a run began twice.
    """
    path = folder / f"{job}.lines"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    by_rank: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for line in lines:
        by_rank.setdefault((line["run"], line["rank"]), []).append(line)
    for key, mine in by_rank.items():
        assert [line["what"] for line in mine].count("start") == 1, f"{key} began more than once"
    found = (_copy(mine) for mine in by_rank.values())
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


def runs_of(found: Sequence[Copy]) -> Sequence[Sequence[Copy]]:
    """Return the copies of each run, the first run first."""
    names = dict.fromkeys(copy.run for copy in found)
    return [[copy for copy in found if copy.run == name] for name in names]


def assert_one_after_the_other(folder: Path, job: str, frozen: bool = False) -> None:
    """Assert that a job ended once, and that no two of its runs ran at the same time.

    With ``frozen``, a process of an earlier run may still exist when the next run begins, if it is
    stopped.
    """
    runs = runs_of(copies(folder, job))
    assert [all(copy.ended for copy in run) for run in runs] == [False] * (len(runs) - 1) + [True]
    for copy in (copy for run in runs for copy in run):
        assert set(copy.left.values()) <= ({"T"} if frozen else set()), copy
    for former, later in pairwise(runs):
        if not frozen:
            assert max(c.last_s for c in former) < min(c.began_s for c in later), (former, later)


def left_running(folder: Path) -> list[psutil.Process]:
    """Return the processes of the witness jobs of a folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if PROGRAM in process.cmdline() and str(folder) in process.cmdline():
                found.append(process)
    return found
