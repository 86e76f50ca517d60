"""The proof: observations of a GPU, stored test by test, and their table.

python -m tests.gpu.proof FILE    print a proof as Markdown, for docs/evidence/hardware.md
"""

import os
import platform
import sys

import pytest

from dovetail import __version__
from dovetail.executor.mps.processes import every_mps
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.instances.files import read_data

FORMAT = "dovetail-proof/1"
AS_TAKEN, OTHERWISE, NOT_TRIED = "as taken for granted", "otherwise", "could not be tried"


def free_gpu(nvml):
    """Return the first idle GPU."""
    why = "there is no GPU"
    for gpu in nvml.gpus():
        pids = sorted(nvml.processes(gpu.uuid))
        others = [one.pid for one in every_mps() if one.may_see(gpu.uuid)]
        if gpu.mig or gpu.compute_mode == "prohibited":
            why = f"{gpu.uuid[:12]} is cut up by MIG, or in compute mode PROHIBITED"
        elif pids or others:
            pids_text = ", ".join(map(str, [*pids, *others]))
            why = (
                f"{gpu.uuid[:12]} is in use (pid {pids_text}): drain it, end its MPS, and try again"
            )
        else:
            return gpu
    raise UnsupportedError(why)


def machine_of(nvml, gpu, program):
    """Return the description of this GPU, driver and control program."""
    return {
        **stand_in(program),
        "gpu_model": gpu.name,
        "uuid": gpu.uuid,
        "driver": nvml.driver(),
        "control": "none" if program is None else os.path.realpath(program),
        "compute_mode": gpu.compute_mode,
        "sms": gpu.sms,
        "memory_mib": gpu.memory_mib,
        "uid": os.geteuid(),
        "host_cores": os.cpu_count(),
        "kernel": platform.release(),
        "dovetail": __version__,
    }


def stand_in(program):
    """Report a control program that is no binary, hence not NVIDIA's."""
    if program is not None:
        with open(program, "rb") as file:
            if file.read(4) != b"\x7fELF":
                return {"stand_in": f"{program} is a script, not NVIDIA's program"}
    return {}


def begun(path, machine):
    """Return the proof to continue: a new one, or that of the file."""
    if path is None or not os.path.exists(path):
        return {"format": FORMAT, "machine": machine, "checks": []}
    try:
        proof = read_data(path)
    except InputError as error:
        raise pytest.UsageError(str(error)) from None
    if not isinstance(proof, dict) or proof.get("format") != FORMAT:
        raise pytest.UsageError(f"{path}: format: must be {FORMAT!r}")
    # Another GPU of the same model may continue, as in a campaign.
    for name in ("stand_in", "gpu_model", "driver", "control"):
        before, now = proof["machine"].get(name), machine.get(name)
        if before != now:
            raise pytest.UsageError(f"{path}: machine.{name}: is of {before!r}, here is {now!r}")
    return proof


def markdown(proof):
    """Return a proof as a table in Markdown, one line a check."""
    machine = proof["machine"]
    fake = machine.get("stand_in")
    lines = [
        f"{f'STAND-IN, no GPU: {fake}' if fake else machine['gpu_model']}, driver "
        f"{machine['driver']}, compute mode {machine['compute_mode']}",
        "",
        "| check | looked at | taken for granted | seen | verdict | s |",
        "|---|---|---|---|---|---|",
    ]
    for check in proof["checks"]:
        texts = [check[name] for name in ("looked_at", "taken", "seen", "verdict")]
        cells = [f"`{check['id']}`", *texts, f"{check['seconds']:.0f}"]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown(read_data(sys.argv[1])))
