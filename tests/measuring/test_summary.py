import json
from io import StringIO

import pytest
from rich.console import Console

from dovetail.instances._record import IDLE
from dovetail.measuring.campaign import Load
from dovetail.measuring.dataset import measured_data
from dovetail.measuring.ledger import Contents
from dovetail.measuring.results import Latency, WorkerSeat
from dovetail.measuring.summary import Summary, summary
from dovetail.measuring.tables import requests_table
from tests.measuring.made import campaign, machine, pace, result

OF = campaign(
    {"measure": "solos"},
    {"measure": "pairs", "repeats": 2},
    {"measure": "pairs", "mode": "time-sliced"},
    workloads=["conv", "lstm"],
)


def turns(*names):
    return [WorkerSeat(name, "time-sliced") for name in names]


RESULTS = (
    result(["conv"], [0.02], power_w=400.0, window_s=5.0),
    result(["lstm"], [0.01]),
    result(["conv", "lstm"], [0.03, 0.02], stage=1),
    result(["conv", "conv"], stage=1, status="out-of-memory"),
    result(["conv", "conv"], stage=1, status="out-of-memory", repeat=1),
    result(["lstm", "lstm"], stage=1, status="failed", reason="signal 9"),
    result(["lstm", "lstm"], [0.02, 0.02], stage=1, repeat=1, disturbed_by=[7]),
    result(turns("conv"), [0.02], stage=5),
    result(turns("lstm"), [0.01], stage=5),
    result(turns("conv", "lstm"), [0.04, 0.02], stage=2),
)


def found(*results):
    return summary(Contents((machine(campaign()),), OF, results))


def test_the_cover_of_each_stage_counts_experiments():
    solos, pairs, by_turns = found(*RESULTS).stages
    assert (solos.planned, solos.done, solos.left) == (2, 2, 0)
    # 3 pairs twice: one done, two out of memory, one failed, one disturbed, one not tried. The
    # failed and the disturbed are tried again.
    assert (pairs.planned, pairs.done, pairs.out_of_memory) == (6, 1, 2)
    assert (pairs.failed, pairs.disturbed, pairs.refused, pairs.left) == (1, 1, 0, 3)
    assert (by_turns.planned, by_turns.done, by_turns.left) == (3, 1, 2)


def test_combined_throughput_and_its_ratio_to_time_slicing():
    mps, by_turns = found(*RESULTS).sharing
    # MPS: 1 / 1.5 + 1 / 2 = 7/6; by turns 1/2 + 1/2 = 1.
    assert mps.combined == pytest.approx(7 / 6)
    assert by_turns.combined == pytest.approx(1)
    assert (mps.over_time_sliced, mps.compared) == (pytest.approx(7 / 6), 1)
    assert (by_turns.over_time_sliced, by_turns.compared) == (None, 0)
    assert (mps.pairs, mps.out_of_memory) == (1, 1)


def test_energy_of_an_iteration_alone_is_power_over_rate():
    conv = next(one for one in found(*RESULTS).alone if one.workload == "conv")
    assert conv.energy_j == pytest.approx(400 * 0.02)


def test_energy_of_a_request_counts_the_idle_gaps():
    latency = Latency(p50_s=0.02, p99_s=0.09, mean_s=0.03, requests=50)
    paces = [pace(0.001).replace(iterations=50, latency=latency)]
    (one,) = found(result(["conv"], paces=paces, power_w=100.0, window_s=5.0)).alone
    # 100 W over 5 s for 50 requests.
    assert one.energy_j == pytest.approx(10)
    assert (one.p50_s, one.p99_s) == (0.02, 0.09)


def test_tails_alone_and_over_partners_with_the_worst_named():
    def served(name, p99_s):
        latency = Latency(p50_s=0.01, p99_s=p99_s, mean_s=0.01, requests=50)
        return pace(0.01, latency=latency) if name == "lstm" else pace(0.02)

    def pair(names, p99_s, first=False):
        seats = [WorkerSeat(name, "mps", None, first and name == "lstm") for name in names]
        return result(seats, paces=[served(name, p99_s) for name in names], stage=1)

    results = [
        result(["conv"], [0.02]),
        result(["lstm"], paces=[served("lstm", 0.02)]),
        result(["tiny"], [0.02]),
        pair(["conv", "lstm"], 0.08),
        pair(["lstm", "tiny"], 0.05),
        pair(["conv", "lstm"], 0.03, first=True),
    ]
    tails = found(*results).tails
    assert [(t.partners, t.preferred, t.worst) for t in tails] == [
        (0, False, None),
        (2, False, "conv"),
        (1, True, "conv"),
    ]
    assert [t.p99_s for t in tails] == pytest.approx([0.02, 0.065, 0.03])
    assert tails[1].worst_s == pytest.approx(0.08)


def test_repeats_are_averaged_as_times():
    (one,) = found(result(["conv"], [0.01]), result(["conv"], [0.03], repeat=1)).alone
    assert (one.repeats, one.iterations_s) == (2, pytest.approx(50))


def test_windows_that_were_not_stable_in_time_are_counted():
    one = found(result(["conv"], paces=[pace(0.01, 0.02)]), *RESULTS[1:3])
    assert (one.windows, one.unstable, one.relative_error) == (3, 1, 0.01)


def test_nothing_measured_yet_is_reported_too():
    nothing = found()
    assert (nothing.noise, nothing.alone, nothing.sharing) == (None, (), ())
    assert [one.left for one in nothing.stages] == [2, 6, 3]


def test_as_data_it_is_read_back():
    one = found(*RESULTS)
    assert Summary.from_data(json.loads(json.dumps(one.to_data()))) == one


SERVED = {"latency": ["conv"], "load": 0.5}
SERVICE = campaign(
    {"measure": "solos"},
    {"measure": "solos", **SERVED},
    {"measure": "pairs", **SERVED},
    {"measure": "pairs", "mode": "isolated", **SERVED},
    workloads=["conv", "lstm"],
)
LOAD = Load(part=0.5)
AT_LOAD = WorkerSeat("conv", "mps", load=LOAD)
BESIDE = WorkerSeat("lstm", "mps")
FIRST = WorkerSeat("conv", "isolated", load=LOAD)
BEHIND = WorkerSeat("lstm", "isolated", IDLE)


def answering(time_s, p99_s):
    tail = Latency(p50_s=p99_s / 2, p99_s=p99_s, mean_s=p99_s / 2, requests=125, requests_s=25.0)
    return pace(time_s, latency=tail).replace(iterations=125)


def served(seats, *paces, **fields):
    return result(seats, window_s=5.0, loads=[s.load for s in seats], paces=paces, **fields)


SERVICE_RESULTS = (
    result(["conv"], [0.02]),
    result(["lstm"], [0.01]),
    served([AT_LOAD], answering(0.02, 0.03), stage=1),
    served([BESIDE, AT_LOAD], pace(0.0125), answering(0.04, 0.12), stage=2),
    served(
        [FIRST, BEHIND],
        *(answering(0.02, 0.033), pace(0.02)),
        stage=3,
        launches={"announced": 500},
        escapes={"gemm": "no PTX", "relu": "no PTX"},
    ),
)


def test_requests_alone_under_mps_and_isolated_are_one_table():
    of = Contents((machine(SERVICE),), SERVICE, SERVICE_RESULTS)
    found = summary(of)
    assert [one.workload for one in found.alone] == ["conv", "lstm"]
    assert found.together == found.sharing == found.tails == ()
    alone, together, isolated = found.requests
    assert (alone.beside, alone.growth, alone.due_s, alone.answered_s) == ((), 1, 25, 25)
    assert (together.mode, together.growth) == ("mps", pytest.approx(4))
    assert together.others_part == (pytest.approx(0.8),)
    assert (isolated.mode, isolated.growth) == ("isolated", pytest.approx(1.1))
    assert (isolated.other_shares, isolated.others_part) == ((IDLE,), (pytest.approx(0.5),))
    assert isolated.intercepted_s == 100
    console = Console(file=StringIO(), width=80, highlight=False)
    console.print(requests_table(found.requests))
    assert [line.rstrip() for line in console.file.getvalue().splitlines()] == [
        "requests to conv at load 0.5: 25 a second, at random times",
        "                     answered   p50  p99  p99 over  others     of",
        "beside  setting            /s    ms   ms     alone      /s  alone",
        "─" * 65,
        "alone   MPS, no cap        25    15   30      1.00       -      -",
        "lstm    MPS, no cap        25    60  120      4.00      80   0.80",
        "lstm    isolated           25  16.5   33      1.10      50   0.50",
    ]
    assert found.escapes == {"no PTX": 2}


def test_isolated_pairs_are_rows_with_the_share_idle():
    data = measured_data(Contents((machine(SERVICE),), SERVICE, SERVICE_RESULTS), "mine")
    assert data.left_out == ()
    together, isolated = data.data.measurements
    assert together.workloads == ("lstm", "conv-load0.5")
    assert (together.mode, together.share) == ("mps", None)
    assert together.p99 == (None, pytest.approx(4))
    assert isolated.workloads == ("conv-load0.5", "lstm")
    assert (isolated.mode, isolated.share) == ("mps", (None, IDLE))
    assert isolated.slowdown == (pytest.approx(1), pytest.approx(2))
    assert isolated.p99 == (pytest.approx(1.1), None)


def test_requests_that_queue_up_are_no_row():
    *rest, isolated = SERVICE_RESULTS
    first, other = isolated.paces
    # 25 a second for 5 s are due.
    behind = isolated.replace(paces=(first.replace(iterations=70), other))
    data = measured_data(Contents((machine(SERVICE),), SERVICE, (*rest, behind)), "mine")
    assert len(data.data.measurements) == 1
    (left_out,) = data.left_out
    assert left_out.why == "conv answered 70 of 125 requests, so they queue up"
    # Three standard deviations may be chance.
    some = isolated.replace(paces=(first.replace(iterations=80), other))
    data = measured_data(Contents((machine(SERVICE),), SERVICE, (*rest, some)), "mine")
    assert data.left_out == ()
