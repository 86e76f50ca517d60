"""The interface of fitted models of pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dovetail.predictors.predictor import FloatArray, IntArray

Arrays = Mapping[str, NDArray[np.generic]]


class Form(Protocol):
    """A function of two states, the job's own and its co-runner's, stored as data.

    A form consists of arrays of numbers, so it can be saved, read back and checked without running
    code from a file. It is called for both orders of a pair, so mirrored pairs get mirrored
    answers.
    """

    kind: ClassVar[str]
    """The name of the form in a file."""

    def predict(self, states: FloatArray, own: IntArray, other: IntArray) -> FloatArray:
        """Return the slowdown of the own state with the other, for each row.

        Parameters
        ----------
        states : ndarray of float, shape (states, features)
            The features of each state.
        own, other : ndarray of int, shape (rows,)
            Positions in ``states``.

        Returns
        -------
        ndarray of float, shape (rows,)
            The slowdowns; NaN if the form has no answer.
        """

    def arrays(self) -> Arrays:
        """Return the whole form as arrays of numbers."""

    @classmethod
    def from_arrays(cls, arrays: Arrays, features: int) -> Self:
        """Rebuild the form for states with this number of features.

        Raises
        ------
        InputError
            When the arrays are no valid form; their content is not trusted.
        """
