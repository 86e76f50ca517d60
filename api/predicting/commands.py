"""The commands of ``dovetail predictors``: options in, output written, exit status out."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.files import dataset_files, read_dataset
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.files import write_data
from dovetail.toolkit.outputs import print_either, require_separate
from dovetail.toolkit.progress import counting, working

if TYPE_CHECKING:
    from dovetail.predictors.fitted.trained import TrainedPredictor


def fit(options: Namespace) -> int:
    """Fit a predictor on a data set and write it as a model file."""
    from dovetail.predictors.fitted.model_file import save_model
    from dovetail.predictors.fitted.training import fit as fitted

    require_separate(dataset_files(options.data), options.output)
    data = read_dataset(options.data)
    require_gpu_models(data, options)
    with about_data(options), counting("fitting") as progress:
        made = fitted(
            data,
            options.model,
            options.gpu_model or None,
            options.confidence,
            options.seed,
            mode=options.sharing,
            options=options.added,
            licence=options.licence,
            progress=progress,
        )
    save_model(made, options.output)
    _print_model(made, options)
    return 0


def update(options: Namespace) -> int:
    """Update a predictor with new measurements, and print its errors on them."""
    from dovetail.predictors.fitted.model_file import load_model, save_model
    from dovetail.predictors.fitted.training import update as updated

    require_separate(dataset_files(options.data), options.output)
    predictor = load_model(options.model)
    data = read_dataset(options.data)
    with about_data(options), working("learning"):
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
    """Print the contents of a model file."""
    from dovetail.predictors.fitted.model_file import load_model

    _print_model(load_model(options.model), options)
    return 0


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


def _print_model(predictor: TrainedPredictor, options: Namespace) -> None:
    """Print facts about a fitted predictor, unless standard output has the predictor itself."""
    from dovetail.predicting.facts import model_data, model_view

    output = getattr(options, "output", None)
    if output == "-":
        return
    print_either(options, model_data(predictor), model_view(predictor))
    if output and not options.json:
        print(f"-> {Path(output)}")
