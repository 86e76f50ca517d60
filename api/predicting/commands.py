"""What ``dovetail predictors`` does: options in, output written, exit status out."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.instances.datasets import DataSet, dataset_files, read_dataset
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.files import write_data, write_text
from dovetail.toolkit.outputs import print_either, require_separate
from dovetail.toolkit.progress import counting, working

if TYPE_CHECKING:
    from dovetail.predicting.evaluation import Studied
    from dovetail.predictors.evaluation import Setting
    from dovetail.predictors.trained import TrainedPredictor


def fit(options: Namespace) -> int:
    """Fit a predictor on a data set and write it as a model file."""
    from dovetail.predictors.model_file import save_model
    from dovetail.predictors.training import fit as fitted

    require_separate(dataset_files(options.data), options.output)
    data = _data(options)
    _require_gpu_models(data, options)
    with _about_data(options), counting("fitting") as progress:
        made = fitted(
            data,
            options.model,
            options.gpu_model or None,
            options.confidence,
            options.seed,
            search_s=options.search,
            licence=options.licence,
            progress=progress,
        )
    save_model(made, options.output)
    _tell_model(made, options)
    return 0


def update(options: Namespace) -> int:
    """Let a fitted predictor learn new measurements, and tell where it was wrong of late."""
    from dovetail.predictors.model_file import load_model, save_model
    from dovetail.predictors.training import update as updated

    require_separate(dataset_files(options.data), options.output)
    predictor = load_model(options.model)
    data = _data(options)
    with _about_data(options), working("learning"):
        learnt = updated(predictor, data, options.seed)
    save_model(learnt.predictor, options.output)
    if options.json:
        write_data({"drift": {gpu: d.to_data() for gpu, d in learnt.drift.items()}}, "-")
        return 0
    _tell_model(learnt.predictor, options)
    if options.output != "-":
        for gpu_model, found in learnt.drift.items():
            for line in str(found).splitlines():
                print(f"{gpu_model}: {line}")
    return 0


def show(options: Namespace) -> int:
    """Tell what a model file holds."""
    from dovetail.predictors.model_file import load_model

    _tell_model(load_model(options.model), options)
    return 0


def evaluate(options: Namespace) -> int:
    """Test models on pairs that they have not seen; print what was found."""
    from dovetail.predicting.tables import comparison_view

    found = _studied(options, _models(options)).comparison
    print_either(options, found.to_data(), comparison_view(found))
    return 0


def report(options: Namespace) -> int:
    """Write a page that tells how good the predictions are."""
    from dovetail.predicting.report import report_html
    from dovetail.predictors.model_file import load_model

    read = (*dataset_files(options.data), *filter(None, [options.model]))
    require_separate(read, options.output)
    predictor = load_model(options.model) if options.model else None
    found = _studied(options, _models(options))
    with working("drawing"):
        html = report_html(_data(options), found, predictor)
    write_text(options.output, html)
    if options.json:
        write_data(found.comparison.to_data(), "-")
    elif options.output != "-":
        print(f"{found.comparison.data}: report -> {options.output}")
    return 0


def _data(options: Namespace) -> DataSet:
    return read_dataset(options.data)


def _models(options: Namespace) -> Sequence[str]:
    from dovetail.predictors.training import NAMES

    if not options.models:
        return NAMES
    return tuple(dict.fromkeys(name.strip() for name in options.models.split(",")))


def _settings(data: DataSet, options: Namespace) -> Sequence[Setting]:
    from dovetail.predictors.evaluation import SETTINGS

    if not options.new:
        several = len(options.gpu_model or data.gpu_models) > 1
        return ("random", "family", "gpu_model") if several else ("random", "family")
    named = [name.strip() for name in options.new.split(",")]
    for name in named:
        if name not in SETTINGS:
            raise InputError(f"must be one of {', '.join(SETTINGS)}, got {name!r}", "--new")
    return tuple(setting for setting in SETTINGS if setting in named)


def _studied(options: Namespace, models: Sequence[str]) -> Studied:
    from dovetail.predicting.evaluation import study

    data = _data(options)
    _require_gpu_models(data, options)
    settings = _settings(data, options)
    _tell_of_pooling(data, options)
    with _about_data(options), counting("testing") as progress:
        return study(
            data,
            models,
            settings,
            options.gpu_model or None,
            options.confidence,
            options.seed,
            progress,
        )


def _tell_of_pooling(data: DataSet, options: Namespace) -> None:
    """Say that a test of several GPU models at once is harder than what ``fit`` does."""
    pooled = options.gpu_model or data.gpu_models
    if len(pooled) > 1:
        text = f"{len(pooled)} GPU models are tested together, and fit takes each by itself"
        print(f"dovetail: {text}: --gpu-model {pooled[0]} tests one", file=sys.stderr)


@contextmanager
def _about_data(options: Namespace) -> Iterator[None]:
    """Name the path of the data set in errors that know its name only."""
    try:
        yield
    except InputError as error:
        raise error.at(source_name(options.data)) from None


def _require_gpu_models(data: DataSet, options: Namespace) -> None:
    for name in options.gpu_model or ():
        if name not in data.gpu_models:
            known = ", ".join(data.gpu_models) or "none"
            rule = f"must be a GPU model of the data ({known}), got {name!r}"
            raise InputError(rule, "--gpu-model", source_name(options.data))


def _tell_model(predictor: TrainedPredictor, options: Namespace) -> None:
    """Print what a fitted predictor is, unless it is itself what was printed."""
    from dovetail.predicting.facts import model_data, model_view

    output = getattr(options, "output", None)
    if output == "-":
        return
    print_either(options, model_data(predictor), model_view(predictor))
    if output and not options.json:
        print(f"-> {Path(output)}")
