"""The cost of advice on a large file by ``sacct -P``: of reading it, and of all of it.

    python benchmarks/advising/sacct_lines.py [LINES]

100,000 lines unless another number is named: jobs on one to eight GPUs of which each has the steps
``batch`` and ``extern``, and every second one a step ``0``, with the use of GPUs, a summary of
jobstats in the comment, and made-up values. The program prints processor time and peak memory of
one process that reads the file and of one that runs ``dovetail advise FILE``; also for a file in
which jobs use a quarter of the memory, so that most may share.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

HEADER = (
    "JobID|User|Partition|Submit|Start|End|ElapsedRaw|State|NNodes|NTasks|ReqTRES|AllocTRES|"
    "TRESUsageInMax|TRESUsageInTot|NodeList|AdminComment|JobName"
)
SEED = 1
_STEPS = {
    "reading": "from dovetail.advising.reader import read_usage; read_usage(sys.argv[1])",
    "advice": "from dovetail.cli.main import main; sys.exit(main(['advise', sys.argv[1]]))",
}


def main() -> None:
    """Write the file, and print what each step in a process of its own takes."""
    lines = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with TemporaryDirectory() as folder:
        for most_mib in (81_920, 20_480):
            path = Path(folder, f"sacct-{most_mib}.txt")
            write_sacct(path, lines, most_mib)
            size_mib = path.stat().st_size / 2**20
            print(f"{lines:,} lines, {size_mib:.0f} MiB, jobs use up to {most_mib:,} MiB of a GPU")
            for name, program in _STEPS.items():
                command = [sys.executable, "-c", f"import sys; {program}", str(path)]
                seconds, peak_mib = _used(command)
                print(f"  {name}: {seconds:.1f} CPU s, {peak_mib:.0f} MiB at most")


def _used(command: list[str]) -> tuple[float, float]:
    """Return the processor time of a process, and its peak memory in MiB."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def write_sacct(path: Path, lines: int, most_mib: int = 81_920) -> None:
    """Write a file with a header and so many lines, of jobs that use so much memory at most."""
    draws = random.Random(SEED)
    with path.open("w", encoding="utf-8") as file:
        file.write(f"{HEADER}\n")
        file.writelines(f"{line}\n" for line in islice(_lines(draws, most_mib), lines))


def _lines(draws: random.Random, most_mib: int) -> Iterator[str]:
    begun = datetime(2026, 8, 1)
    for job in range(100_000, 10_000_000):
        gpus, user = draws.choice((1, 1, 1, 2, 4, 8)), f"u{draws.randrange(200)}"
        submit = begun + timedelta(seconds=draws.randrange(30 * 86_400))
        start = submit + timedelta(seconds=draws.randrange(7_200))
        lasted = draws.randrange(60, 86_400)
        times = f"{start.isoformat()}|{(start + timedelta(seconds=lasted)).isoformat()}|{lasted}"
        model = draws.choice(("a100", "h100", "v100"))
        resources = f"cpu={8 * gpus},gres/gpu:{model}={gpus},gres/gpu={gpus},mem=64G,node=1"
        node = f"gpu{draws.randrange(100):03d}"
        asked = f"billing={8 * gpus},{resources}"
        yield (
            f"{job}|{user}|gpu|{submit.isoformat()}|{times}|COMPLETED|1||{asked}|{asked}|||{node}|"
            f"{_comment(draws, node, gpus, most_mib)}|train{draws.randrange(50)}"
        )
        for step, name, tasks in (("batch", "batch", 1), ("extern", "extern", 1), ("0", "x", gpus)):
            if step == "0" and job % 2:
                continue
            util = 0 if step == "extern" else draws.randrange(100)
            memory = f"gres/gpumem={util * most_mib // 200}M,mem={draws.randrange(10**7)}K"
            used = f"gres/gpuutil={util},{memory}"
            yield (
                f"{job}.{step}|||{start.isoformat()}|{times}|COMPLETED|1|{tasks}||{resources}|"
                f"cpu=00:00:03,energy=0,{used},pages=0|cpu=00:00:03,{used}|{node}||{name}"
            )


def _comment(draws: random.Random, node: str, gpus: int, most_mib: int) -> str:
    """Return a summary in the form of jobstats."""
    each = range(gpus)
    use = {
        "gpu_total_memory": {str(gpu): 85_899_345_920 for gpu in each},
        "gpu_used_memory": {str(gpu): draws.randrange(most_mib << 20) for gpu in each},
        "gpu_utilization": {str(gpu): round(100 * draws.random(), 1) for gpu in each},
    }
    summary = json.dumps({"nodes": {node: use}, "gpus": gpus}).encode()
    return "JS1:" + base64.b64encode(gzip.compress(summary, 1)).decode()


if __name__ == "__main__":
    main()
