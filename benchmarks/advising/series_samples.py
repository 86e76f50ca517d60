"""The cost of reading a long series of utilisation for advice.

    python benchmarks/advising/series_samples.py [SAMPLES]

A day of 143 pods, one sample of each every 10 s, unless another number of samples of each is named:
1.2 million rows with namespace, pod, GPU, utilisation, memory and SM activity as CSV, and the same
three metrics as an answer of Prometheus, with made-up values. ``dovetail advise FILE`` is run with
only as much of its work as reading is: the program prints processor time and peak memory of each
process.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

PODS = 143
START = 1_795_946_400
STEP_S = 10
SEED = 1
_HEADER = "timestamp,namespace,pod,gpu,gpu_util_percent,memory_used_mib,DCGM_FI_PROF_SM_ACTIVE\n"
_METRICS = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_PROF_SM_ACTIVE")
_READ = "from dovetail.advising.reader import read_usage; import sys; read_usage(sys.argv[1])"


def main() -> None:
    """Write the files, read each in a process of its own, and print what that took."""
    samples = int(sys.argv[1]) if len(sys.argv) > 1 else 8640
    with TemporaryDirectory() as folder:
        for name, write in (("series.csv", write_csv), ("answer.json", write_answer)):
            path = Path(folder, name)
            write(path, samples)
            reading = subprocess.Popen([sys.executable, "-c", _READ, path])
            _, status, used = os.wait4(reading.pid, 0)
            if status:
                sys.exit(f"{name}: not read")
            seconds, peak_mib = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
            size_mib = path.stat().st_size / 2**20
            print(
                f"{name}: {samples * PODS:,} samples, {size_mib:.0f} MiB: {seconds:.1f} CPU s, "
                f"{peak_mib:.0f} MiB at most"
            )


def write_csv(path: Path, samples: int) -> None:
    """Write a row for each pod and moment."""
    draws = random.Random(SEED)
    with path.open("w", encoding="utf-8") as file:
        file.write(_HEADER)
        for at in range(samples):
            file.writelines(
                f"{START + STEP_S * at},ml,pod-{pod:03d},{pod % 8},"
                f"{','.join(draw(draws) for draw in _DRAWS)}\n"
                for pod in range(PODS)
            )


def write_answer(path: Path, samples: int) -> None:
    """Write an answer of Prometheus, a series for each metric and pod."""
    draws = random.Random(SEED)
    with path.open("w", encoding="utf-8") as file:
        file.write('{"status":"success","data":{"resultType":"matrix","result":[')
        for number, series in enumerate(_series(draws, samples)):
            file.write("," * bool(number) + series)
        file.write("]}}")


def _series(draws: random.Random, samples: int) -> Iterator[str]:
    for metric, draw in zip(_METRICS, _DRAWS, strict=True):
        for pod in range(PODS):
            labels = f'"__name__":"{metric}","UUID":"GPU-{pod}","pod":"pod-{pod:03d}"'
            values = (f'[{START + STEP_S * at},"{draw(draws)}"]' for at in range(samples))
            yield f'{{"metric":{{{labels},"namespace":"ml"}},"values":[{",".join(values)}]}}'


_DRAWS = (
    lambda draws: str(draws.randrange(101)),
    lambda draws: str(1000 + draws.randrange(40_000)),
    lambda draws: f"{draws.random():.4f}",
)


if __name__ == "__main__":
    main()
