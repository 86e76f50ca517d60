"""The commands of ``dovetail predictors``: options in, output written, exit status out."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.files import dataset_files, read_dataset
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.files import write_data
from dovetail.instances.raw_files import write_text
from dovetail.toolkit.charts import check_figures, write_figures
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
    if options.source is not None:
        _require_gpu_model(data, options, options.source, "--from")
    with _about_data(options), counting("fitting") as progress:
        made = fitted(
            data,
            options.model,
            options.gpu_model or None,
            options.confidence,
            options.seed,
            search_s=options.search,
            source=options.source,
            licence=options.licence,
            progress=progress,
        )
    save_model(made, options.output)
    _print_model(made, options)
    return 0


def update(options: Namespace) -> int:
    """Fit a predictor to new measurements as well, and print where it was wrong of late."""
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
    _print_model(learnt.predictor, options)
    if options.output != "-":
        for gpu_model, found in learnt.drift.items():
            for line in str(found).splitlines():
                print(f"{gpu_model}: {line}")
    return 0


def show(options: Namespace) -> int:
    """Print what a model file holds."""
    from dovetail.predictors.model_file import load_model

    _print_model(load_model(options.model), options)
    return 0


def evaluate(options: Namespace) -> int:
    """Test models on pairs that they have not seen; print what was found."""
    from dovetail.predicting.tables import comparison_view

    require_separate(dataset_files(options.data), options.figures)
    check_figures(options.figures)
    studied = _studied(options, _models(options))
    _write_figures(options, studied)
    print_either(options, studied.comparison.to_data(), comparison_view(studied.comparison))
    return 0


def report(options: Namespace) -> int:
    """Write a page that shows how good the predictions are."""
    from dovetail.predicting.report import report_html
    from dovetail.predictors.model_file import load_model

    read = (*dataset_files(options.data), *filter(None, [options.model]))
    require_separate(read, options.output, options.figures)
    check_figures(options.figures)
    predictor = load_model(options.model) if options.model else None
    found = _studied(options, _models(options))
    with working("drawing"):
        html = report_html(_data(options), found, predictor)
    write_text(options.output, html)
    _write_figures(options, found)
    if options.json:
        write_data(found.comparison.to_data(), "-")
    elif options.output != "-":
        print(f"{found.comparison.data}: report -> {options.output}")
    return 0


def _write_figures(options: Namespace, studied: Studied) -> None:
    if options.figures:
        from dovetail.predicting.report import report_charts

        with working("drawing"):
            write_figures(options.figures, report_charts(studied))


def _data(options: Namespace) -> DataSet:
    return read_dataset(options.data)


def _models(options: Namespace) -> Sequence[str]:
    from dovetail.predictors.estimators.registry import MODELS

    if not options.models:
        return MODELS
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
    _note_pooling(data, options)
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


def _note_pooling(data: DataSet, options: Namespace) -> None:
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
        _require_gpu_model(data, options, name, "--gpu-model")


def _require_gpu_model(data: DataSet, options: Namespace, name: str, option: str) -> None:
    if name not in data.gpu_models:
        known = ", ".join(data.gpu_models) or "none"
        rule = f"must be a GPU model of the data ({known}), got {name!r}"
        raise InputError(rule, option, source_name(options.data))


def _print_model(predictor: TrainedPredictor, options: Namespace) -> None:
    """Print what a fitted predictor is, unless it is itself what was printed."""
    from dovetail.predicting.facts import model_data, model_view

    output = getattr(options, "output", None)
    if output == "-":
        return
    print_either(options, model_data(predictor), model_view(predictor))
    if output and not options.json:
        print(f"-> {Path(output)}")
