"""``dovetail predictors fit``: fit a predictor on a data set."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from dovetail.predicting.options import CONFIDENCE, GPU_MODEL, written_to
from dovetail.toolkit.commands import DATA, SEED, SHARING, Command, option
from dovetail.toolkit.files import require_separate
from dovetail.toolkit.progress import counting

FIT: Final = Command(
    "fit",
    "Fit a predictor on a data set and write it as a model file.",
    "dovetail.predicting.fit:fit",
    (
        DATA,
        option("--model NAME", "fit this kind of model", default="auto"),
        option("--licence TEXT", "licence of the data, kept in the model file"),
        GPU_MODEL,
        SHARING,
        CONFIDENCE,
        SEED,
        written_to("MODEL"),
    ),
)


def fit(options: Namespace) -> int:
    """Fit a predictor on a data set and write it as a model file."""
    from dovetail.instances.datasets.files import dataset_files, read_dataset
    from dovetail.predicting.models import about_data, print_model, require_gpu_models
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
    print_model(made, options)
    return 0
