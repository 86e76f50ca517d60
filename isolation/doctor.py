"""The doctor's check of the prerequisites of isolation."""

from __future__ import annotations

from ctypes.util import find_library

from dovetail.executor.doctor.commands import pip_install, system_install
from dovetail.executor.doctor.finding import Finding, lacking
from dovetail.isolation.assemble import find_ptxas
from dovetail.isolation.interception import find_compiler


def isolation() -> Finding:
    """Check the prerequisites of isolation: an assembler, a compiler and the driver."""
    ptxas, compiler = find_ptxas(), find_compiler()
    if ptxas is None:
        remedy, fix = "pip install './dovetail[isolation]'", pip_install("nvidia-cuda-nvcc-cu12")
        return lacking("no ptxas: no pair is isolated", remedy, fix)
    if compiler is None:
        remedy = "install gcc or clang: it builds the library that intercepts launches"
        return lacking("no C compiler: no pair is isolated", remedy, *system_install("gcc", "gcc"))
    if find_library("cuda") is None:
        return lacking("no libcuda.so.1: no pair is isolated", "install NVIDIA's driver")
    return Finding(f"pairs can be isolated: {ptxas}, {compiler}, libcuda.so.1")
