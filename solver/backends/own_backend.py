"""A user's own backend, whose answers are checked before they count as proven."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Final, get_args

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.arrays import Ints
from dovetail.formulations.programs.program import IntegerProgram
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.plan import Stopped
from dovetail.solver.outside import path_of
from dovetail.solver.types import Answer, Backend, Limits

_ROUNDING: Final = 1e-6
"""Relative error that floating point may leave in a bound, or in a row of a solution."""


class OwnBackend:
    """Checks a backend and rejects answers that cannot be true.

    Parameters
    ----------
    backend : Backend
        An object of the user's class.

    Raises
    ------
    UnsupportedError
        When it has no name.
    """

    def __init__(self, backend: Backend) -> None:
        self._path = path_of(backend)
        self._backend = backend
        name = getattr(backend, "name", None)
        if not (isinstance(name, str) and name):
            raise UnsupportedError(f"{self._path} must have a name, which must be text")
        self.name = name

    def solve(self, program: IntegerProgram, limits: Limits, start: Ints | None = None) -> Answer:
        """Return the backend's answer.

        Raises
        ------
        UnsupportedError
            When it is not an ``Answer``, its ``x`` violates the program, or its bound is below the
            value of its ``x`` or of ``start``.
        """
        answer = self._backend.solve(program, limits, start)
        if not isinstance(answer, Answer):
            kind = type(answer).__name__
            raise UnsupportedError(f"{self._path}.solve must return an Answer, got {kind}")
        if answer.stopped not in get_args(Stopped):
            known = ", ".join(get_args(Stopped))
            self._refuse(f"stopped must be one of {known}, got {answer.stopped!r}")
        if answer.x is not None:
            answer = replace(answer, x=self._whole(answer.x, program))
        for plan, x in (("its own plan", answer.x), ("the plan that it may begin with", start)):
            if x is not None:
                self._require_above(answer.bound, plan, x, program.cost)
        return answer

    def _whole(self, x: object, program: IntegerProgram) -> Ints:
        given = np.asarray(x)
        if given.shape != (program.size,) or given.dtype.kind not in "biuf":
            self._refuse(f"x must be None or an array of {program.size} whole numbers")
        with np.errstate(invalid="ignore"):  # NaN and inf differ from their casts
            whole = given.astype(np.int64)
        if (whole != given).any():
            self._refuse("x must be whole numbers")
        if ((whole < program.lower) | (whole > program.upper)).any():
            self._refuse("x violates a bound of a variable")
        activity = program.rows @ whole
        least, most = program.row_lower, program.row_upper
        short = least - activity > _ROUNDING * np.maximum(1.0, abs(activity))
        if (short | (activity - most > _ROUNDING * np.maximum(1.0, abs(activity)))).any():
            self._refuse("x violates a row of the program")
        return whole

    def _require_above(self, bound: object, plan: str, x: Ints, cost: NDArray[np.float64]) -> None:
        value = float(cost @ x)
        # Terms of both signs may cancel out to a value much smaller than their rounding.
        error = _ROUNDING * max(float(abs(cost) @ abs(x)), float(abs(cost).max(initial=0.0)))
        if not (isinstance(bound, Real) and float(bound) >= value - error):
            got = f"{float(bound):g}" if isinstance(bound, Real) else repr(bound)
            raise UnsupportedError(
                f"solver {self._path} returned a bound of {got} that {plan} exceeds: "
                f"its value is {value:g}"
            )

    def _refuse(self, rule: str) -> None:
        raise UnsupportedError(f"solver {self._path} returned a wrong answer: {rule}")
