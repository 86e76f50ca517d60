"""Fitted predictors in commands: facts about them, and options about their data."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from dovetail.instances._record import listed
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.errors import InputError, source_name
from dovetail.predictors.fitted.fits import ModelFit
from dovetail.predictors.fitted.trained import TrainedPredictor
from dovetail.predictors.predictor import UNCAPPED
from dovetail.toolkit.files import print_either
from dovetail.toolkit.tables import fact_lines
from dovetail.toolkit.wording import number, share_text


def model_data(predictor: TrainedPredictor) -> dict[str, Any]:
    """Return a fitted predictor as data, without its arrays."""
    return {
        "mode": predictor.mode,
        "confidence": predictor.confidence,
        "about": predictor.about.to_data(),
        "fits": {model: dict(_fit_facts(fit)) for model, fit in predictor.fits.items()},
    }


def model_view(predictor: TrainedPredictor) -> RenderableType:
    """Return the facts about a fitted predictor, as lines."""
    found: list[RenderableType] = [fact_lines(*model_facts(predictor))]
    for model, fit in predictor.fits.items():
        found += [Text(), fact_lines(("fitted for", model), *_fit_facts(fit))]
    return Group(*found)


def model_facts(predictor: TrainedPredictor) -> Iterator[tuple[str, str]]:
    """Yield the facts common to all GPU models of a fitted predictor."""
    training = predictor.about.training
    yield "predictor for", listed(predictor.gpu_models)
    yield "sharing", predictor.mode
    yield "confidence", f"{predictor.confidence:g} (of the upper bounds)"
    yield "made", predictor.about.created or "not said"
    if training is None:
        yield "fitted on", "not said"
    else:
        measured = number(training.measurements, "measurement")
        profiles = number(training.profiles, "profile")
        yield "fitted on", f"{training.name}: {profiles}, {measured}"
        yield "fingerprint", f"sha256 {training.sha256}"
        yield "sources", listed(training.sources) or "not said"
        yield "licence", training.licence or "not said"
    for split, figures in predictor.about.held_out.items():
        yield f"held out: {split}", ", ".join(f"{k} {v:.4g}" for k, v in figures.items())


def _fit_facts(fit: ModelFit) -> Iterator[tuple[str, str]]:
    """Yield the facts about the fit for one GPU model."""
    yield "model", fit.member.model
    yield "it sees", listed(fit.member.features.names, 20) or "nothing"
    yield "measured", f"{number(len(fit.measured), 'workload')}: {listed(fit.measured)}"
    splits = (tuple(share_text(cap if cap != UNCAPPED else None) for cap in s) for s in fit.splits)
    yield "caps measured", listed(" / ".join(split) for split in splits)
    yield "slowdowns within", f"{fit.limits[0]:.2f} to {fit.limits[1]:.2f}"
    carried = fit.evidence is not None
    yield (
        "measured pairs",
        "carried along" if carried else "not carried along: too many, or an old file",
    )
    yield "upper bounds", "yes" if fit.bound is not None else "no"
    yield "power", "yes" if fit.power is not None else "no"


@contextmanager
def about_data(options: Namespace) -> Iterator[None]:
    """Add the path of the data set to errors that only know its name; name options as flags."""
    try:
        yield
    except InputError as error:
        flagged = error.path in options.added
        found = InputError(error.rule, f"--{error.path}") if flagged else error
        raise found.at(source_name(options.data)) from None


def require_gpu_models(data: DataSet, options: Namespace) -> None:
    """Refuse a ``--gpu-model`` that the data do not have."""
    for name in options.gpu_model or ():
        if name not in data.gpu_models:
            known = ", ".join(data.gpu_models) or "none"
            rule = f"must be a GPU model of the data ({known}), got {name!r}"
            raise InputError(rule, "--gpu-model", source_name(options.data))


def print_model(predictor: TrainedPredictor, options: Namespace) -> None:
    """Print facts about a fitted predictor, unless standard output has the predictor itself."""
    output = getattr(options, "output", None)
    if output == "-":
        return
    print_either(options, model_data(predictor), lambda: model_view(predictor))
    if output and not options.json:
        print(f"-> {Path(output)}")
