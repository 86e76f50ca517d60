"""``dovetail predictors update``: fit a predictor to new measurements."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from dovetail.predicting.options import MODEL_FILE, written_to
from dovetail.toolkit.commands import DATA, SEED, Command
from dovetail.toolkit.files import require_separate
from dovetail.toolkit.progress import working

UPDATE: Final = Command(
    "update",
    "Fit a model to new measurements too, and print its errors on them.",
    "dovetail.predicting.update:update",
    (MODEL_FILE, DATA, SEED, written_to("MODEL")),
)


def update(options: Namespace) -> int:
    """Update a predictor with new measurements, and print its errors on them."""
    from dovetail.instances.datasets.files import dataset_files, read_dataset
    from dovetail.instances.files import write_data
    from dovetail.predicting.models import about_data, print_model
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
    print_model(learnt.predictor, options)
    if options.output != "-":
        for gpu_model, found in learnt.drift.items():
            for line in str(found).splitlines():
                print(f"{gpu_model}: {line}")
    return 0
