"""``dovetail doctor --prove``: run the checks that only hardware can settle."""

from __future__ import annotations

import shutil
import signal
import sys
from argparse import Namespace
from pathlib import Path
from typing import Final

from rich.text import Text

from dovetail.executor.live.first_contact.proving import Job, chosen, machine_of, prove, usual_s
from dovetail.executor.live.first_contact.records import (
    Proof,
    check_same,
    read_proof,
    write_proof,
)
from dovetail.executor.live.mps.control import PROGRAM
from dovetail.executor.live.mps.foreign import every_mps, may_see
from dovetail.executor.live.nvml import Gpu, Nvml, NvmlError
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.files import write_data
from dovetail.tables import console, plain_table

TIME_UP: Final = 3
"""The exit status where more is left than there was time for."""

_PROOF: Final = "proof.json"
_STYLES = {"as taken for granted": "green", "otherwise": "red", "could not be tried": "yellow"}


def prove_here(options: Namespace) -> int:
    """Run checks on a free GPU.

    The exit status is 0 where nothing is other than taken, 1 where something is, and 3 where there
    was no time for all of them.
    """
    program = shutil.which(PROGRAM)
    path = Path(options.proof or _PROOF)
    job = Job(options.only or (), not options.no_faults, options.minutes)
    # What ends us from outside clears up as Ctrl-C does.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _session() as nvml:
            gpu = _free_gpu(nvml)
            if program is None:
                told = f"{PROGRAM} is not installed: what needs MPS cannot be tried"
                print(told, file=sys.stderr)
            proof = _begun(path, Proof(machine=machine_of(nvml, gpu, program)))
            checks = chosen(job, proof)
            done: set[str] = set()
            told = f"{len(checks)} checks on {gpu.name}, about {usual_s(checks) / 60:.0f} min"
            print(told, file=sys.stderr)
            for check in prove(nvml, gpu, program, options.python, job, proof):
                proof = proof.with_check(check)
                write_proof(proof, path)
                done.add(check.id)
                print(f"{check.id}: {check.verdict}: {check.seen}", file=sys.stderr)
    finally:
        signal.signal(signal.SIGTERM, before)
    if options.json:
        write_data(proof.to_data(), "-")
    else:
        _show(proof)
    if left := [check.id for check in checks if check.id not in done]:
        print(f"dovetail: time is up: {', '.join(left)} left", file=sys.stderr)
        return TIME_UP
    return int(any(check.verdict == "otherwise" for check in proof.checks))


def _session() -> Nvml:
    try:
        return Nvml()
    except NvmlError as error:
        raise UnsupportedError(f"nothing can be proven without a GPU: {error}") from None


def _begun(path: Path, proof: Proof) -> Proof:
    if not path.exists():
        return proof
    earlier = read_proof(path)
    check_same(earlier, proof.machine, str(path))
    return earlier


def _free_gpu(nvml: Nvml) -> Gpu:
    """Return the first GPU that nobody uses.

    Raises
    ------
    UnsupportedError
        There is none.
    """
    why = "there is no GPU"
    for gpu in nvml.gpus():
        pids = sorted(nvml.processes(gpu.uuid))
        others = [one.pid for one in every_mps() if may_see(one.devices, gpu.uuid)]
        if gpu.mig or gpu.compute_mode == "prohibited":
            why = f"{gpu.uuid[:12]} is cut up by MIG, or in compute mode PROHIBITED"
        elif pids or others:
            told = ", ".join(map(str, [*pids, *others]))
            why = f"{gpu.uuid[:12]} is in use (pid {told}): drain it, end its MPS, and try again"
        else:
            return gpu
    raise UnsupportedError(f"nothing can be proven: {why}")


def _show(proof: Proof) -> None:
    table = plain_table("check", "seen", "verdict", "s")
    for check in proof.checks:
        verdict = Text(check.verdict, _STYLES[check.verdict])
        table.add_row(Text(check.id), Text(check.seen), verdict, Text(f"{check.seconds:.0f}"))
    if proof.machine.stand_in:
        console().print(Text(f"STAND-IN, no GPU: {proof.machine.stand_in}", "bold"))
    console().print(table)
