"""``dovetail dataset show``: a summary of a data set."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from dovetail.data.made_data import COUNTED, counted_data, listed_counts
from dovetail.toolkit.commands import DATA, Command
from dovetail.toolkit.wording import number

if TYPE_CHECKING:
    from dovetail.instances.datasets.dataset import DataSet
    from dovetail.instances.datasets.records import Measurement, SoloProfile

SHOW: Final = Command("show", "Summarise a data set.", "dovetail.data.dataset_show:show", (DATA,))

_FIGURES: Final = (
    *("throughput", "power_w", "memory_mib", "memory_mean_mib"),
    *("duration_s", "latency_p99_s"),
)
_UNCAPPED: Final = "uncapped"
_WIDTH: Final = 78


def show(options: Namespace) -> int:
    """Print a summary of a data set."""
    from dovetail.instances.datasets.files import read_dataset
    from dovetail.instances.files import write_data

    data = read_dataset(options.data)
    summary = {
        "name": data.name,
        **counted_data(data),
        "families": len(set(data.families.values())),
        "fingerprint": data.fingerprint,
        "gpu_models": {model: _of_model(data, model) for model in data.gpu_models},
    }
    if options.json:
        write_data(summary, "-")
        return 0
    print(f"{data.name}: {listed_counts(summary, COUNTED)}")
    print(f"fingerprint {data.fingerprint}")
    for model in data.gpu_models:
        print("\n".join([model, *(f"  {line}" for line in _lines(_of_model(data, model)))]))
    return 0


def _of_model(data: DataSet, gpu_model: str) -> dict[str, object]:
    """Return a summary of one GPU model."""
    profiles = [profile for profile in data.profiles if profile.gpu_model == gpu_model]
    measured = [found for found in data.measurements if found.gpu_model == gpu_model]
    return {
        "workloads": len(_workloads(profiles, measured)),
        "profiles": _by_share(profiles),
        "pairs": _ran(found for found in measured if len(found.workloads) == 2),
        "sets": _ran(found for found in measured if len(found.workloads) > 2),
        "known": _known(profiles),
    }


def _workloads(profiles: Iterable[SoloProfile], measured: Iterable[Measurement]) -> set[str]:
    alone = {profile.workload for profile in profiles}
    return alone.union(*(found.workloads for found in measured))


def _by_share(profiles: Iterable[SoloProfile]) -> dict[str, int]:
    shares = Counter(profile.share for profile in profiles)
    capped = sorted(share for share in shares if share is not None)
    uncapped = {_UNCAPPED: shares[None]} if None in shares else {}
    return uncapped | {str(share): shares[share] for share in capped}


def _ran(measured: Iterable[Measurement]) -> dict[str, int]:
    """Return how many were measured and failed, and how many of these took turns, if any."""
    found = list(measured)
    failed = Counter(one.failed for one in found)
    turns = sum(one.mode == "time_sliced" for one in found)
    by_turns = {"time_sliced": turns} if turns else {}
    return {"measured": failed[False], "failed": failed[True], **by_turns}


def _known(profiles: Iterable[SoloProfile]) -> dict[str, int]:
    """Return the number of workloads with each figure, without figures that none has."""
    from dovetail.instances.metrics import METRICS

    known: dict[str, set[str]] = {name: set() for name in (*METRICS, *_FIGURES)}
    for profile in profiles:
        names = {*(profile.metrics.to_data() if profile.metrics else ())}
        names |= {name for name in _FIGURES if getattr(profile, name) is not None}
        for name in names:
            known[name].add(profile.workload)
    return {name: len(workloads) for name, workloads in known.items() if workloads}


def _lines(summary: dict[str, object]) -> Iterator[str]:
    from textwrap import wrap

    yield f"workloads  {summary['workloads']}"
    for name in ("profiles", "pairs", "sets", "known"):
        counts = summary[name]
        if isinstance(counts, dict) and any(counts.values()):
            text = f"{name:<9}  {_TEXTS[name](counts)}"
            yield from wrap(text, _WIDTH, subsequent_indent=" " * 11)


def _profiles_text(counts: Mapping[str, int]) -> str:
    return ", ".join(
        f"{count} {share}" if share == _UNCAPPED else f"{count} at {share} %"
        for share, count in counts.items()
    )


def _ran_text(counts: Mapping[str, int]) -> str:
    names = {"time_sliced": "of these time-sliced"}
    return ", ".join(f"{count} {names.get(outcome, outcome)}" for outcome, count in counts.items())


def _known_text(counts: Mapping[str, int]) -> str:
    """Return the figures, grouped by the number of workloads that have them."""
    by_count: dict[int, list[str]] = {}
    for name, count in counts.items():
        by_count.setdefault(count, []).append(name)
    parts = (
        f"{', '.join(names)} of {number(count, 'workload')}" for count, names in by_count.items()
    )
    return "; ".join(parts)


_TEXTS: Mapping[str, Callable[[Mapping[str, int]], str]] = {
    "profiles": _profiles_text,
    "pairs": _ran_text,
    "sets": _ran_text,
    "known": _known_text,
}
