"""``dovetail predictors evaluate`` and ``report``: options in, output written, exit status out."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.files import dataset_files, read_dataset
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.instances.files import write_data
from dovetail.instances.plugins import require_package
from dovetail.instances.reading.contents import write_text
from dovetail.predicting.models import about_data, require_gpu_models
from dovetail.toolkit.charts import check_figures, write_figures
from dovetail.toolkit.files import print_either, require_separate
from dovetail.toolkit.progress import counting, working

if TYPE_CHECKING:
    from dovetail.papers.studies.comparison import Studied
    from dovetail.papers.studies.evaluation import Setting


def evaluate(options: Namespace) -> int:
    """Test models on pairs that they have not seen; print the results."""
    from dovetail.papers.studies.tables import comparison_view

    require_separate(dataset_files(options.data), options.figures)
    check_figures(options.figures)
    studied = _studied(options, _models(options))
    _write_figures(options, studied)
    print_either(options, studied.comparison.to_data(), lambda: comparison_view(studied.comparison))
    return 0


def report(options: Namespace) -> int:
    """Write a page that shows how good the predictions are."""
    from dovetail.papers.studies.report import report_html
    from dovetail.predictors.fitted.model_file import load_model

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
        from dovetail.papers.studies.report import report_charts

        with working("drawing"):
            write_figures(options.figures, report_charts(studied))


def _models(options: Namespace) -> Sequence[str]:
    if not options.models:
        return _usable_models()
    return tuple(dict.fromkeys(name.strip() for name in options.models.split(",")))


def _usable_models() -> Sequence[str]:
    """Return all models that can be fitted here; name the others."""
    from dovetail.predictors.estimators.registry import model_names, spec

    require_package("sklearn", "train", "testing models")
    usable = []
    for name in model_names():
        try:
            spec(name)
        except UnsupportedError as error:
            print(f"dovetail: left out: {error}", file=sys.stderr)
        else:
            usable.append(name)
    return usable


def _settings(data: DataSet, options: Namespace) -> Sequence[Setting]:
    from dovetail.papers.studies.evaluation import SETTINGS

    if not options.new:
        several = len(options.gpu_model or data.gpu_models) > 1
        return ("random", "family", "gpu_model") if several else ("random", "family")
    named = [name.strip() for name in options.new.split(",")]
    for name in named:
        if name not in SETTINGS:
            raise InputError(f"must be one of {', '.join(SETTINGS)}, got {name!r}", "--new")
    return tuple(setting for setting in SETTINGS if setting in named)


def _studied(options: Namespace, models: Sequence[str]) -> Studied:
    from dovetail.papers.studies.comparison import study

    data = _data(options)
    require_gpu_models(data, options)
    settings = _settings(data, options)
    _note_pooling(data, options)
    with about_data(options), counting("testing") as progress:
        return study(
            data,
            models,
            settings,
            options.gpu_model or None,
            options.confidence,
            options.seed,
            progress,
        )


def _data(options: Namespace) -> DataSet:
    return read_dataset(options.data).in_mode(options.sharing)


def _note_pooling(data: DataSet, options: Namespace) -> None:
    """Print a note that several GPU models are tested together, unlike in ``fit``."""
    pooled = options.gpu_model or data.gpu_models
    if len(pooled) > 1:
        text = f"{len(pooled)} GPU models are tested together, and fit takes each by itself"
        print(f"dovetail: {text}: --gpu-model {pooled[0]} tests one", file=sys.stderr)
