"""Solvers with proofs: backends, the solving of a round, and the pairing engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dovetail.solver.pairing import (
        BestSplits,
        Matching,
        best_splits,
        certificate_errors,
        match_pairs,
    )

__all__ = ["BestSplits", "Matching", "best_splits", "certificate_errors", "match_pairs"]


def __getattr__(name: str) -> object:
    """Import the pairing engine on first use."""
    if name not in __all__:
        raise AttributeError(f"module 'dovetail.solver' has no attribute {name!r}")
    from dovetail.solver import pairing

    return getattr(pairing, name)
