"""The serving plan as one self-contained HTML page, like that of an advice."""

from __future__ import annotations

from typing import Final, NamedTuple

from dovetail.advising.serving.shared import SERVER_CASES
from dovetail.advising.serving.words import ServingWords
from dovetail.instances._frames import frame
from dovetail.instances._version import VERSION
from dovetail.instances.reading.contents import write_text
from dovetail.toolkit.charts import Chart, bars
from dovetail.toolkit.pages import Cell, Head, PageTable, environment
from dovetail.toolkit.wording import gib

_MOST_TYPED: Final = 50
"""GPUs with what to type in."""

_TRUST: Final = (
    "Proven is the number of GPUs, for the numbers in the file and the slowdowns of the case: the "
    "plan was checked by code of its own.",
    "A server that is slowed by a factor does everything in that many times as long. So its "
    "latencies at a rate of requests are those measured alone at that many times the rate, times "
    "the factor. Nothing else is assumed of queues and batches, but that latencies rise with the "
    "load, and bend upwards between two measured loads.",
    "A split at which the servers were measured together, under loads as high or higher, comes "
    "before any estimate. Where a promise was broken under loads as low, the split is not taken.",
    "The case low takes bounds of the slowdowns: with half of the SMs, prefill may take twice as "
    "long, and the co-runners work at the same time. The case likely takes the slowdowns to be "
    "expected. The plan on this page is that of the case low.",
    "Slowdowns that were not measured follow from a law that was fitted on one H200. No server of "
    "a language model was among its workloads: measure a pair before you promise its latencies.",
    "SM shares (MPS) are limits, and some shares compute wrong with some versions of cuBLAS: check "
    "yours with dovetail doctor --splits before you set them.",
)


class TypedServer(NamedTuple):
    """What to type in for a server."""

    title: str
    settings: list[tuple[str, str]]


class TypedGpu(NamedTuple):
    """What to type in for the servers of a GPU, in the order of starting."""

    title: str
    servers: tuple[TypedServer, ...]


def write_serving_report(words: ServingWords, page: str) -> None:
    """Write the page to a file."""
    write_text(page, serving_html(words))


def serving_html(words: ServingWords) -> str:
    """Return a plan as an HTML page."""
    return (
        environment("dovetail.advising")
        .get_template("serving.html.j2")
        .render(
            file=words.path,
            headline=words.headline(),
            tiles=_tiles(words),
            verdict=[words.proof()],
            facts=list(words.facts())[1:],
            saving_chart=_chart(words),
            saving=_savings(words),
            layout=_layout(words),
            gpus=_typed(words),
            obstacles=words.obstacles(),
            to_measure=words.to_measure(),
            trust=_TRUST,
            notes=words.notes(),
            version=VERSION,
        )
    )


def _tiles(words: ServingWords) -> list[tuple[str, str, str]]:
    plan = words.plan
    likely = len(plan.fleets["likely"].gpus)
    tiles = [("GPUs", f"{len(words.fleet.gpus):,}", f"of {plan.alone:,}; likely {likely:,}")]
    cost = plan.gpu.cost_per_hour
    if cost is not None:
        alone = f"of {plan.alone * cost:,.2f}"
        tiles.append(("cost an hour", f"{len(words.fleet.gpus) * cost:,.2f}", alone))
    return tiles


def _chart(words: ServingWords) -> Chart:
    plan = words.plan
    values = [plan.alone, *(len(plan.fleets[case].gpus) for case in SERVER_CASES)]
    names = ("one server a GPU", *SERVER_CASES)
    rows = ({"case": name, "GPUs": value} for name, value in zip(names, values, strict=True))
    return bars("saving", "GPUs", frame(rows, ["case", "GPUs"]), "GPUs", best="low")


def _savings(words: ServingWords) -> PageTable:
    heads = [
        Head("", number=False),
        Head("one server a GPU"),
        *(Head(case, "sharing") for case in SERVER_CASES),
    ]
    rows: list[list[str | Cell]] = [list(row) for row in words.saving_rows()]
    return PageTable("GPUs without sharing and with it", heads, rows)


def _layout(words: ServingWords) -> PageTable:
    heads = [
        Head("GPU", number=False),
        Head("server", number=False),
        Head("load"),
        Head("SMs", "%"),
        Head("memory", "GiB"),
        Head("p99", "ms, of promised", number=False),
        Head("basis", number=False),
    ]
    rows: list[list[str | Cell]] = [list(row) for row in words.layout_rows()]
    return PageTable("servers on GPUs, in the order of starting", heads, rows)


def _typed(words: ServingWords) -> list[TypedGpu]:
    found = []
    for g, seats in enumerate(words.fleet.gpus[:_MOST_TYPED]):
        if len(seats) < 2:
            break
        servers = tuple(
            TypedServer(
                f"{k + 1}. {seat.name}: {seat.share} % of the SMs, "
                f"{gib(seat.level.memory_mib)} GiB",
                [("start", words.command(seat)), *words.settings_of(seat, seats).items()],
            )
            for k, seat in enumerate(seats)
        )
        names = " with ".join(seat.name for seat in seats)
        found.append(TypedGpu(f"GPU {g + 1}: {names}", servers))
    return found
