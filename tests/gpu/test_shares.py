"""Shares: the SMs that a client sees, and their effect on its pace."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from dovetail.executor.gpus.splits import reported_sms
from dovetail.executor.mps.processes import PERCENTAGE

from .bench import alone, together


@pytest.mark.check("never fewer at a higher one, all at 100 %", usual_s=40)
def test_shares(bench, daemon):
    """SMs that a client sees at every percentage."""

    def sms_at(share):
        client = daemon.client("report", name=f"at {share} %", more={PERCENTAGE: str(share)})
        found = client.ready()["sms"]
        client.leave()
        return found

    daemon.client("idle", name="holder").ready()
    with ThreadPoolExecutor(4) as four:
        sms = dict(enumerate(four.map(sms_at, range(1, 101)), 1))
    whole = bench.gpu.sms or sms[100]
    bench.saw(
        **{f"SMs_at_{share}_%": sms[share] for share in (1, 10, 25, 50, 75, 90, 100)},
        of=whole,
        unlike_reports_of_an_H200=[k for k in sms if sms[k] != reported_sms(k, whole)],
        every={str(share): count for share, count in sms.items()},
    )
    assert all(one <= other for one, other in pairwise(sms.values()))
    assert sms[1] < sms[100] == whole


@pytest.mark.check(
    "a cap halves the rate of a kernel that fills the GPU; two halves are hardly slower",
    usual_s=18,
)
def test_cap(bench, daemon):
    """Kernels a second at 100 and 50 %, and of two clients at 50 %."""

    def capped(name):
        return daemon.client("busy", *work, share=50, name=f"{name} at 50 %")

    whole, work = alone(daemon.client("busy", name="alone"))
    (half,) = together(capped("alone"))
    pair = together(capped("one"), capped("other"))
    bench.saw(alone=whole, alone_at_50=half, pair_at_50=pair)
    assert 0.4 <= half / whole <= 0.6
    assert min(pair) >= 0.8 * half
