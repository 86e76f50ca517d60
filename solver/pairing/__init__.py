"""Exact pairing: the engine under ``match_pairs`` (see ``matching`` for the scheme)."""

from dovetail.solver.pairing.certificate import Certificate, certificate_errors
from dovetail.solver.pairing.matching import Matching, compile_kernels, match_pairs
from dovetail.solver.pairing.prices import Prices
from dovetail.solver.pairing.splits import BestSplits, SplitValues, best_splits

__all__ = [
    "BestSplits",
    "Certificate",
    "Matching",
    "Prices",
    "SplitValues",
    "best_splits",
    "certificate_errors",
    "compile_kernels",
    "match_pairs",
]
