"""``dovetail predict``: fill in the slowdowns that an instance lacks."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from dovetail.predicting.options import PREDICTION
from dovetail.toolkit.commands import INSTANCE, OUTPUT, SLOWDOWNS, Command, option
from dovetail.toolkit.files import instance_with, require_separate, write_made

PREDICT: Final = Command(
    "predict",
    "Fill in the slowdowns that an instance lacks.",
    "dovetail.predicting.predict:predict",
    (
        INSTANCE,
        SLOWDOWNS,
        PREDICTION[0]._replace(text="with this predictor: kernels (the default), analytic"),
        PREDICTION[1]._replace(text="with this fitted model"),
        *PREDICTION[2:],
        option("--mixed", "also pairs of a workload with a share and one without"),
        option("--sets", "also sets of three and more, derived from their pairs"),
        OUTPUT,
    ),
)


def predict(options: Namespace) -> int:
    """Write the instance with its unknown slowdowns predicted."""
    from dovetail.predicting.filling import predicted, predictor_of
    from dovetail.predictors.fill import DEFAULT

    read = (options.instance, *filter(None, [options.model, options.slowdowns]))
    require_separate(read, options.output)
    predictor = predictor_of(options, DEFAULT)
    instance = instance_with(options.instance, options.slowdowns)
    filled = predicted(options, instance, predictor, mixed=options.mixed, sets=options.sets)
    write_made(options, filled)
    return 0
