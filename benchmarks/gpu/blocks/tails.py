"""Turnaround, throughput and tails of a latency-critical process beside a best-effort one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from blocks.setting import Setting
from blocks.sharing import PYTORCH, WAYS, Machine, Pair, Record

_HEADING: Final = (
    f"{'way':10} {'beside':8} {'p50 us':>9} {'p99 us':>9} {'max us':>10} {'requests':>9} "
    f"{'other/s':>9} {'of alone':>8}"
)
_SERVICE: Final = (20, 50.0)
"""Kernels of a request, and microseconds of each: they fill the GPU."""

_SHORT: Final = (1, 20.0)
_HALF: Final = 0.5
_SHORT_RATE: Final = 200.0


class _Table:
    """Records of a step, kept as they come."""

    def __init__(self, setting: Setting, step: str) -> None:
        self._setting, self._step = setting, step
        self._records: list[Record] = []

    def add(self, **record: Any) -> Record:  # noqa: ANN401
        """Keep a record, and return it."""
        self._records.append(record)
        self._setting.keep(self._step, self._records)
        return record


def turnaround(setting: Setting) -> Iterator[str]:
    """Yield a table: how long a short request takes beside kernels of several lengths."""
    table, machine = _Table(setting, "turnaround"), Machine(setting)
    kinds = setting.of(("10 us", "50 us", "200 us", "1 ms", "10 ms"), ("50 us",))
    rate, seconds = setting.of((_SHORT_RATE, 3.0), (20.0, 0.5))
    yield _HEADING

    def lines(way: str, pair: Pair) -> Iterator[str]:
        pair.join()
        for kind in (None, *kinds):
            yield _beside(table, way, kind, pair, _SHORT, rate, seconds, {})

    ways = setting.of(("MPS", "isolated", "unproven"), ("isolated",))
    yield from _ways(setting, table, machine, ways, (), lines)


def throughput(setting: Setting) -> Iterator[str]:
    """Yield a table: iterations a second of trainings alone and beside requests at half load."""
    table, machine = _Table(setting, "throughput"), Machine(setting)
    full = ("10 us", "50 us", "200 us", "1 ms", "mixed", "graph")
    kinds = setting.of(full, ("50 us", "graph"))
    seconds = setting.of(0.8, 0.3)
    plain: dict[str, float] = {}
    yield (
        f"{'way':10} {'training':8} {'alone/s':>9} {'of MPS':>7} {'joined':>7} "
        f"{'beside':>7} {'p50 us':>9} {'p99 us':>9}"
    )

    def lines(way: str, pair: Pair) -> Iterator[str]:
        every = [*kinds, *([PYTORCH] if machine.has_pytorch else [])]
        rates: dict[str, dict[str, float]] = {}
        for kind in every:
            pair.begin(kind)
            rates[kind] = {"alone": pair.rate(kind, lambda: pair.rest(seconds))}
            plain.setdefault(kind, rates[kind]["alone"])
        pair.begin(None)
        pair.join()
        load = _load(setting, pair)
        for kind in every:
            pair.begin(kind)
            rates[kind]["joined"] = pair.rate(kind, lambda: pair.rest(seconds))
            told: Record = {}
            rates[kind]["beside"] = pair.rate(
                kind, lambda told=told: told.update(pair.serve(*_SERVICE, load, 2 * seconds))
            )
            one = table.add(way=way, kind=kind, **rates[kind], plain=plain[kind], **told)
            shares = [rates[kind][name] / max(plain[kind], 1e-9) for name in rates[kind]]
            yield (
                f"{way:10} {kind:8} {rates[kind]['alone']:9.1f} "
                + " ".join(f"{share:7.3f}" for share in shares)
                + f" {_number(one, 'p50')} {_number(one, 'p99')}"
            )
        pair.begin(None)

    pytorch = (PYTORCH,) if machine.has_pytorch else ()
    ways = setting.of(("MPS", "isolated", "unproven"), ("MPS", "isolated"))
    yield from _ways(setting, table, machine, ways, pytorch, lines)


def p99(setting: Setting) -> Iterator[str]:
    """Yield a table: latencies of requests at half load beside trainings, by way of sharing."""
    table, machine = _Table(setting, "p99"), Machine(setting)
    kinds = setting.of(("mixed", "1 ms"), ("50 us",))
    seconds = setting.of(3.0, 0.5)
    alone: dict[str, float] = {}
    load: list[float] = []
    yield _HEADING

    def lines(way: str, pair: Pair) -> Iterator[str]:
        every = [*kinds, *([PYTORCH] if machine.has_pytorch else [])]
        for kind in every if not alone else ():
            pair.begin(kind)
            alone[kind] = pair.rate(kind, lambda: pair.rest(seconds / 3))
        pair.begin(None)
        pair.join()
        # The load is that of the service alone, the same for all ways.
        load.extend([] if load else [_load(setting, pair)])
        for kind in (None, *every):
            yield _beside(table, way, kind, pair, _SERVICE, load[0], seconds, alone)

    pytorch = (PYTORCH,) if machine.has_pytorch else ()
    ways = setting.of(tuple(WAYS), ("isolated",))
    yield from _ways(setting, table, machine, ways, pytorch, lines)


def _ways(
    setting: Setting,
    table: _Table,
    machine: Machine,
    ways: Sequence[str],
    pytorch: Sequence[str],
    lines: Any,  # noqa: ANN401
) -> Iterator[str]:
    """Yield the lines of each way; a way that fails has one that says so."""
    try:
        for way in ways:
            try:
                with machine.pair(WAYS[way], pytorch=bool(pytorch)) as pair:
                    yield from lines(way, pair)
                    if status := pair.status():
                        table.add(way=way, scheduler=status)
            except Exception as error:
                table.add(way=way, failed=f"{type(error).__name__}: {error}")
                yield f"{way:10} failed: {error}"[:80]
    finally:
        machine.close()


def _load(setting: Setting, pair: Pair) -> float:
    """Return the requests a second that keep the service busy for half of the time."""
    service: float = pair.serve(*_SERVICE, None, 0.0)["service"]
    return _HALF / service if not setting.stand_in else min(_HALF / service, 20.0)


def _beside(
    table: _Table,
    way: str,
    kind: str | None,
    pair: Pair,
    request: tuple[int, float],
    load: float,
    seconds: float,
    alone: Mapping[str, float],
) -> str:
    """Serve requests beside iterations of a kind, and return the row."""
    pair.begin(kind)
    told: Record = {}

    def serve() -> None:
        told.update(pair.serve(*request, load, seconds))

    if kind is None:
        serve()
    else:
        told["rate"] = pair.rate(kind, serve)
        told |= {"of_alone": told["rate"] / alone[kind]} if alone.get(kind) else {}
        pair.begin(None)
    one = table.add(way=way, beside=kind, load=load, **told)
    return (
        f"{way:10} {kind or 'nothing':8} {_number(one, 'p50')} {_number(one, 'p99')} "
        f"{_number(one, 'max', 10)} {one['requests']:9} {_number(one, 'rate')} "
        f"{_number(one, 'of_alone', 8, 3)}" + (" OVERLOADED" if one["overloaded"] else "")
    )


def _number(one: Mapping[str, Any], name: str, width: int = 9, digits: int = 1) -> str:
    return f"{one[name]:{width}.{digits}f}" if name in one else f"{'-':>{width}}"
