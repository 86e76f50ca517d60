"""Checks of how fast clients are beside others: caps, priorities, turns without MPS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dovetail.executor.live.first_contact.bench import Bench, Client, CouldNotTryError, rates
from dovetail.executor.live.first_contact.seen import Checking, Seen

WINDOW_S: Final = 4.0
SETTLE_S: Final = 0.3


def cap(bench: Bench) -> Seen:
    """Compare a client at 50 % alone with one at 100 %, and with two at 50 % each."""
    daemon = bench.daemon()
    whole, work = _alone(daemon.client("busy", name="alone"))
    capped = _together([daemon.client("busy", *work, share=50, name="alone at 50 %")])[0]
    pair = _together(
        [
            daemon.client("busy", *work, share=50, name=f"{name} at 50 %")
            for name in ("one", "other")
        ]
    )
    told = (
        f"kernels a second: {whole:.0f} alone, {capped:.0f} alone at 50 %, "
        f"{pair[0]:.0f} and {pair[1]:.0f} together at 50 %"
    )
    kept = 0.4 <= capped / whole <= 0.6 and min(pair) >= 0.8 * capped
    return Seen(told, kept, {"alone": whole, "alone_at_50": capped, "pair_at_50": pair})


def priority(bench: Bench) -> Seen:
    """Compare two equal busy clients with two of which one has the normal priority."""
    daemon = bench.daemon()
    whole, work = _alone(daemon.client("busy", name="alone"))
    equal = _together(
        [daemon.client("busy", *work, name=f"{name} at 1") for name in ("one", "two")]
    )
    first = daemon.client("busy", *work, latency=True, name="at 0")
    second = daemon.client("busy", *work, name="at 1 beside it")
    mixed = _together([first, second])
    told = (
        f"kernels a second: {whole:.0f} alone, {equal[0]:.0f} and {equal[1]:.0f} at equal "
        f"priorities; priority 0 {mixed[0]:.0f} beside priority 1 {mixed[1]:.0f}"
    )
    unharmed = mixed[0] >= 0.95 * min(equal)
    return Seen(told, unharmed, {"alone": whole, "equal": equal, "mixed": mixed})


def turns(bench: Bench) -> Seen:
    """Compare two processes that take turns without MPS with two under MPS."""
    whole, work = _alone(bench.alone("busy", name="without MPS"))
    turned = _together([bench.alone("busy", *work, name=f"{name} by turns") for name in "ab"])
    daemon = bench.daemon()
    under = _together([daemon.client("busy", *work, name=f"{name} under MPS") for name in "ab"])
    told = (
        f"kernels a second: {whole:.0f} alone without MPS; {turned[0]:.0f} and {turned[1]:.0f} by "
        f"turns; {under[0]:.0f} and {under[1]:.0f} under MPS"
    )
    values = {"alone": whole, "turns": turned, "mps": under}
    return Seen(told, 0.7 <= sum(turned) / whole <= 1.1, values)


def _alone(client: Client) -> tuple[float, tuple[str, str]]:
    """Return the pace of a client alone, and the work that others must have to be compared."""
    begun = client.wait("begun", "error")
    if begun is None or begun["event"] == "error":
        raise CouldNotTryError(f"{client.name} did not come to its kernels")
    # Under a cap the client sees fewer SMs, and would queue fewer blocks of its own accord.
    return _together([client])[0], (f"work={begun['work']}", f"blocks={begun['blocks']}")


def _together(clients: Sequence[Client]) -> list[float]:
    for client in clients:
        client.ready()
        if client.wait("steps", "error") is None:
            raise CouldNotTryError(f"{client.name} finished no kernel")
    rates(clients, SETTLE_S)
    found = rates(clients, WINDOW_S)
    for client in clients:
        client.leave()
    if not all(found):
        raise CouldNotTryError("a busy client stood still")
    return found


CHECKS: Final = (
    Checking(
        "cap",
        (6,),
        "rates at 100 and 50 %, and of two clients at 50 %",
        "a cap halves the rate of a kernel that fills the GPU; two halves are hardly slower",
        cap,
        90,
        18,
    ),
    Checking(
        "priority",
        (11,),
        "rates of two busy clients at priority 0 and 1",
        "a hint, nothing more: the preferred one is not slower than in an equal pair",
        priority,
        90,
        18,
    ),
    Checking(
        "turns",
        (27,),
        "rates of two processes by turns without MPS, and under MPS",
        "by turns they share one GPU's rate",
        turns,
        90,
        18,
    ),
)
