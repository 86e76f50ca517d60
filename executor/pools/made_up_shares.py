"""Made-up evidence of shares, so that live mode's own measuring can be tried without a GPU.

The pools ``cpu:gate=made-up`` and ``simulated:INSTANCE,gate=made-up`` treat their shares as
unproven until such evidence is there. It is stored like that of GPUs, under the driver and the
library ``made-up``, and says nothing about any GPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from dovetail.executor.gpus.splits import WHOLE, Product, SplitEvidence, Splits
from dovetail.executor.pools.share_gate import ShareGate, ShareProgram, TriedShare, by_use
from dovetail.instances.errors import DovetailError

MADE_UP: Final = "made-up"

PROGRAM: Final = Path(__file__).with_name("made_up_product.py")

_PATIENCE_S: Final = 60.0
_SIMULATED_S: Final = 2.0


class MadeUpError(DovetailError):
    """The made-up program printed something else."""


class MadeUpProgram:
    """Multiplies whole numbers on the processor, in a process of its own (a ``ShareProgram``)."""

    patience_s = _PATIENCE_S

    def command(self, python: str) -> Sequence[str]:
        """Return the program; this Python is as good as the jobs'."""
        return (python or sys.executable, "-I", "-S", str(PROGRAM))

    def evidence(self, tried: TriedShare, lines: Sequence[str]) -> SplitEvidence:
        """Return made-up evidence with the difference that the program found."""
        try:
            wrong = float(json.loads(lines[-1])["wrong"])
        except (LookupError, TypeError, ValueError):
            raise MadeUpError(f"the made-up program printed {lines[-1:]!r}") from None
        return _made_up(tried, wrong)


class SimulatedProgram:
    """Does nothing for two simulated seconds (a ``ShareProgram``)."""

    patience_s = _PATIENCE_S

    def command(self, python: str) -> Sequence[str]:
        """Return words that the simulated pool reads instead of running a program."""
        return ("measure-share", f"work_s={_SIMULATED_S:g}")

    def evidence(self, tried: TriedShare, lines: Sequence[str]) -> SplitEvidence:
        """Return made-up evidence that the share computes correctly."""
        return _made_up(tried, 0.0)


def made_up_gate(
    splits: Splits, shares: Collection[int], program: ShareProgram, workload: str = MADE_UP
) -> ShareGate:
    """Return the gate of a pool that can enforce some shares, with made-up evidence for them."""
    return ShareGate(
        splits,
        MADE_UP,
        program,
        offers=by_use(shares),
        library=MADE_UP,
        workload=workload,
    )


def _made_up(tried: TriedShare, wrong: float) -> SplitEvidence:
    return SplitEvidence(
        gpu_model=tried.gpu_model,
        driver=tried.driver,
        cublas=MADE_UP,
        share=tried.share,
        sms=max(1, (tried.sms or WHOLE) * tried.share // WHOLE),
        products=(Product(kind=MADE_UP, dtype="float32", m=1, n=1, k=1, error=2 * wrong),),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )
