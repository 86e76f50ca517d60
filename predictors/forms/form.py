"""What a fitted model of pairs is, whatever it was fitted with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dovetail.predictors.predictor import FloatArray, IntArray

Arrays = Mapping[str, NDArray[np.generic]]


class Form(Protocol):
    """A function of two states, the job's own and its co-runner's, that is data.

    A form is made of arrays of numbers, so it can be saved, read back and checked without
    running anything that a file brings along. It is called for both orders of a pair, which is
    why mirrored pairs get mirrored answers.
    """

    kind: ClassVar[str]
    """How a file names the form."""

    def predict(self, states: FloatArray, own: IntArray, other: IntArray) -> FloatArray:
        """Return the slowdown of the own state with the other, for each row.

        Parameters
        ----------
        states : ndarray of float, shape (states, features)
            What is known of each state.
        own, other : ndarray of int, shape (rows,)
            Positions in ``states``.

        Returns
        -------
        ndarray of float, shape (rows,)
            NaN where the form has no answer.
        """

    def arrays(self) -> Arrays:
        """Return everything the form is made of, as arrays of numbers."""

    @classmethod
    def from_arrays(cls, arrays: Arrays, features: int) -> Self:
        """Rebuild the form for states of so many features.

        Raises
        ------
        InputError
            When the arrays cannot be such a form: nothing they hold is trusted.
        """
