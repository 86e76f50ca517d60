"""Report what was measured on a GPU: tables and a fitted model.

    python benchmarks/gpu/report.py RESULTS [--to DIR] [--models NAME,...] [--alone]

RESULTS is the output folder of ``dovetail measure``, finished or not, or any data set, such as
``library:h200-2026-11``. A folder's pairs are seen together with those of that data set where the
GPU model is the same. Writes ``report.md`` and ``model.dovetail`` into DIR (default:
RESULTS/report). Needs the extra ``train``.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

sys.path.append(str(Path(__file__).parents[1]))

import batch
import caps
import chosen_splits
from rich.console import Console
from slice import KNOWN

from dovetail.executor.gpus.splits import read_splits
from dovetail.instances.datasets import DataSet, Measurement, read_dataset
from dovetail.instances.datasets.repository import REPOSITORY
from dovetail.instances.errors import DovetailError
from dovetail.instances.slowdowns.entry import SharingMode
from dovetail.measuring.ledger import Contents, read_ledger
from dovetail.measuring.noise import noise
from dovetail.measuring.summary import Summary, summary
from dovetail.measuring.tables import campaign_view
from dovetail.papers.studies.evaluation import NotApplicable, Trial, evaluate, evaluation
from dovetail.predictors.fitted.model_file import save_model
from dovetail.predictors.fitted.training import fit

MODELS: Final = ("kernels", "hierarchical", "constant")
CHOOSING: Final = ("sm_allocation", "hierarchical")
"""The models whose choices of splits are evaluated: the paper's, and ours."""

MODES: Final[tuple[SharingMode, ...]] = ("mps", "time_sliced")

WIDTH: Final = 100

Lines = Iterator[str]
Cap = int | str | None


def main(arguments: Sequence[str] | None = None) -> str | None:
    """Write the report; return in one line why there is none."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", metavar="RESULTS")
    parser.add_argument("--to", type=Path, metavar="DIR")
    parser.add_argument(
        "--models", type=lambda text: text.split(","), default=MODELS, metavar="NAME,..."
    )
    parser.add_argument("--alone", action="store_true", help=f"without the pairs of {KNOWN}")
    given = parser.parse_args(arguments)
    folder = None if given.results.startswith("library:") else Path(given.results)
    to = given.to or (folder or Path()) / "report"
    try:
        contents = read_ledger(folder) if folder and (folder / REPOSITORY).exists() else None
        data = read_dataset(given.results)
    except DovetailError as error:
        return f"report.py: {error}"
    gpu_model = contents.machine.gpu_model if contents else data.gpu_models[0]
    if contents and not given.alone:
        data = joined(data, read_dataset(KNOWN))
    to.mkdir(parents=True, exist_ok=True)
    with (to / "report.md").open("w", encoding="utf-8") as written:
        for line in report(contents, folder, _of_gpu_model(data, gpu_model), to, given.models):
            print(line, file=written, flush=True)
    print(to / "report.md")
    return None


def joined(data: DataSet, known: DataSet) -> DataSet:
    """Return a data set and the pairs of another, with profiles of workloads that it lacks."""
    profiled = {(one.gpu_model, one.workload) for one in data.profiles}
    more = [one for one in known.profiles if (one.gpu_model, one.workload) not in profiled]
    return data.replace(
        profiles=(*data.profiles, *more), measurements=(*known.measurements, *data.measurements)
    )


def report(
    contents: Contents | None, folder: Path | None, data: DataSet, to: Path, models: Sequence[str]
) -> Lines:
    """Yield the report in Markdown."""
    yield from ("# What was measured", "")
    if contents and folder:
        yield from ("What `dovetail measure` prints:", "", "```text")
        yield from _printed(summary(contents))
        yield from ("```", "")
        yield from shares(folder)
    yield from pairs(data)
    yield from capped(data)
    if folder and (folder / "batch.json").exists():
        done = json.loads((folder / "batch.json").read_text(encoding="utf-8"))
        yield from ("## A batch of jobs", "", *batch.lines(done), "")
    for mode in MODES:
        part = data.in_mode(mode)
        for name, one in _parts(part):
            yield from predictors(name, one, models)
    if contents:
        yield from _floor(contents, data)
    mps = data.in_mode("mps")
    yield from splits(mps, models)
    yield from model(mps, models, to)


def _printed(found: Summary) -> Lines:
    console = Console(file=io.StringIO(), width=WIDTH)
    console.print(campaign_view(found))
    yield from (line.rstrip() for line in console.file.getvalue().splitlines())


def shares(out: Path) -> Lines:
    """Yield the table of SMs and the verdicts of the split gate."""
    evidence = read_splits(out).evidence
    if not evidence:
        return
    yield from ("## Shares: SMs and the split gate", "")
    rows = [
        (f"{one.share} %", str(one.sms), "right" if one.passed else "WRONG", one.cublas)
        for one in sorted(evidence, key=lambda one: one.share)
    ]
    yield from _table(("share", "SMs seen", "products", "cuBLAS"), rows)


def pairs(data: DataSet) -> Lines:
    """Yield the slowdowns of all pairs and triples in all ways to share, as means over repeats."""
    cells: dict[tuple[str, ...], dict[str, list[tuple[float, ...]]]] = {}
    for one in data.measurements:
        if one.slowdown is None:
            continue
        each = sorted(
            zip(one.workloads, one.shares, one.slowdown, strict=True),
            key=lambda end: (end[0], _order(end[1])),
        )
        names, caps, slow = zip(*each, strict=True)
        how = "time-sliced" if one.mode == "time_sliced" else f"MPS, {_split(caps)}"
        cells.setdefault(names, {}).setdefault(how, []).append(slow)
    yield from ("## Pairs", "")
    if not cells:
        yield from ("No pairs yet.", "")
        return
    for size in sorted({len(names) for names in cells}):
        ways = sorted({how for names, at in cells.items() if len(names) == size for how in at})
        rows = [
            (" + ".join(names), *(_slowdowns(at.get(how)) for how in ways))
            for names, at in sorted(cells.items())
            if len(names) == size
        ]
        yield from ("Slowdowns, in the order of the workloads.", "")
        yield from _table(("pair" if size == 2 else "together", *ways), rows)


def _slowdowns(repeats: Sequence[tuple[float, ...]] | None) -> str:
    return " / ".join(f"{fmean(of):.2f}" for of in zip(*repeats, strict=True)) if repeats else ""


def capped(data: DataSet) -> Lines:
    """Yield caps against no caps, over the pairs measured both ways."""
    both = caps.pairs_of(data.in_mode("mps"))
    if not any(pair.none.measured and pair.half.measured for pair in both):
        return
    yield from ("## Halves against no caps", "")
    rows = [(name, *(f"{one:.2f}" for one in of)) for name, of in caps.means(both).items()]
    yield from _table(("", "no caps", "50/50", "the better for each pair"), rows)


def _parts(data: DataSet) -> Iterator[tuple[str, DataSet]]:
    """Yield the pairs of each mode and split, and all pairs of the mode."""
    found: dict[str, list[Measurement]] = {}
    for one in data.measurements:
        if len(one.workloads) == 2 and one.slowdown is not None:
            way = "time-sliced" if one.mode == "time_sliced" else f"MPS, {_split(one.shares, True)}"
            found.setdefault(way, []).append(one)
    for way, measured in sorted(found.items()):
        yield way, data.replace(measurements=tuple(measured))
    if len(found) > 1:
        every = tuple(one for measured in found.values() for one in measured)
        yield "MPS, all splits", data.replace(measurements=every)


def predictors(way: str, data: DataSet, models: Sequence[str]) -> Lines:
    """Yield how well models predict pairs that they have not seen, of one way to share."""
    yield from (f"## Predictors: {way} ({len(data.measurements)} measurements)", "")
    rows, reasons = [], []
    try:
        evaluated = tuple(evaluate(data, models, ("random", "workload")))
    except DovetailError as error:
        yield from (f"None was evaluated: {error}", "")
        return
    for found in evaluated:
        if isinstance(found, NotApplicable):
            reasons.append(f"- {found.model}, {found.setting}: {found.reason}")
        else:
            rows.append(_error_row(found))
    head = ("model", "left out", "mean error", "SMAPE", "bias", "too low by > 0.1", "r2")
    yield from _table(head, rows)
    yield from (*reasons, "")


def _floor(contents: Contents, data: DataSet) -> Lines:
    """Yield the error that noise alone makes."""
    together = [one for one in contents.results if len(one.workloads) == 2 and one.mode == "mps"]
    if (scatter := noise(together)) is not None:
        mean = fmean(side for one in data.measurements for side in one.slowdown or ())
        # The mean absolute deviation of a normal distribution.
        floor = math.sqrt(2 / math.pi) * scatter.pooled
        yield f"Noise of {scatter.pooled:.2%} alone makes a mean error of {floor * mean:.3f}"
        yield f"against single windows: no model can do better (mean slowdown {mean:.2f})."
        yield ""


def splits(data: DataSet, models: Sequence[str]) -> Lines:
    """Yield the throughput per watt of the chosen, the equal and the best splits."""
    yield from ("## Throughput per watt of the chosen split", "")
    if all(found.power_w is None for found in data.measurements):
        yield from ("No power was measured of pairs, so there is nothing to choose by.", "")
        return
    asked = [name for name in CHOOSING if name in models]
    trials = {
        found.model: found
        for found in evaluate(data, asked, ("family",))
        if not isinstance(found, NotApplicable)
    }
    rows, first = [], None
    for name in CHOOSING:
        for by_throughput in (True, False):
            for uncapped in (False, True):
                if name not in trials:
                    continue
                found = chosen_splits.choices(
                    data, trials[name], by_throughput=by_throughput, uncapped=uncapped
                )
                if found:
                    rows.append(_choice_row(name, by_throughput, uncapped, found))
                    first = first or found
    if first is None:
        yield from ("No pair was measured at the equal split with power.", "")
        return
    allowed = {s for m in data.measurements for s in m.shares if isinstance(s, int)}
    caps = ", ".join(f"{share} %" for share in sorted(allowed))
    yield "Models are fitted without all data of one workload, and predict slowdowns and power of"
    yield "its pairs; a plan under the objective `energy` chooses the split, which is valued by"
    yield "measurements. The paper (Han et al.) chose among nine splits on a V100 and was 35 %"
    yield "above the equal split and within 1.5 % of the best one. Only shares of"
    yield f"{caps} were measured here: with so few"
    yield "splits it is easier to be near the best one, and harder to be far above the equal one."
    yield ""
    head = (
        *("model", "throughput counted in", "choices", "pairs", "above the equal split"),
        *("below the best", "best split chosen", "equal split below the best"),
    )
    yield from _table(head, rows)
    yield from ("By pair, for the first row:", "")
    by_pair = [
        (
            " + ".join(pair),
            _split(tests[0].best),
            ", ".join(dict.fromkeys(_split(one.chosen) for one in tests)),
            f"{fmean(one.of_best for one in tests):.3f}",
            f"{tests[0].equal_of_best:.3f}",
        )
        for pair, tests in chosen_splits.by_pair(first).items()
    ]
    yield from _table(
        ("pair", "best", "chosen", "of the best", "equal split, of the best"), by_pair
    )


def model(data: DataSet, models: Sequence[str], to: Path) -> Lines:
    """Fit the default model on everything, save it, and yield its held-out errors."""
    yield from ("## Model", "")
    name = next((one for one in CHOOSING[::-1] if one in models), models[-1])
    try:
        predictor = fit(data, name)
    except DovetailError as error:
        yield f"None was fitted: {error}"
        return
    save_model(predictor, to / "model.dovetail")
    yield f"`model.dovetail` is `{name}`, fitted on all {len(data.measurements)} records. Its mean"
    yield from ("held-out errors:", "")
    for left_out, errors in predictor.about.held_out.items():
        yield f"- {left_out}: {', '.join(f'{k} {value:.3f}' for k, value in errors.items())}"


def _of_gpu_model(data: DataSet, gpu_model: str) -> DataSet:
    """Return the part of a data set that was measured on one GPU model."""
    return data.replace(
        profiles=tuple(one for one in data.profiles if one.gpu_model == gpu_model),
        measurements=tuple(one for one in data.measurements if one.gpu_model == gpu_model),
    )


def _error_row(found: Trial) -> tuple[str, ...]:
    one = evaluation(found, 0.9)
    left_out = {"workload": f"a workload ({one.folds})", "random": "pairs"}[found.setting]
    error = one.accuracy
    r2 = "" if error.r2 is None else f"{error.r2:.2f}"
    return (
        *(one.model, left_out, f"{error.mae:.3f}", f"{error.smape:.1f} %", f"{error.bias:+.3f}"),
        *(f"{error.under:.0%}", r2),
    )


def _choice_row(
    name: str, by_throughput: bool, uncapped: bool, found: Sequence[chosen_splits.Choice]
) -> tuple[str, ...]:
    mean: Callable[[str], float] = lambda field: chosen_splits.mean_of_pairs(found, field)  # noqa: E731
    return (
        name,
        "iterations" if by_throughput else "parts of the speed alone",
        "splits and no shares" if uncapped else "splits",
        str(len(chosen_splits.by_pair(found))),
        f"{mean('over_equal'):+.1%}",
        f"{1 - mean('of_best'):.1%}",
        f"{fmean(one.chosen == one.best for one in found):.0%}",
        f"{1 - mean('equal_of_best'):.1%}",
    )


def _split(shares: Sequence[Cap], in_order: bool = False) -> str:
    """Return shares as text; ``in_order``: the smaller first, whoever has it."""
    if set(shares) == {None}:
        return "no caps"
    ordered = sorted(shares, key=_order) if in_order else shares
    return "/".join("-" if share is None else str(share) for share in ordered)


def _order(share: Cap) -> int:
    return share if isinstance(share, int) else 101


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Lines:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


if __name__ == "__main__":
    sys.exit(main())
