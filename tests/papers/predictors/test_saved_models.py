"""The models of papers, through a model file and back, and with their arrays tampered."""

import pytest

from tests.predictors.test_saved_models import made
from tests.predictors.test_saved_models import (
    test_a_loaded_model_says_the_same as test_a_loaded_model_says_the_same,
)
from tests.predictors.test_saved_models import (
    test_tables_and_rows_agree as test_tables_and_rows_agree,
)
from tests.predictors.test_saved_models import (
    test_tampered_forms_are_refused_or_give_numbers as test_tampered_forms_are_refused,
)


@pytest.fixture(scope="module", params=["castor", "coscheml", "sm_allocation", "tensorshare"])
def fitted(request):
    return made(request.param)


__all__ = ["fitted", "test_tampered_forms_are_refused"]
