"""The advice as one self-contained HTML page.

The page needs no network and no other file; its script only sorts tables. Every text from the
records is escaped by the template engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from dovetail.advising.advice import LIKELY, Partners
from dovetail.advising.words import UNTESTED, AdviceWords
from dovetail.advising.work import CASES
from dovetail.instances._frames import frame
from dovetail.instances._version import VERSION
from dovetail.instances.reading.contents import write_text
from dovetail.toolkit.charts import Chart, bars
from dovetail.toolkit.pages import Cell, Head, PageTable, environment
from dovetail.toolkit.wording import enumerated, gib, number

_MOST_TYPED: Final = 20
"""Sets with their settings."""


def _trust(words: AdviceWords) -> list[str]:
    """Return what is proven and what is assumed, in sentences."""
    grouping = "grouping" if words.in_sets else "pairing"
    proven = (
        "Proven is the number of GPUs at the busiest moment, for the numbers in this page: no "
        f"other {grouping} of the same jobs needs fewer."
        if words.advice.moment.proven
        else "Proven is that fewer GPUs than the bound at the busiest moment cannot be enough, for "
        "the numbers in this page."
    )
    untested = [f"{UNTESTED} Measure a set before you rely on it."] if words.in_sets else []
    return [f"{proven} The numbers themselves are estimates.", _LAW, *untested, *_ASSUMED]


_LAW: Final = (
    "No pair was measured. Slowdowns follow from the time for which a job keeps its GPU busy, by a "
    "law that was fitted on 35 pairs at halves of the SMs of one H200. Tried there on workloads "
    "that were left out, 93 % of the slowdowns were within the case low if gpu_util is recorded, "
    "83 % if SM and DRAM activity are, where the range is narrower."
)

_ASSUMED: Final = (
    "The case low is the cautious one: peaks of memory with a margin, the busiest 5 % of the time, "
    "the worst of what is unknown, no service beside a job. What is worth doing in the case low is "
    "worth doing.",
    "Tail latencies are in no record that is read here. A service with a p99 promise has to be "
    "measured beside its co-runner before it is promised anything.",
    "Jobs start when they started, and nothing is moved. Nobody knows how long a job will run when "
    "it is decided where it starts. Jobs on several GPUs share all of them with the same other "
    "jobs or with none.",
    "SM shares (MPS) are limits, and some shares compute wrong with some versions of cuBLAS: check "
    "yours with dovetail doctor --splits before you set them.",
    "To try it: run the first jobs of the list together for an hour with the numbers of this page, "
    "and compare the time of an iteration with that alone. Dovetail's live mode does this by "
    "itself.",
)


class TypedJob(NamedTuple):
    """What to type in for one of the jobs that share, or for several alike."""

    title: str
    settings: list[tuple[str, str]]


class TypedSet(NamedTuple):
    """What to type in for jobs that share."""

    title: str
    jobs: tuple[TypedJob, ...]


def write_report(words: AdviceWords, page: str) -> None:
    """Write the page to a file."""
    write_text(page, report_html(words))


def report_html(words: AdviceWords) -> str:
    """Return an advice as an HTML page."""
    advice = words.advice
    return (
        environment("dovetail.advising")
        .get_template("advice.html.j2")
        .render(
            files=enumerated(list(words.files)),
            headline=words.headline(),
            verdict=[words.proof(), "All figures of sharing are estimates."],
            tiles=list(_tiles(words)),
            replay_text=_replay_text(words),
            saving_chart=_chart(words),
            saving=_savings(words),
            partners=_partners(words),
            pairs=[_typed(words, each) for each in advice.partners[:_MOST_TYPED]],
            obstacles=_obstacles(words),
            to_measure=_to_measure(words),
            trust=_trust(words),
            partners_text=_partners_text(words),
            in_sets=words.in_sets,
            facts=list(words.facts())[1:],
            left_out=words.left_out(),
            version=VERSION,
        )
    )


def _tiles(words: AdviceWords) -> Iterator[tuple[str, str, str]]:
    advice, moment = words.advice, words.advice.moment
    if advice.replayed:
        likely = advice.replayed[LIKELY].gpu_hours
        low, high = advice.replayed[0].gpu_hours, advice.replayed[-1].gpu_hours
        yield (
            "GPU hours",
            f"{likely:,.0f}",
            f"of {advice.gpu_hours:,.0f}; {high:,.0f} to {low:,.0f}",
        )
    needed = f"of {moment.gpus_now:,.0f}; {moment.gpus[-1]:,} to {moment.gpus[0]:,}"
    yield "GPUs needed at the busiest moment", f"{moment.gpus[LIKELY]:,}", needed
    if advice.replayed and words.cost is not None:
        saved = (advice.gpu_hours - advice.replayed[LIKELY].gpu_hours) * words.cost
        yield "cost saved", f"{saved:,.0f}", f"at {words.cost:g} a GPU hour"
    yield "slowdown that owners accept", f"{advice.limit:.2f}", ""


def _partners_text(words: AdviceWords) -> str:
    if words.in_sets:
        return (
            f"Sets of up to {words.advice.most} jobs in the case likely: first those that may "
            "share in every case, then those that save most. The slowdown is a range over all jobs "
            "of the set: from the case high to the case low."
        )
    return (
        "Pairs of kinds of work in the case likely: first those that may share in every case, then "
        "those that share longest. The slowdown of each job is a range: from the case high to the "
        "case low."
    )


def _replay_text(words: AdviceWords) -> str:
    if words.advice.replayed:
        beside = (
            "running jobs if all of them may share"
            if words.in_sets
            else "a running job if the two may share at halves of the SMs"
        )
        return (
            f"The same jobs once more: each starts when it did, beside {beside}, else on idle "
            "GPUs. Low, likely and high are three assumptions of what jobs need, named by what "
            "sharing saves."
        )
    return (
        "The records have no times: all jobs are taken to run at once. Low, likely and high are "
        "three assumptions of what jobs need, named by what sharing saves."
    )


def _chart(words: AdviceWords) -> Chart:
    advice = words.advice
    names = ["now", *CASES]
    if advice.replayed:
        values = [advice.gpu_hours, *(each.gpu_hours for each in advice.replayed)]
        label = "GPU hours"
    else:
        values = [advice.moment.gpus_now, *map(float, advice.moment.gpus)]
        label = "GPUs at the busiest moment"
    rows = ({"case": name, label: value} for name, value in zip(names, values, strict=True))
    data = frame(rows, ["case", label])
    return bars("saving", label, data, label, best="likely")


def _savings(words: AdviceWords) -> PageTable:
    heads = [Head("", number=False), Head("now"), *(Head(name, "sharing") for name in CASES)]
    rows: list[list[str | Cell]] = [
        [row[0], row[1], *map(_figure, row[2:])] for row in words.saving_rows()
    ]
    return PageTable("what sharing saves", heads, rows)


def _figure(text: str) -> Cell:
    """Return a figure with its change below it."""
    figure, _, change = text.partition(" (")
    return Cell(figure, (change.rstrip(")"),) if change else ())


def _partners(words: AdviceWords) -> PageTable:
    shared = [
        Head("sure", "in every case", number=False),
        Head("shared", "GPU h"),
        Head("at the peak", "GPUs"),
    ]
    if words.in_sets:
        heads = [
            Head("jobs on a GPU", "SMs and memory of each", number=False),
            Head("slowdown"),
            *shared,
        ]
        rows = [_set_row(words, each) for each in words.advice.partners]
        return PageTable("sets of kinds of work that could share", heads, rows)
    heads = [
        Head("job", number=False),
        Head("with", number=False),
        Head("SMs", "%"),
        Head("memory", "GiB"),
        Head("slowdown", "of the job"),
        Head("slowdown", "of the other"),
        *shared,
    ]
    rows = [_pair_row(words, each) for each in words.advice.partners]
    return PageTable("pairs of kinds of work that could share", heads, rows)


def _pair_row(words: AdviceWords, each: Partners) -> list[str | Cell]:
    work = words.advice.work
    return [
        *(Cell(work.label(kind), (number(int(work.gpus[kind]), "GPU"),)) for kind in each.kinds),
        "/".join(map(str, each.split)),
        " + ".join(map(gib, each.memory_mib)),
        *(f"{low:.2f} to {high:.2f}" for low, high in each.slowdown),
        *_shared(each),
    ]


def _set_row(words: AdviceWords, each: Partners) -> list[str | Cell]:
    names, needs = (
        words.together(each),
        [f"{each.split[k]} %, {gib(each.memory_mib[k])} GiB" for k in each.alike],
    )
    others = (f"+ {name}: {need}" for name, need in zip(names[1:], needs[1:], strict=True))
    low = min(low for low, _ in each.slowdown)
    high = max(high for _, high in each.slowdown)
    return [
        Cell(names[0], (needs[0], *others)),
        f"{low:.2f} to {high:.2f}",
        *_shared(each),
    ]


def _shared(each: Partners) -> tuple[str, str, str]:
    return "yes" if each.sure else "", f"{each.shared_hours:,.0f}", f"{each.at_once:,}"


def _typed(words: AdviceWords, partners: Partners) -> TypedSet:
    labels = words.together(partners)
    places = list(partners.alike) if words.in_sets else range(len(partners.kinds))
    jobs = (
        TypedJob(
            f"{label}: {partners.split[k]} % of the SMs, {gib(partners.limit_mib[k])} GiB",
            words.typed(partners, k),
        )
        for k, label in zip(places, labels, strict=True)
    )
    return TypedSet(" with ".join(labels), tuple(jobs))


def _obstacles(words: AdviceWords) -> PageTable:
    heads = [Head("reason", number=False), Head("work"), Head("kinds", number=False)]
    rows = [
        [words.reason(each), words.amount(each), words.named(each.kinds)]
        for each in words.advice.obstacles
    ]
    return PageTable("kinds of work that may share with none", heads, rows)


def _to_measure(words: AdviceWords) -> PageTable:
    heads = [Head("measure", number=False), Head("work"), Head("kinds", number=False)]
    rows = [
        [each.what, words.hours(each.gpu_hours, each.kinds), words.named(each.kinds)]
        for each in words.advice.to_measure
    ]
    return PageTable("measurements that would narrow the range", heads, rows)
