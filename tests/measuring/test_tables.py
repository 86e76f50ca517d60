from io import StringIO

from rich.console import Console

from dovetail.measuring.ledger import Contents
from dovetail.measuring.results import Latency, WorkerSeat
from dovetail.measuring.summary import summary
from dovetail.measuring.tables import campaign_view
from tests.measuring.made import campaign, machine, pace, result

OF = campaign(
    {"measure": "solos", "repeats": 2},
    {"measure": "pairs"},
    {"measure": "pairs", "mode": "time-sliced"},
    {"measure": "pairs", "shares": [50, 50]},
    workloads=["conv", "lstm", "bursty-[inference]"],
)
ANSWERS = pace(0.004, latency=Latency(p50_s=0.006, p99_s=0.025, mean_s=0.008, requests=300))
SLICED = [WorkerSeat(name, "time-sliced") for name in ("conv", "lstm")]
RESULTS = (
    result(["conv"], [0.02], power_w=412.4, window_s=4.0),
    result(["conv"], [0.0204], repeat=1, power_w=412.4, window_s=4.0),
    result(["lstm"], [0.01]),
    result(["bursty-[inference]"], paces=[ANSWERS], power_w=200.0, window_s=4.0),
    result(["conv", "lstm"], [0.0303, 0.02], stage=1),
    result(["conv", "conv"], stage=1, status="out-of-memory"),
    result(["conv", "bursty-[inference]"], paces=[pace(0.0303), ANSWERS], stage=1),
    result(SLICED[:1], [0.02], stage=9),
    result(SLICED[1:], [0.01], stage=9),
    result(SLICED, [0.04, 0.02], stage=2),
    result([WorkerSeat("conv", "mps", 50), WorkerSeat("lstm", "mps", 50)], stage=3,
           status="refused",
           reason="50 % computed wrong products"),
)  # fmt: skip


def printed(*results, width=100, **fields):
    of = Contents((machine(campaign(), **fields),), OF, results)
    console = Console(file=StringIO(), width=width, highlight=False)
    console.print(campaign_view(summary(of)))
    return console.file.getvalue()


def row(text, *starts):
    """Return the remaining cells of the only line that begins with ``starts``."""
    (found,) = (line for line in text.splitlines() if line.split()[: len(starts)] == list(starts))
    return found.split()[len(starts) :]


def test_the_tables_show_what_was_found():
    text = printed(*RESULTS)
    # conv: 1 / 0.0202 = 49.5 a second; 412.4 W * 0.0202 s = 8.33 J.
    assert row(text, "conv", "MPS,", "no", "cap") == ["49.5", "412", "8.33", "-", "-", "-", "2"]
    # 1000 requests in 4 s at 200 W: 0.8 J each.
    assert row(text, "bursty-[inference]", "MPS,", "no", "cap", "250") == [
        "200", "0.8", "-", "6", "25", "1",
    ]  # fmt: skip
    # Alone 0.0202 s, together 0.0303 s: 1.5; lstm 2: 2/3 + 1/2 = 1.17, by turns 1/1.98 + 1/2.
    assert row(text, "conv", "+", "lstm", "MPS,", "no", "cap") == [
        "1.50", "/", "2.00", "1.17", "-", "-", "1",
    ]  # fmt: skip
    assert "11 results" not in text
    assert "1 x refused: 50 % computed wrong products" in text
    assert "2.00 / 2.00" in text
    assert "windows  0 of 9 ended before they were stable to 1.00 %" in text
    assert row(text, "0", "solos,", "MPS,", "no", "cap") == [
        "6", "4", "-", "-", "-", "-", "2",
    ]  # fmt: skip


def test_tail_latencies_have_a_table():
    text = printed(*RESULTS)
    assert row(text, "bursty-[inference]", "MPS,", "no", "cap", "alone") == ["-", "25", "25"]
    assert row(text, "bursty-[inference]", "MPS,", "no", "cap", "with") == [
        "conv",
        "1",
        "25",
        "25",
    ]


def test_every_line_fits_the_width_and_brackets_stay():
    for width in (100, 60):
        text = printed(*RESULTS, width=width)
        assert max(map(len, text.splitlines())) <= width
        assert "bursty-[inference]" in text


def test_a_stand_in_is_reported_before_anything_else():
    text = printed(*RESULTS, stand_in="CPU cores")
    assert text.startswith("NO GPU: CPU cores\n")
    assert "NO GPU" not in printed(*RESULTS)


def test_a_stage_names_its_jobs_and_the_preferred_ones():
    of = campaign({"measure": "pairs", "workloads": ["tiny"], "first": ["tiny"]})
    console = Console(file=StringIO(), width=100)
    console.print(campaign_view(summary(Contents((machine(of),), of, ()))))
    (first, folded) = console.file.getvalue().splitlines()[-2:]
    assert first.startswith("0  pairs of tiny, MPS, no cap; preferred:")
    assert folded.strip() == "tiny"


def test_a_campaign_without_results_shows_what_is_left():
    text = printed()
    assert "noise" not in text
    assert row(text, "1", "pairs,", "MPS,", "no", "cap") == ["6", "-", "-", "-", "-", "-", "6"]


def test_what_workloads_launch_has_a_table_or_a_line():
    kernels = {
        "profiler": "torch.profiler",
        "launches": 235.5,
        "metrics": {"kernel_mean_s": 24.5e-6, "kernel_weighted_s": 61e-6, "kernel_full": 0.425},
        "iterations": 40,
        "cost_s": 3.14,
    }
    without = {**kernels, "metrics": {"kernel_mean_s": 1e-6, "kernel_weighted_s": 2e-6}}
    text = printed(
        result(["conv"], [0.02], kernels=kernels),
        result(["lstm"], [0.01], kernels_lack="needs PyTorch"),
        result(["bursty-[inference]"], [0.01], kernels=without),
    )
    assert row(text, "conv", "235.5") == ["24.5", "61", "42.50", "%", "3.1"]
    assert row(text, "bursty-[inference]", "235.5") == ["1", "2", "-", "3.1"]
    assert "kernels of lstm: needs PyTorch" in text
    assert "kernels" not in printed(*RESULTS)
