"""Results of ``vllm bench serve --save-result`` and of SGLang's ``bench_serving``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dovetail.instances._record import shown
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.files import read_data

if TYPE_CHECKING:
    from typing_extensions import TypeIs

_TAILS: Final = {
    "ttft": ("p99_ttft_ms",),
    "tpot": ("p99_tpot_ms",),
    "itl": ("p99_itl_ms",),
    "e2el": ("p99_e2el_ms", "p99_e2e_latency_ms"),
}
"""The names of each latency in results, of vLLM and of SGLang."""

_LEAST_KEPT: Final = 0.8
"""The part of the requests that a server must keep up with; short runs end with a rest."""


def result_data(path: Path) -> dict[str, object]:
    """Return the load and the latencies of a result, with the field names of a run.

    Requests at a finite rate are an open loop. With a limit on how many are sent at once and no
    finite rate they are a closed loop.

    Raises
    ------
    InputError
        When the file cannot be read or is no such result.
    """
    data, source = read_data(path), source_name(path)
    if not isinstance(data, dict):
        raise InputError("must be a result of vllm bench serve --save-result", "", source)
    fields = {tail: name for tail, names in _TAILS.items() for name in names if name in data}
    if not fields:
        rule = "must have p99_ttft_ms or another 99th percentile (--metric-percentiles 99)"
        raise InputError(rule, "", source)
    for name in fields.values():
        if not _is_number(data[name]) or data[name] <= 0:
            raise InputError(f"must be > 0, got {shown(data[name])}", name, source)
    if failed := data.get("failed"):
        rule = "must be a run in which no request failed"
        raise InputError(f"{rule}, got {shown(failed)}", "failed", source)
    return {**_load(data, source), "p99_ms": {tail: data[name] for tail, name in fields.items()}}


def _load(data: dict[object, object], source: str) -> dict[str, object]:
    rate, clients = data.get("request_rate"), data.get("max_concurrency")
    if isinstance(rate, str) and rate.lower() in ("inf", "infinity"):
        rate = math.inf
    if _is_number(rate) and 0 < rate < math.inf:
        if clients is not None:
            rule = "must not be given with a finite request_rate: requests that wait to be sent are"
            raise InputError(f"{rule} not timed, got {shown(clients)}", "max_concurrency", source)
        got = data.get("request_throughput")
        if _is_number(got) and got < _LEAST_KEPT * rate:
            rule = f"must be near request_rate ({rate:g}), or latencies grow with the run"
            raise InputError(f"{rule}, got {got:g}", "request_throughput", source)
        return {"requests_per_s": float(rate)}
    if _is_number(clients) and clients > 0:
        return {"concurrency": float(clients)}
    rule = "must be a finite rate, or max_concurrency must be given"
    raise InputError(f"{rule}, got {shown(rate)}", "request_rate", source)


def _is_number(value: object) -> TypeIs[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
