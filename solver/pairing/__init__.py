"""Exact pairing: the engine under ``match_pairs`` (see ``matching`` for the scheme)."""

from dovetail.solver.pairing.certificate import certificate_errors
from dovetail.solver.pairing.matching import compile_kernels, match_pairs
from dovetail.solver.pairing.result import Certificate, Matching, Prices
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
