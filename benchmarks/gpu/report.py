"""Report what a campaign found: tables, pictures and a fitted model from its folder.

    python benchmarks/gpu/report.py OUT [--to DIR] [--models NAME,...]

Reads what ``dovetail measure`` left in OUT, finished or not, and writes ``report.md``, pictures
and ``model.dovetail`` into DIR (default: OUT/report). Needs the extra ``train``.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

import chosen_splits
import findings
from drawings import heat_map, marks

from dovetail.executor.gpus.splits import read_splits
from dovetail.instances.datasets import DataSet, read_dataset
from dovetail.instances.errors import DovetailError
from dovetail.instances.files import write_text
from dovetail.measuring.tables import STAND_IN_WORDS
from dovetail.predictors.estimators.registry import MODELS
from dovetail.predictors.evaluation import NotApplicable, Trial, evaluate, evaluation
from dovetail.predictors.model_file import save_model
from dovetail.predictors.training import AUTO, fit
from dovetail.toolkit.charts import Axis, log_time_axis

CHOOSING: Final = ("sm_allocation", AUTO)
"""The models whose splits are valued: the paper's, and the one that is fitted by default."""

Lines = Iterator[str]


def main(arguments: Sequence[str] | None = None) -> str | None:
    """Write the report; return in one line why there is none."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--to", type=Path, metavar="DIR")
    parser.add_argument(
        "--models", type=lambda text: text.split(","), default=[*MODELS, AUTO], metavar="NAME,..."
    )
    given = parser.parse_args(arguments)
    to = given.to or given.out / "report"
    try:
        report = Report(given.out, to, given.models)
    except DovetailError as error:
        return f"report.py: {error}"
    to.mkdir(parents=True, exist_ok=True)
    write_text(to / "report.md", "\n".join(report.lines()) + "\n")
    print(to / "report.md")
    return None


class Report:
    """The parts of the report, each a section in Markdown.

    Parameters
    ----------
    out : path
        The folder of a campaign.
    to : path
        Where pictures and the model go.
    models : sequence of str
        The models that are tested.
    """

    def __init__(self, out: Path, to: Path, models: Sequence[str]) -> None:
        self.to, self.models = to, models
        self.out = out
        self.found = findings.read(out)
        self.pairs = findings.pairs(self.found)
        self.data = _of_gpu_model(out, self.found.summary.machine.gpu_model)

    def lines(self) -> Lines:
        """Yield the report."""
        yield from self.machine()
        yield from self.shares()
        yield from self.noise()
        yield from self.throughput()
        yield from self.latency()
        yield from self.slowdowns()
        trials = yield from self.predictors()
        yield from self.splits(trials)
        yield from self.model()

    def machine(self) -> Lines:
        """Yield what it was measured on, and what came of every window."""
        machine = self.found.summary.machine
        yield f"# Campaign {machine.campaign} on {machine.gpu_model}"
        yield ""
        if machine.stand_in:
            yield f"**NO GPU: {machine.stand_in}.**"
            yield ""
            yield STAND_IN_WORDS
            yield ""
        told = machine.to_data()
        yield from _table(
            ("", ""),
            [
                (name.replace("_", " "), str(told[name]))
                for name in ("driver", "cublas", "torch", "sms", "memory_mib", "host_cores", "date")
                if told.get(name) is not None
            ],
        )
        counts = Counter(one.status for one in self.found.results)
        disturbed = sum(bool(one.disturbed_by) for one in self.found.results)
        yield f"Windows: {', '.join(f'{n} {status}' for status, n in sorted(counts.items()))}."
        yield f"Of these {disturbed} were disturbed by other processes and count nowhere below."
        yield ""
        reasons = Counter(one.told for one in self.found.results if one.status != "ok")
        yield from (f"- {n} x {told or 'no reason told'}" for told, n in reasons.most_common(12))
        yield ""

    def shares(self) -> Lines:
        """Yield the table of SMs and the verdict of the split gate."""
        evidence = read_splits(self.out).evidence
        if not evidence:
            return
        yield "## Shares: SMs and the split gate"
        yield ""
        rows = [
            (f"{one.share} %", str(one.sms), "right" if one.passed else "WRONG", one.cublas)
            for one in sorted(evidence, key=lambda one: one.share)
        ]
        yield from _table(("share", "SMs seen", "products", "cuBLAS"), rows)

    def noise(self) -> Lines:
        """Yield the noise floor."""
        yield "## Noise floor"
        yield ""
        found = findings.noises(self.found)
        if not found:
            yield "Nothing was repeated yet."
            yield ""
            return
        yield "How far windows of one setting are apart, as parts of their mean."
        yield ""
        yield from _table(
            (
                *("what", "settings", "pooled standard deviation", "median", "worst"),
                *("what windows by themselves would make", "error nobody can avoid"),
            ),
            [
                (
                    *(kind, str(one.settings), f"{one.pooled:.2%}", f"{one.typical:.2%}"),
                    f"{one.worst.deviation:.2%} ({one.worst.workload} in {one.worst.setting})",
                    *(f"{one.within:.2%}", f"{findings.error_floor(one):.2%}"),
                )
                for kind, one in found.items()
            ],
        )

    def throughput(self) -> Lines:
        """Yield what pairs get done together in each setting."""
        waiting = findings.open_loop(self.found)
        rates = findings.combined(self.pairs, waiting)
        yield "## Throughput of pairs"
        yield ""
        if not rates:
            yield "No pairs yet."
            yield ""
            return
        settings = list(dict.fromkeys(how for row in rates.values() for how in row))
        everywhere = [row for row in rates.values() if len(row) == len(settings)]
        yield "Sum of both speeds, each alone on the whole GPU being 1: above 1 is better than one"
        yield f"after the other. Over the {len(everywhere)} pairs that were measured in every"
        yield f"setting{_without(waiting)}; both ways of an unequal split by their mean."
        yield ""
        if everywhere:
            most = [max(row.values()) for row in everywhere]
            yield from _table(
                ("setting", "mean", "least", "most", "is best for"),
                [
                    (
                        how,
                        f"{fmean(row[how] for row in everywhere):.3f}",
                        f"{min(row[how] for row in everywhere):.3f}",
                        f"{max(row[how] for row in everywhere):.3f}",
                        str(
                            sum(row[how] == top for row, top in zip(everywhere, most, strict=True))
                        ),
                    )
                    for how in settings
                ],
            )
        top = max(value for row in rates.values() for value in row.values())
        yield self._picture(
            "throughput",
            marks("Throughput of pairs", rates, _linear_axis(top), "sum of both speeds"),
        )

    def latency(self) -> Lines:
        """Yield how long requests took, alone and beside each partner."""
        for name, partners in findings.latencies(self.found).items():
            settings = list(dict.fromkeys(how for row in partners.values() for how in row))
            yield f"## Latency of {name}"
            yield ""
            yield "p50 / p99 in milliseconds from arrival to answer, medians over windows; in"
            yield "brackets how many requests. Caps are its own, then the partner's."
            yield ""
            yield from _table(
                ("beside", *settings),
                [
                    (partner, *(_answered(row.get(how)) for how in settings))
                    for partner, row in partners.items()
                ],
            )
            rows = {
                partner: {how: one.p99_s for how, one in row.items()}
                for partner, row in partners.items()
            }
            ends = [value for row in rows.values() for value in row.values()]
            axis = log_time_axis(min(ends), max(ends))
            drawn = marks(
                f"99th percentile of latency: {name}", rows, axis, "from arrival to answer"
            )
            yield self._picture(f"latency-{name}", drawn)

    def slowdowns(self) -> Lines:
        """Yield a picture of who slows whom in each setting without caps."""
        whole = [p for p in self.pairs if p.setting.whole and not any(p.setting.first)]
        yield "## Slowdowns"
        yield ""
        for mode in dict.fromkeys(pair.setting.mode for pair in whole):
            sides: dict[tuple[str, str], list[float]] = {}
            for own, other, _, slowdown in findings.sided(
                p for p in whole if p.setting.mode == mode
            ):
                sides.setdefault((own, other), []).append(slowdown)
            names = list(dict.fromkeys(name for name, _ in sides))
            values = {key: fmean(each) for key, each in sides.items()}
            title = f"Slowdown of pairs, {'MPS without caps' if mode == 'mps' else mode}"
            yield self._picture(f"slowdowns-{mode}", heat_map(title, names, values))

    def predictors(self) -> Iterator[str]:
        """Yield how well models predict, and return their held-out predictions by name."""
        yield "## Predictors"
        yield ""
        trials: dict[str, Trial] = {}
        if not any(not found.failed for found in self.data.measurements):
            yield "No pairs yet."
            yield ""
            return trials
        rows, reasons = [], []
        for found in evaluate(self.data, self.models, ("family", "random")):
            if isinstance(found, NotApplicable):
                reasons.append(f"- {found.model}, {found.setting}: {found.reason}")
                continue
            if found.setting == "family":
                trials[found.model] = found
            rows.append(_error_row(found))
        yield "Slowdowns under MPS that a model has not seen: with everything of one workload (its"
        yield "family) left out, and with single pairs of known workloads left out."
        yield ""
        yield from _table(
            ("model", "left out", "mean error", "SMAPE", "bias", "too low by > 0.1", "r2"), rows
        )
        yield from self._floor()
        yield from reasons
        yield ""
        return trials

    def _floor(self) -> Lines:
        found = findings.noises(self.found).get("pairs, mps")
        if found is None:
            return
        mean = fmean(side for one in self.data.measurements for side in one.slowdown or ())
        floor = findings.error_floor(found)
        yield f"Noise alone makes a mean error of {floor * mean:.3f} against a single window: no"
        yield f"model can do better ({floor:.2%} of the mean slowdown, {mean:.2f})."
        yield ""

    def splits(self, trials: dict[str, Trial]) -> Lines:
        """Yield the throughput per watt of chosen splits, the equal and the best ones."""
        yield "## Throughput per watt of the split that is chosen"
        yield ""
        if all(found.power_w is None for found in self.data.measurements):
            yield "No power was measured of pairs, so there is nothing to choose by."
            yield ""
            return
        rows, drawn = [], None
        for model in CHOOSING:
            for by_throughput in (True, False):
                for uncapped in (False, True):
                    if model not in trials:
                        continue
                    found = chosen_splits.choices(
                        self.data, trials[model], by_throughput=by_throughput, uncapped=uncapped
                    )
                    if found:
                        rows.append(_choice_row(model, by_throughput, uncapped, found))
                        drawn = drawn or found
        if not rows:
            yield "No pair was measured at the equal split with power."
            yield ""
            return
        allowed = {s for m in self.data.measurements for s in m.shares if s is not None}
        caps = ", ".join(f"{share} %" for share in sorted(allowed))
        yield "Everything of one workload is left out of what is fitted; slowdowns and power of its"
        yield "pairs are predicted; a plan under the objective `energy` chooses the split; what was"
        yield "measured values it. The paper (Han et al.) chose among nine splits on a V100 and"
        yield "came to 35 % above the equal split and within 1.5 % of the best one. Here the split"
        yield f"gate and the time allowed caps of {caps} only: with so few splits"
        yield "to choose from it is easier to be near the best, and harder to be far above the"
        yield "equal split."
        yield ""
        yield from _table(
            (
                *("model", "throughput counted in", "choices", "pairs", "above the equal split"),
                *("below the best", "best split chosen", "equal split below the best"),
            ),
            rows,
        )
        yield from self._chosen_by_pair(drawn)

    def _chosen_by_pair(self, found: Sequence[chosen_splits.Choice]) -> Lines:
        rows = {
            " + ".join(pair): {
                "chosen": fmean(one.of_best for one in tests),
                "equal split": fmean(one.equal_of_best for one in tests),
            }
            for pair, tests in chosen_splits.by_pair(found).items()
        }
        title = "Throughput per watt as a part of the best split's (first row of the table)"
        yield self._picture("per-watt", marks(title, rows, _linear_axis(1.0), "best split = 1"))
        yield from _table(
            ("pair", "best", "chosen", "of the best", "equal split, of the best"),
            [
                (
                    " + ".join(pair),
                    _split(tests[0].best),
                    ", ".join(dict.fromkeys(_split(one.chosen) for one in tests)),
                    f"{fmean(one.of_best for one in tests):.3f}",
                    f"{tests[0].equal_of_best:.3f}",
                )
                for pair, tests in chosen_splits.by_pair(found).items()
            ],
        )

    def model(self) -> Lines:
        """Fit the default model on everything and yield how well it predicted held-out pairs."""
        yield "## Model"
        yield ""
        try:
            model = AUTO if AUTO in self.models else self.models[-1]
            predictor = fit(self.data, model)
        except DovetailError as error:
            yield f"None was fitted: {error}"
            return
        save_model(predictor, self.to / "model.dovetail")
        yield f"`model.dovetail` is `{model}`, fitted on all {len(self.data.measurements)} records."
        yield "Its mean errors on what was held out:"
        yield ""
        for name, errors in predictor.about.held_out.items():
            yield f"- {name}: {', '.join(f'{k} {value:.3f}' for k, value in errors.items())}"

    def _picture(self, name: str, drawn: str) -> str:
        write_text(self.to / f"{name}.svg", drawn)
        return f"![{name}]({name}.svg)\n"


def _of_gpu_model(out: Path, gpu_model: str) -> DataSet:
    """Return the data set in a folder as far as it is of one GPU model."""
    try:
        data = read_dataset(out)
    except DovetailError:
        return DataSet(name=out.name)
    return data.replace(
        profiles=tuple(one for one in data.profiles if one.gpu_model == gpu_model),
        measurements=tuple(one for one in data.measurements if one.gpu_model == gpu_model),
    )


def _without(names: Iterable[str]) -> str:
    told = ", ".join(sorted(names))
    return f" (without {told}, which waits for requests)" if told else ""


def _answered(one: findings.Answered | None) -> str:
    return "" if one is None else f"{one.p50_s * 1e3:.1f} / {one.p99_s * 1e3:.1f} ({one.requests})"


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
    model: str, by_throughput: bool, uncapped: bool, found: Sequence[chosen_splits.Choice]
) -> tuple[str, ...]:
    mean: Callable[[str], float] = lambda name: chosen_splits.mean_of_pairs(found, name)  # noqa: E731
    return (
        model,
        "iterations" if by_throughput else "parts of the speed alone",
        "splits and no caps" if uncapped else "splits",
        str(len(chosen_splits.by_pair(found))),
        f"{mean('over_equal'):+.1%}",
        f"{1 - mean('of_best'):.1%}",
        f"{fmean(one.chosen == one.best for one in found):.0%}",
        f"{1 - mean('equal_of_best'):.1%}",
    )


def _split(caps: chosen_splits.Caps) -> str:
    return "no caps" if caps == (None, None) else "/".join(map(str, caps))


def _linear_axis(high: float) -> Axis:
    """Return an axis from 0 in steps of a quarter, or of more where these are too many."""
    step = next(each for each in (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, math.inf) if high / each <= 8)
    high = math.ceil(high / step + 1e-9) * step if high % step else high
    ticks = [k * step for k in range(round(high / step) + 1)]
    return Axis(0.0, high * 1.02, False, tuple((100 * t / (high * 1.02), f"{t:g}") for t in ticks))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Lines:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


if __name__ == "__main__":
    sys.exit(main())
