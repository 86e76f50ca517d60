"""What the steps have to show, beside what they have seen: assumed costs, and what is promised.

Costs are those with which isolation was simulated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.isolation.simulated.costs import COSTS
from dovetail.isolation.scheduler import BOUND_S

Records = Sequence[Mapping[str, Any]]

_FORMS: Final = ("slices", "workers", "stopped")
_STAND_BEHIND: Final = ("gated stream", "cuStreamSynchronize")
_LOAD: Final = 0.5


class Claim(NamedTuple):
    """A claim, and what was seen.

    Attributes
    ----------
    step : str
        The step that looks at it.
    text : str
        What was measured, with its unit.
    limit : float
        What it must not exceed, or, if ``at_least``, must reach.
    seen : float or None
        What was seen; None if it could not be measured.
    at_least : bool
        Whether the limit is a lower one.
    """

    step: str
    text: str
    limit: float
    seen: float | None
    at_least: bool = False

    @property
    def holds(self) -> bool | None:
        """Whether it holds; None if it could not be measured."""
        if self.seen is None:
            return None
        return self.seen >= self.limit if self.at_least else self.seen <= self.limit


def claims(out: Path, steps: Sequence[str]) -> Iterator[Claim]:
    """Yield the claims of those steps that have results in a folder."""
    for step in steps:
        path = out / f"{step}.json"
        if path.exists():
            results = json.loads(path.read_text("utf-8"))["results"]
            for text, limit, look, at_least in _LOOKS[step]:
                try:
                    seen = float(look(results))
                except (KeyError, ValueError, IndexError, ZeroDivisionError):
                    seen = None
                yield Claim(step, text, limit, seen, at_least)


def table(found: Sequence[Claim]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"{'must show':52} {'limit':>9} {'seen':>9}"
    for one in found:
        seen = "-" if one.seen is None else f"{one.seen:.2f}"
        verdict = {True: "holds", False: "NOT", None: "?"}[one.holds]
        limit = f"{'>=' if one.at_least else '<='}{one.limit:.4g}"
        yield f"{f'{one.step}: {one.text}'[:52]:52} {limit:>9} {seen:>9} {verdict}"


# What is looked at.


def _wrong(records: Records) -> float:
    runs = [run for one in records for form in _FORMS for run in one.get(form, {}).values()]
    if not runs:
        raise ValueError("nothing ran")
    return sum(not run["right"] for run in runs)


def _failed(records: Records) -> float:
    return sum("failed" in one for one in records)


def _cost(part: str, what: str, column: str) -> Callable[[Mapping[str, Records]], float]:
    """Return what looks up a cost, under MPS if it was measured there."""

    def look(parts: Mapping[str, Records]) -> float:
        for name in (f"{part}, MPS", part):
            for one in parts.get(name, ()):
                if one.get("what") == what:
                    return float(one[column])
        raise KeyError(what)

    return look


def _beyond_echo(what: str) -> Callable[[Mapping[str, Records]], float]:
    """Return what looks up a time without the ways to the GPU and back."""

    def look(parts: Mapping[str, Records]) -> float:
        echo = _cost("first blocks", "a running kernel answers a store", "p50")(parts)
        return _cost("first blocks", what, "p50")(parts) - echo

    return look


def _workers(column: str) -> Callable[[Mapping[str, Records]], float]:
    """Return what looks up the least of workers of short blocks with a flag in device memory."""

    def look(parts: Mapping[str, Records]) -> float:
        found = [one for one in parts["stops"] if one.get("what", "").startswith("short blocks")]
        return min(
            float(one[column]) for one in found if one["what"].endswith("device") and column in one
        )

    return look


def _slower_workers(parts: Mapping[str, Records]) -> float:
    """Return how much longer than the whole kernel workers of short blocks take, at least."""
    return _workers("all")(parts) / _cost("stops", "short blocks: whole", "p50")(parts)


def _standing(parts: Mapping[str, Records]) -> float:
    """Return how many other streams stood, at most, with the driver's own number of queues."""
    found = [one["stand"] for name in ("streams", "streams, MPS") for one in parts.get(name, ())]
    return float(max(found))


def _waiting(parts: Mapping[str, Records]) -> float:
    """Return how many calls on other streams, or none, wait for a closed gate."""
    found = [one for name in ("waits", "waits, MPS") for one in parts.get(name, ())]
    if not found:
        raise ValueError("nothing was called")
    others = [one for one in found if not any(name in one["what"] for name in _STAND_BEHIND)]
    return len({one["what"] for one in others if one.get("waits")})


def _room(parts: Mapping[str, Records]) -> float:
    """Return for how many launches, each with a wait, there is room."""
    return _cost("room", "the same, a wait before each", "most")(parts)


def _beside_process(parts: Mapping[str, Records]) -> float:
    """Return how much a launch is slowed by another process at a closed gate."""
    beside = _cost("processes", "launch to its first block", "p50")(parts)
    return beside / _cost("first blocks", "launch to its first block, no gate", "p50")(parts)


def _added(kind: str) -> Callable[[Records], float]:
    """Return what says how much a request's p99 is above that alone beside kernels of a kind."""

    def look(records: Records) -> float:
        p99 = {(one["way"], one["beside"]): one["p99"] for one in records if "p99" in one}
        return float(p99["isolated", kind] - p99["MPS", None])

    return look


def _kept(column: str, of: float, kinds: Sequence[str] = ()) -> Callable[[Records], float]:
    """Return what says which part of their pace trainings keep, at least."""

    def look(records: Records) -> float:
        return min(
            float(one[column] / one["plain"] / of)
            for one in records
            if one["way"] == "isolated" and column in one and (not kinds or one["kind"] in kinds)
        )

    return look


def _tail(way: str) -> Callable[[Records], float]:
    """Return what says by how many per cent trainings make a p99 longer, at most."""

    def look(records: Records) -> float:
        found = [one for one in records if "p99" in one]
        alone = min(one["p99"] for one in found if one["beside"] is None)
        beside = [one["p99"] for one in found if one["way"] == way and one["beside"]]
        return 100 * float(max(beside) / alone - 1)

    return look


_SHORT: Final = ("10 us", "50 us")
_LOOKS: Final[Mapping[str, Sequence[tuple[str, float, Callable[[Any], float], bool]]]] = {
    "right": (
        ("runs that leave other bits", 0, _wrong, False),
        ("kernels that failed", 0, _failed, False),
    ),
    "costs": (
        (
            "wait at an open gate, us",
            1e6 * COSTS.wait_s,
            _cost("gpu", "empty: wait at an open gate", "added"),
            False,
        ),
        ("event, us", 1e6 * COSTS.event_s, _cost("gpu", "empty: event before", "added"), False),
        (
            "opening to first block, us",
            1e6 * COSTS.open_s,
            _beyond_echo("gate opened by host to first block"),
            False,
        ),
        (
            "closing to last block begun, us",
            1e6 * COSTS.close_s,
            _beyond_echo("gate closed to the last block begun"),
            False,
        ),
        ("workers of short blocks, times whole", 1 + COSTS.worker_slowed, _slower_workers, False),
        (
            "their end seen after the flag, us",
            1e6 * (COSTS.flag_s + COSTS.seen_s),
            _workers("p50"),
            False,
        ),
        (
            "launch to first block, us",
            1e6 * COSTS.launch_s[1],
            _cost("first blocks", "launch to its first block, no gate", "p50"),
            False,
        ),
        (
            "write behind a kernel seen, p99 us",
            1e6 * COSTS.seen_99_s,
            _cost("first blocks", "kernel's last store to the write behind", "p99"),
            False,
        ),
        ("other streams that stand", 0, _standing, False),
        ("other calls that wait at a closed gate", 0, _waiting, False),
        ("launches behind a closed gate", 500, _room, True),
        ("launch beside a process at a gate, ratio", 1.1, _beside_process, False),
    ),
    "turnaround": (
        ("added to p99 beside 10 us, us", 1e6 * BOUND_S, _added("10 us"), False),
        ("added to p99 beside 50 us, us", 1e6 * BOUND_S, _added("50 us"), False),
        ("added to p99 beside 200 us, us", 1e6 * BOUND_S, _added("200 us"), False),
    ),
    "throughput": (
        ("pace of 10 to 50 us, no requests", 0.95, _kept("alone", 1, _SHORT), True),
        ("the same, half load, of half", 0.85, _kept("beside", _LOAD, _SHORT), True),
        ("pace of all trainings, no requests", 0.95, _kept("alone", 1), True),
        ("the same, service joined, idle", 0.95, _kept("joined", 1), True),
    ),
    "p99": (
        ("longer p99 beside trainings, %", 7.2, _tail("isolated"), False),
    ),
}  # fmt: skip
