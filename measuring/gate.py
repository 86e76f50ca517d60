"""The options ``--splits`` and ``--sms`` of ``dovetail doctor``: measure shares on idle GPUs."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from dovetail.doctor.doctor import preflight
from dovetail.executor.gpus.nvml import Nvml, NvmlGpu
from dovetail.executor.gpus.python_libraries import NoPythonError, libraries_of
from dovetail.executor.gpus.splits import (
    SplitEvidence,
    SplitKey,
    Splits,
    keep_splits,
    read_splits,
)
from dovetail.executor.mps.manager import MpsManager
from dovetail.executor.pools.gpu import GpuPool, device_id
from dovetail.executor.pools.runs.submissions import PoolSubmissions
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.measuring.split_measuring import (
    CANDIDATES,
    EVERY_SHARE,
    Probe,
    count_sms,
    measure_shares,
)


def before_diagnosis(options: Namespace) -> None:
    """Measure shares before ``dovetail doctor`` checks the machine.

    Raises
    ------
    DovetailError
        If an option has no effect without another, and as ``measure``.
    """
    if options.shares and not (options.splits or options.sms):
        raise InputError("needs --splits or --sms", "--shares")
    if options.again and not options.splits:
        raise InputError("needs --splits", "--again")
    what = preflight(options)
    measure(what.directory, MpsManager(what.mps_directory), what.python, options)


def measure(directory: Path, mps: MpsManager, python: str, options: Namespace) -> None:
    """Measure shares on one GPU of each model, and store each result immediately.

    Parameters
    ----------
    directory : Path
        The state directory, whose repository stores the results.
    mps : MpsManager
        The manager of the service's directory.
    python : str
        A Python with the jobs' PyTorch.
    options : Namespace
        ``sms``, ``splits``, ``shares`` and ``again`` of the command line.

    Raises
    ------
    DovetailError
        If there is no MPS or no GPU, a GPU is in use, or a share cannot be measured.
    """
    why_not = mps.why_not()
    if why_not is not None:
        raise UnsupportedError(f"shares cannot be measured: {why_not}")
    with Nvml() as nvml:
        for gpu in {one.name: one for one in reversed(nvml.gpus()) if not one.mig}.values():
            _refuse_busy(nvml, gpu)
            # Not in the directory itself, as a running service keeps its runs there.
            pool = GpuPool(directory / "probes", Nvml(), mps, Splits(), (gpu.uuid,))
            with PoolSubmissions(pool) as submissions:
                facts = (gpu.name, nvml.driver(), gpu.sms, python)
                probe = Probe(*facts, submissions, device_id(gpu))
                if options.sms:
                    _count(probe, options.shares or EVERY_SHARE, directory)
                if options.splits:
                    _compare(probe, options.shares or CANDIDATES, directory, again=options.again)


def _refuse_busy(nvml: Nvml, gpu: NvmlGpu) -> None:
    """Refuse a GPU with jobs on it, which would be slowed and disturb the measurement."""
    pids = sorted(nvml.processes(gpu.uuid))
    if pids:
        text = ", ".join(map(str, pids))
        raise UnsupportedError(f"{gpu.uuid[:12]} is in use (pid {text}): drain it and try again")


def _count(probe: Probe, shares: Sequence[int], directory: Path) -> None:
    began = time.monotonic()
    with closing(count_sms(probe, shares)) as counts:
        for count in counts:
            keep_splits(directory, count)
    text = f"{len(shares)} shares counted in {time.monotonic() - began:.0f} s"
    print(f"{probe.gpu_model}: the SMs of {text}", file=sys.stderr)


def _compare(probe: Probe, shares: Sequence[int], directory: Path, *, again: bool) -> None:
    """Compare products at each share that was not measured before, or at all if ``again``."""
    known = frozenset() if again else _measured(probe, read_splits(directory))
    left = [share for share in shares if share not in known]
    if len(left) < len(shares):
        text = f"{len(shares) - len(left)} of {len(shares)} shares were measured before"
        print(f"{probe.gpu_model}: {text} (--again: measure them again)", file=sys.stderr)
    began = time.monotonic()
    with closing(measure_shares(probe, left)) as found:
        for done, evidence in enumerate(found, 1):
            keep_splits(directory, evidence)
            rest_s = (time.monotonic() - began) / done * (len(left) - done)
            rest = f", about {rest_s:.0f} s left" if done < len(left) else ""
            print(f"{_text(evidence)} ({done} of {len(left)}{rest})", file=sys.stderr)


def _measured(probe: Probe, splits: Splits) -> frozenset[int]:
    """Return the shares that need no measuring with the cuBLAS of the jobs' Python."""
    try:
        cublas = libraries_of(probe.python).cublas
    except NoPythonError:
        return frozenset()
    if cublas is None:
        return frozenset()
    return splits.covered(SplitKey(probe.gpu_model, probe.driver, cublas))


def _text(evidence: SplitEvidence) -> str:
    wrong = sum(not product.right for product in evidence.products)
    verdict = f"WRONG in {wrong}" if wrong else "right in all"
    return (
        f"{evidence.gpu_model}: {evidence.share} % is {evidence.sms} SMs and computes "
        f"{verdict} of {len(evidence.products)} products"
    )
