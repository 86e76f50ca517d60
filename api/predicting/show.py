"""``dovetail predictors show``: what a model file holds."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from dovetail.predicting.options import MODEL_FILE
from dovetail.toolkit.commands import Command

SHOW: Final = Command(
    "show",
    "Print what a model file holds.",
    "dovetail.predicting.show:show",
    (MODEL_FILE,),
)


def show(options: Namespace) -> int:
    """Print the contents of a model file."""
    from dovetail.predicting.models import print_model
    from dovetail.predictors.fitted.model_file import load_model

    print_model(load_model(options.model), options)
    return 0
