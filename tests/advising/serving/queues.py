"""A simulated server of a language model that batches continuously."""

from __future__ import annotations

import heapq
import random


def latencies(rate: float, slowdown: float, seed: int, requests: int = 6_000):
    """Return the p99 of the time to the first token and of a token after it, in milliseconds.

    Requests come at random times (Poisson). A step takes 8 ms, 0.35 ms for each request in the
    batch, and 25 ms for each prompt that enters; all of it times the slowdown. At most 32 requests
    are in the batch, and others wait in order.
    """
    draw = random.Random(seed)
    clock, waiting = 0.0, []
    for _ in range(requests):
        clock += draw.expovariate(rate)
        waiting.append((clock, draw.randint(40, 160)))
    waiting.reverse()
    batch, now, first, each = [], 0.0, [], []
    while waiting or batch:
        if not batch and waiting[-1][0] > now:
            now = waiting[-1][0]
        entered = []
        while waiting and waiting[-1][0] <= now and len(batch) + len(entered) < 32:
            entered.append(waiting.pop())
        step_ms = 8 + 0.35 * (len(batch) + len(entered)) + 25 * len(entered)
        now += slowdown * step_ms / 1e3
        for came, tokens in entered:
            first.append(1e3 * (now - came))
            heapq.heappush(batch, [now, tokens, tokens])
        kept = []
        for begun, left, tokens in batch:
            if left > 1:
                kept.append([begun, left - 1, tokens])
            else:
                each.append(1e3 * (now - begun) / tokens)
        batch = kept
    return p99(first), p99(each)


def p99(values):
    """Return the 99th percentile."""
    return sorted(values)[int(0.99 * len(values))]
