"""Checks of device memory: limits, what a context costs, and PyTorch's allocator."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dovetail.executor.live.first_contact.bench import (
    Bench,
    Client,
    CouldNotTryError,
    error_told,
)
from dovetail.executor.live.first_contact.seen import Checking, Seen
from dovetail.executor.live.mps.client import MEMORY
from dovetail.executor.live.pools.gpu import RESERVE_MIB

OUT_OF_MEMORY: Final = 2
"""CUDA_ERROR_OUT_OF_MEMORY (cuda.h)."""

LIMIT_MIB: Final = 4096
TORCH: Final = Path(__file__).with_name("torch_client.py")


def limits(bench: Bench) -> Seen:
    """Take more than the limit allows: by ordinal, by UUID, and in two processes of one daemon."""
    daemon = bench.daemon()
    found = {}
    for how, key in (("ordinal 0", "0"), ("UUID", bench.gpu.uuid)):
        limit = f"{key}={LIMIT_MIB}M"
        client = daemon.client("allocate", f"mib={2 * LIMIT_MIB}", memory=limit, name=f"by {how}")
        found[how] = _taken(client)
    pair = [
        daemon.client("allocate", f"mib={LIMIT_MIB // 2}", memory=f"0={LIMIT_MIB}M", name=name)
        for name in ("one of two", "other of two")
    ]
    per_process = [_taken(client) for client in pair]
    bound = all(one["error"] == OUT_OF_MEMORY for one in found.values())
    apart = all(one["error"] is None for one in per_process)
    told = (
        f"with {LIMIT_MIB} MiB: "
        + "; ".join(
            f"by {how} {one['taken_mib']:.0f} MiB were had, then {one['told']}; "
            f"cuMemGetInfo showed {one['total_mib']:.0f} MiB in all, {one['free_mib']:.0f} free"
            for how, one in found.items()
        )
        + f"; two processes that took half of it each: {'both had it' if apart else 'refused'}"
    )
    return Seen(told, bound and apart, {**found, "pair": per_process})


def context_cost(bench: Bench) -> Seen:
    """Read the device's memory before, with one client, and with two."""
    empty = _used(bench)
    daemon = bench.daemon()
    used = []
    for _ in range(2):
        daemon.client("idle").ready()
        used.append(_used(bench))
    server, own = daemon.server(), bench.nvml.processes(bench.gpu.uuid)
    first, second = used[0] - empty, used[1] - used[0]
    told = (
        f"the first client and the server take {first:.0f} MiB, the second client {second:.0f}; "
        f"NVML tells {_mib(own.get(server))} of the server; {empty:.0f} MiB were used before"
    )
    values = {"empty_mib": empty, "first_mib": first, "second_mib": second}
    return Seen(told, max(second, first - second) <= RESERVE_MIB, values)


def expandable(bench: Bench) -> Seen:
    """Let PyTorch take more than the limit allows, with ``expandable_segments``."""
    client = _torch(bench, "expandable", {MEMORY: f"0={LIMIT_MIB}M"}, f"mib={2 * LIMIT_MIB}")
    event = client.wait("taken", "error", within_s=90)
    if event is None or event["event"] == "error":
        raise CouldNotTryError(f"PyTorch: {event['name'] if event else 'nothing was said'}")
    told = f"{event['mib']} of {2 * LIMIT_MIB} MiB were had; {event['told']}"
    return Seen(told, event["mib"] <= LIMIT_MIB, dict(event))


def allocator(bench: Bench) -> Seen:
    """See whether PyTorch hands a block of NaN out again for the product that follows."""
    client = _torch(bench, "reuse", {})
    event = client.wait("reuse", "error", within_s=90)
    if event is None or event["event"] == "error":
        raise CouldNotTryError(f"PyTorch: {event['name'] if event else 'nothing was said'}")
    told = f"the same block in {event['same']} of {event['of']} products"
    return Seen(told, event["same"] == event["of"], dict(event))


def _torch(bench: Bench, mode: str, more: dict[str, str], *options: str) -> Client:
    if bench.python is None:
        raise CouldNotTryError("no Python with PyTorch was named (--python)")
    daemon = bench.daemon()
    environment = daemon.environment()
    program = [bench.python, "-I", str(TORCH)]
    return bench.start("PyTorch", [mode, *options], {**environment, **more}, program=program)


def _taken(client: Client) -> dict[str, float | str | None]:
    ready = client.ready()
    end = client.wait("memory", "error")
    taken = client.wait("taken", within_s=0.0)
    if end is None or taken is None:
        raise CouldNotTryError(f"{client.name} did not say what it had")
    failed = end["event"] == "error"
    return {
        "taken_mib": float(taken["mib"]),
        "error": int(end["number"]) if failed else None,
        "told": error_told(end if failed else None),
        "total_mib": float(ready["total_mib"]),
        "free_mib": float(ready["free_mib"]),
    }


def _used(bench: Bench) -> float:
    used = bench.nvml.read(bench.gpu.uuid).used_mib
    if used is None:
        raise CouldNotTryError("NVML does not tell the memory in use")
    bench.notes.line("nvml", f"{used:.1f} MiB in use")
    return used


def _mib(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.0f} MiB"


CHECKS: Final = (
    Checking(
        "memory-limit",
        (9,),
        "the memory limit by ordinal and UUID, per process; what cuMemGetInfo shows",
        "0=<MiB>M binds every process on its own",
        limits,
        90,
        8,
    ),
    Checking(
        "context-cost",
        (10,),
        "what a context and the server take beside a job's own memory",
        f"{RESERVE_MIB:.0f} MiB are enough",
        context_cost,
        60,
        4,
    ),
    Checking(
        "expandable",
        (9,),
        "the memory limit with PyTorch's expandable_segments",
        "it binds",
        expandable,
        120,
        12,
    ),
    Checking(
        "allocator",
        (8,),
        "whether PyTorch's allocator hands the block of NaN out again",
        "it does",
        allocator,
        120,
        10,
    ),
)
