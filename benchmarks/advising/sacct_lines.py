"""The cost of reading a large file by ``sacct -P`` for advice.

    python benchmarks/advising/sacct_lines.py [LINES]

100,000 lines unless another number is named: jobs on one to eight GPUs of which each has the steps
``batch`` and ``extern``, and every second one a step ``0``, with the use of GPUs, a summary of
jobstats in the comment, and made-up values. ``dovetail advise FILE`` is run with only as much of
its work as reading is: the program prints processor time and peak memory of the whole process.
"""

from __future__ import annotations

import base64
import gzip
import json
import random
import resource
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
_READ = "from dovetail.advising.reader import read_usage; import sys; read_usage(sys.argv[1])"


def main() -> None:
    """Write the file, read it in a process of its own, and print what that took."""
    lines = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with TemporaryDirectory() as folder:
        path = Path(folder, "sacct.txt")
        write_sacct(path, lines)
        subprocess.run([sys.executable, "-c", _READ, path], check=True)
        size_mib = path.stat().st_size / 2**20
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, peak_mib = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    print(f"{lines:,} lines, {size_mib:.0f} MiB: {seconds:.1f} CPU s, {peak_mib:.0f} MiB at most")


def write_sacct(path: Path, lines: int) -> None:
    """Write a file with a header and so many lines."""
    draws = random.Random(SEED)
    with path.open("w", encoding="utf-8") as file:
        file.write(f"{HEADER}\n")
        file.writelines(f"{line}\n" for line in islice(_lines(draws), lines))


def _lines(draws: random.Random) -> Iterator[str]:
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
            f"{_comment(draws, node, gpus)}|train{draws.randrange(50)}"
        )
        for step, name, tasks in (("batch", "batch", 1), ("extern", "extern", 1), ("0", "x", gpus)):
            if step == "0" and job % 2:
                continue
            util = 0 if step == "extern" else draws.randrange(100)
            used = f"gres/gpumem={util * 400}M,gres/gpuutil={util},mem={draws.randrange(10**7)}K"
            yield (
                f"{job}.{step}|||{start.isoformat()}|{times}|COMPLETED|1|{tasks}||{resources}|"
                f"cpu=00:00:03,energy=0,{used},pages=0|cpu=00:00:03,{used}|{node}||{name}"
            )


def _comment(draws: random.Random, node: str, gpus: int) -> str:
    """Return a summary in the form of jobstats."""
    each = range(gpus)
    use = {
        "gpu_total_memory": {str(gpu): 85_899_345_920 for gpu in each},
        "gpu_used_memory": {str(gpu): draws.randrange(85_899_345_920) for gpu in each},
        "gpu_utilization": {str(gpu): round(100 * draws.random(), 1) for gpu in each},
    }
    summary = json.dumps({"nodes": {node: use}, "gpus": gpus}).encode()
    return "JS1:" + base64.b64encode(gzip.compress(summary, 1)).decode()


if __name__ == "__main__":
    main()
