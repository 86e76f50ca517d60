"""Report the findings of a campaign: tables and a fitted model from its folder.

    python benchmarks/gpu/report.py OUT [--to DIR] [--models NAME,...]

Reads the output folder of ``dovetail measure``, finished or not, and writes ``report.md`` and
``model.dovetail`` into DIR (default: OUT/report). Needs the extra ``train``.
"""

from __future__ import annotations

import argparse
import io
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

import chosen_splits
from rich.console import Console

from dovetail.executor.gpus.splits import read_splits
from dovetail.instances.datasets import DataSet, read_dataset
from dovetail.instances.errors import DovetailError
from dovetail.instances.raw_files import write_text
from dovetail.measuring.ledger import Contents, read_ledger
from dovetail.measuring.noise import noise
from dovetail.measuring.summary import Summary, summary
from dovetail.measuring.tables import campaign_view
from dovetail.papers.studies.evaluation import NotApplicable, Trial, evaluate, evaluation
from dovetail.predictors.estimators.registry import AUTO, model_names
from dovetail.predictors.model_file import save_model
from dovetail.predictors.training import fit

CHOOSING: Final = ("sm_allocation", AUTO)
"""The models whose choices of splits are evaluated: the paper's, and the default."""

WIDTH: Final = 100

Lines = Iterator[str]


def main(arguments: Sequence[str] | None = None) -> str | None:
    """Write the report; return in one line why there is none."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--to", type=Path, metavar="DIR")
    parser.add_argument(
        "--models",
        type=lambda text: text.split(","),
        default=[*model_names(), AUTO],
        metavar="NAME,...",
    )
    given = parser.parse_args(arguments)
    to = given.to or given.out / "report"
    try:
        contents = read_ledger(given.out)
    except DovetailError as error:
        return f"report.py: {error}"
    to.mkdir(parents=True, exist_ok=True)
    write_text(to / "report.md", "\n".join(report(contents, given.out, to, given.models)) + "\n")
    print(to / "report.md")
    return None


def report(contents: Contents, out: Path, to: Path, models: Sequence[str]) -> Lines:
    """Yield the report in Markdown."""
    found, data = summary(contents), _of_gpu_model(out, contents.machine.gpu_model)
    yield from ("# A campaign", "", "What `dovetail measure` prints:", "", "```text")
    yield from _printed(found)
    yield from ("```", "")
    yield from shares(out)
    yield from pairs(found)
    trials: dict[str, Trial] = {}
    if any(not one.failed for one in data.measurements):
        trials = yield from predictors(contents, data, models)
    yield from splits(data, trials)
    yield from model(data, models, to)


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


def pairs(found: Summary) -> Lines:
    """Yield the table of the slowdowns of all pairs."""
    yield from ("## Pairs", "")
    if not found.together:
        yield from ("No pairs yet.", "")
        return
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for one in found.together:
        (a, b), way = one.workloads, _split(one.shares)
        names = "time-sliced" if one.mode == "time-sliced" else f"MPS, {way}"
        how = f"{names}, one preferred" if any(one.first) else names
        slow_a, slow_b = one.slowdown
        cells.setdefault((a, b), {})[how] = f"{slow_a:.2f} / {slow_b:.2f}"
    yield from ("Slowdowns, in the order of the pair's workloads.", "")
    ways = list(dict.fromkeys(how for at in cells.values() for how in at))
    rows = [(" + ".join(pair), *(at.get(how, "") for how in ways)) for pair, at in cells.items()]
    yield from _table(("pair", *ways), rows)


def predictors(contents: Contents, data: DataSet, models: Sequence[str]) -> Iterator[str]:
    """Yield how well models predict, and return their held-out predictions by name."""
    trials: dict[str, Trial] = {}
    rows, reasons = [], []
    yield from ("## Predictors", "")
    try:
        evaluated = tuple(evaluate(data, models, ("family", "random")))
    except DovetailError as error:
        yield from (f"None was evaluated: {error}", "")
        return trials
    for found in evaluated:
        if isinstance(found, NotApplicable):
            reasons.append(f"- {found.model}, {found.setting}: {found.reason}")
            continue
        if found.setting == "family":
            trials[found.model] = found
        rows.append(_error_row(found))
    yield "Held-out slowdowns under MPS: with all data of one workload (its family) left out, and"
    yield from ("with single pairs of known workloads left out.", "")
    head = ("model", "left out", "mean error", "SMAPE", "bias", "too low by > 0.1", "r2")
    yield from _table(head, rows)
    together = [one for one in contents.results if len(one.workloads) == 2 and one.mode == "mps"]
    if (scatter := noise(together)) is not None:
        mean = fmean(side for one in data.measurements for side in one.slowdown or ())
        # The mean absolute deviation of a normal distribution.
        floor = math.sqrt(2 / math.pi) * scatter.pooled
        yield f"Noise of {scatter.pooled:.2%} alone makes a mean error of {floor * mean:.3f}"
        yield f"against single windows: no model can do better (mean slowdown {mean:.2f})."
    yield from (*reasons, "")
    return trials


def splits(data: DataSet, trials: Mapping[str, Trial]) -> Lines:
    """Yield the throughput per watt of the chosen, the equal and the best splits."""
    yield from ("## Throughput per watt of the chosen split", "")
    if all(found.power_w is None for found in data.measurements):
        yield from ("No power was measured of pairs, so there is nothing to choose by.", "")
        return
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
    allowed = {s for m in data.measurements for s in m.shares if s is not None}
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
    name = AUTO if AUTO in models else models[-1]
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


def _of_gpu_model(out: Path, gpu_model: str) -> DataSet:
    """Return the part of a folder's data set that was measured on one GPU model under MPS."""
    try:
        data = read_dataset(out)
    except DovetailError:
        return DataSet(name=out.name)
    return data.replace(
        profiles=tuple(one for one in data.profiles if one.gpu_model == gpu_model),
        measurements=tuple(one for one in data.measurements if one.gpu_model == gpu_model),
    ).in_mode("mps")


def _error_row(found: Trial) -> tuple[str, ...]:
    one = evaluation(found, 0.9)
    left_out = {"family": f"a workload ({one.folds})", "random": "pairs"}[found.setting]
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


def _split(caps: chosen_splits.Caps) -> str:
    if set(caps) == {None}:
        return "no shares"
    return "/".join("-" if cap is None else str(cap) for cap in caps)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Lines:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


if __name__ == "__main__":
    sys.exit(main())
