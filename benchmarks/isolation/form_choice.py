"""How good the chosen forms of kernels are, and how many are tried, on a made-up GPU.

    python benchmarks/isolation/form_choice.py [--kernels 300] [--seed 1]

Nothing here ran on a GPU. Kernels are drawn: 1 to 200,000 blocks of 1 to 500 microseconds, 1 to 16
of them on each of 132 SMs. Blocks begin as others end, and their times vary by up to a half. What
launches cost is up to twice or half what ``dovetail.isolation.scheduler`` expects, and blocks of
workers are slower by up to twice its factor. The choice sees measured times only. It is compared
with the best of all whole waves of slices and all chunks of workers, by the true costs; *late* is a
turnaround beyond the bound, or beyond 1.5 times the shortest if no form keeps the bound.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from dovetail.isolation.scheduler import (
    AGAIN_S,
    BOUND_S,
    LAUNCH_S,
    PART_S,
    REPEATS,
    STEP_S,
    WHOLE,
    WORKER_SLOWED,
    FormChoice,
    Kernel,
    LaunchForm,
    Size,
)

SMS: Final = 132
_PARTS: Final = 12
"""Slices of a size whose times are drawn; the others take their mean."""


class Ran(NamedTuple):
    """What a form did: its time as the library measures it, what it cost, and its turnaround."""

    run_s: float
    cost_s: float
    turnaround_s: float


class MadeUpGpu:
    """A GPU with one kernel, drawn.

    Parameters
    ----------
    seed : int
        Of the draw.
    most_blocks : int
        Of the kernel.
    """

    def __init__(self, seed: int, most_blocks: int = 200_000) -> None:
        draw = random.Random(seed)
        self._seed = seed
        blocks = int(math.exp(draw.uniform(0, math.log(most_blocks))))
        self._block_s = math.exp(draw.uniform(math.log(1e-6), math.log(500e-6)))
        resident = draw.choice((1, 2, 4, 8, 16))
        workers = max(1, resident - draw.choice((0, 0, 0, 1)))
        self._sigma = draw.choice((0.0, 0.05, 0.2, 0.5))
        self._launch_s, self._part_s, self._step_s, self._again_s = (
            expected * math.exp(draw.uniform(-math.log(2), math.log(2)))
            for expected in (LAUNCH_S, PART_S, STEP_S, AGAIN_S)
        )
        self._slowed = 1 + WORKER_SLOWED * draw.uniform(0, 2)
        self.kernel = Kernel(
            Size("drawn", blocks, 128),
            {"whole": resident, "slices": resident, "workers": workers},
        )

    def ran(self, form: LaunchForm) -> Ran:
        """Run the kernel in a form."""
        rng = random.Random(f"{self._seed} {form}")
        blocks, resident = self.kernel.size.blocks, self.kernel.resident[form.kind]
        if form.kind == "workers":
            places = min(form.size, SMS * resident)
            run_s = self._launch_s + self._grid_s(rng, blocks, places, form.chunk)
            again = 1 + max(1, int(REPEATS * run_s / self._again_s))
            each_s = form.chunk * self._block_s * self._slowed + self._step_s
            return Ran(run_s, run_s + again * self._again_s, each_s)
        size = min(form.size or blocks, blocks)
        count, rest = divmod(blocks, size)
        drawn = [
            self._launch_s + self._grid_s(rng, size, SMS * resident)
            for _ in range(min(count, _PARTS))
        ]
        each_s = sum(drawn) / len(drawn)
        cost_s = count * each_s + -(-blocks // size) * self._part_s
        if rest:
            cost_s += self._launch_s + self._grid_s(rng, rest, SMS * resident)
        return Ran(each_s * blocks / size, cost_s, each_s)

    def all_forms(self) -> Iterator[LaunchForm]:
        """Yield whole waves of slices and chunks of workers that could be best, and the whole."""
        yield WHOLE
        blocks, resident = self.kernel.size.blocks, self.kernel.resident
        width, workers = SMS * resident["slices"], SMS * resident["workers"]
        for waves in _growing():
            if width * waves >= blocks or (waves > 1 and waves * self._block_s > 2 * BOUND_S):
                break
            yield LaunchForm("slices", width * waves)
        for chunk in _growing():
            if workers * chunk >= blocks or (chunk > 1 and chunk * self._block_s > 2 * BOUND_S):
                break
            yield LaunchForm("workers", workers, chunk)

    def _grid_s(self, rng: random.Random, blocks: int, places: int, chunk: int = 0) -> float:
        """Return how long blocks take, in chunks if workers run them, each as a place is free."""
        block_s, step_s = self._block_s, 0.0
        if chunk:
            block_s, step_s = block_s * self._slowed, self._step_s
        else:
            chunk = 1
        if not self._sigma:
            return math.ceil(math.ceil(blocks / chunk) / places) * (chunk * block_s + step_s)
        mean, ends = -(self._sigma**2) / 2, [0.0] * min(places, blocks)
        while blocks > 0:
            taken = min(chunk, blocks)
            blocks -= taken
            parts = sum(math.exp(mean + self._sigma * rng.gauss(0, 1)) for _ in range(taken))
            heapq.heapreplace(ends, ends[0] + step_s + parts * block_s)
        return max(ends)


def best(found: Mapping[LaunchForm, Ran]) -> tuple[LaunchForm, float]:
    """Return the best of all forms, and the longest turnaround that it may have."""
    if found[WHOLE].run_s <= BOUND_S:
        return WHOLE, BOUND_S
    least_s = min(one.turnaround_s for one in found.values())
    limit_s = BOUND_S if least_s <= BOUND_S else 1.5 * least_s
    keeping = (form for form, one in found.items() if one.turnaround_s <= limit_s)
    return min(keeping, key=lambda form: found[form].cost_s), limit_s


def tried(gpu: MadeUpGpu, choice: FormChoice) -> list[LaunchForm]:
    """Run a kernel until its form is final: return the forms that were tried, and the final one."""
    found: list[LaunchForm] = []
    while True:
        form, final = choice.choice(gpu.kernel)
        if final or form != WHOLE:
            found.append(form)
        if final:
            return found
        for _ in range(choice.samples):
            choice.add(gpu.kernel.size, form, gpu.ran(form).run_s)


def main() -> None:
    """Print how the first and the final choice compare with the best forms."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kernels", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    more: dict[str, list[float]] = {"first": [], "final": []}
    late = dict.fromkeys(more, 0)
    tries, whole = [], 0
    for seed in range(options.kernels):
        gpu = MadeUpGpu(1000 * options.seed + seed)
        found = {form: gpu.ran(form) for form in gpu.all_forms()}
        wanted, limit_s = best(found)
        forms = tried(gpu, FormChoice(SMS))
        whole += forms == [WHOLE]
        if wanted == WHOLE:
            continue
        tries.append(len(forms) - 1)
        for name, form in (("first", forms[0]), ("final", forms[-1])):
            ran = gpu.ran(form)
            late[name] += ran.turnaround_s > 1.02 * limit_s
            more[name].append(ran.cost_s / found[wanted].cost_s - 1)
    print(f"{options.kernels} kernels, of which {whole} run whole; {len(tries)} have a better form")
    print("choice  costs more than the best: median, 90 %, most    late")
    for name, parts in more.items():
        parts.sort()
        figures = (parts[len(parts) // 2], parts[int(0.9 * len(parts))], parts[-1])
        print(f"{name:6}  {'  '.join(f'{part:8.1%}' for part in figures)}  {late[name]:22}")
    print(f"forms tried: {sum(tries) / len(tries):.1f} on average, {max(tries)} at most")


def _growing() -> Iterator[int]:
    """Yield 1, 2, ... 8, and then numbers that grow by a fifth."""
    number = 1
    while True:
        yield number
        number = max(number + 1, number * 6 // 5)


if __name__ == "__main__":
    main()
