"""Which policy is best at which metrics, and where Dovetail's and the user's own are not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from dovetail.simulating import wording
from dovetail.simulating.groups import PolicyRuns, RunsByPolicy, leads
from dovetail.toolkit.wording import enumerated

DECISIVE: Final = (
    "jct_mean_s",
    "jct_p99_s",
    "makespan_s",
    "queueing_mean_s",
    "violation_rate",
    "gpu_time_h",
    "fairness_p90",
    "energy_kwh",
)
"""The metrics of a verdict."""

KEPT: Final = 0.99
"""A policy that keeps this fraction of its gSLAs is treated as keeping them."""

_MOST_NAMES: Final = 3


def headline(groups: RunsByPolicy) -> str:
    """Return the policy with the shortest mean completion time, its lead, and the gSLAs it breaks.

    If it breaks gSLAs, the headline also names the best policy that keeps its gSLAs.
    """
    metric = "jct_mean_s"
    best, every = groups.best(metric), len(groups.every)
    if not best:
        only = groups.every[0]
        mean = wording.measured(metric, only.mean(metric))
        if every == 1:
            return f"{only.policy}: jobs take {mean} from arrival to end on average"
        every_one = "Both" if every == 2 else f"All {every}"
        return f"{every_one} policies have the same mean job completion time: {mean}"
    mean = wording.measured(metric, best[0].mean(metric))
    names = enumerated(_first([group.policy for group in best]))
    has = "has" if len(best) == 1 else "have"
    return (
        f"{names} {has} the shortest mean job completion time of {every} policies: "
        f"{mean}{_against_baseline(groups, best[0])}{_at_the_expense(groups, best)}"
    )


def verdict(groups: RunsByPolicy) -> list[str]:
    """Return the sentences that follow the headline."""
    return [*_winners(groups), *_ours(groups), *_caution(groups)]


def named(groups: Sequence[PolicyRuns]) -> str:
    """Return the names of policies, with a remark if one breaks gSLAs."""
    names = [f"{group.policy}{_remark(group)}" for group in groups]
    return enumerated(_first(names))


def _first(names: list[str]) -> list[str]:
    if len(names) <= _MOST_NAMES:
        return names
    return [*names[: _MOST_NAMES - 1], f"{len(names) - _MOST_NAMES + 1} others"]


def _keeps(group: PolicyRuns) -> bool:
    """Return whether a policy keeps its gSLAs; True if there are none."""
    return not group.mean("violation_rate") > 1 - KEPT


def _broken(group: PolicyRuns) -> str:
    return f"breaks {wording.measured('violation_rate', group.mean('violation_rate'))} of its gSLAs"


def _remark(group: PolicyRuns) -> str:
    return "" if _keeps(group) else f" ({_broken(group)})"


def _at_the_expense(groups: RunsByPolicy, best: Sequence[PolicyRuns]) -> str:
    """Return which of the best policies break gSLAs, and the best policy that keeps them."""
    guilty = [group for group in best if not _keeps(group)]
    if not guilty:
        return ""
    names = [f"{group.policy} " if len(best) > 1 else "" for group in guilty]
    broken = [f"{name}{_broken(group)}" for name, group in zip(names, guilty, strict=True)]
    but = f", but {enumerated(_first(broken))}"
    keepers = [group for group in groups.every if _keeps(group)]
    kept = f"{100 * KEPT:g} %"
    if not keepers:
        return f"{but}; no policy keeps {kept} of its own"
    honest = min(keepers, key=lambda group: group.mean("jct_mean_s"))
    mean = wording.measured("jct_mean_s", honest.mean("jct_mean_s"))
    against = _against_baseline(groups, honest)
    return f"{but}; among those that keep {kept}, {honest.policy} is the best: {mean}{against}"


def _against_baseline(groups: RunsByPolicy, best: PolicyRuns) -> str:
    base = groups.baseline
    if base is best:
        return ", the baseline itself"
    ratio = best.mean("jct_mean_s") / base.mean("jct_mean_s")
    return f", {wording.apart(ratio)} than {base.policy}"


def _winners(groups: RunsByPolicy) -> Iterator[str]:
    """Yield a sentence for each set of policies that is best at some metrics."""
    won: dict[str, list[str]] = {}
    for metric in DECISIVE:
        best = groups.best(metric)
        if best:
            names = named(best)
            won.setdefault(names, []).append(wording.label(metric))
    for names, metrics in sorted(won.items(), key=lambda item: -len(item[1])):
        yield f"Best at {enumerated(metrics)}: {names}."


def _ours(groups: RunsByPolicy) -> Iterator[str]:
    """Yield where Dovetail's and the user's own policies are not the best, and their ranks."""
    for group in groups.outstanding if len(groups.every) > 1 else ():
        behind = [text for metric in DECISIVE if (text := _behind(groups, group, metric))]
        if behind:
            yield f"{group.policy} is not the best at {enumerated(behind)}.{_rank(groups, group)}"
        else:
            yield f"No policy is better than {group.policy} at any of these."


def _rank(groups: RunsByPolicy, group: PolicyRuns) -> str:
    """Return the rank of a policy by mean completion time; empty if it is the first."""
    means = [each.mean("jct_mean_s") for each in groups.every]
    better = sum(mean < group.mean("jct_mean_s") * (1 - 1e-9) for mean in means)
    return f" By mean JCT it is number {better + 1} of {len(means)}." if better else ""


def _behind(groups: RunsByPolicy, group: PolicyRuns, metric: str) -> str:
    best = groups.best(metric)
    if not best or group in best or not math.isfinite(group.mean(metric)):
        return ""
    first, seeds = leads(best[0], group, metric)
    part = f", better in {first} of {seeds} seeds" if seeds > 1 else ""
    mine, theirs = (wording.measured(metric, each.mean(metric)) for each in (group, best[0]))
    return f"{wording.label(metric)} ({mine}; {best[0].policy} {theirs}{part})"


def _caution(groups: RunsByPolicy) -> Iterator[str]:
    """Yield the limits of these figures."""
    best = groups.best("jct_mean_s")
    if groups.left_out:
        names = enumerated([str(seed) for seed in groups.left_out])
        which = f"Seed {names} is" if len(groups.left_out) == 1 else f"Seeds {names} are"
        yield f"{which} left out: not every policy has a run of it."
    if len(groups.seeds) == 1:
        yield "One seed only: small differences may be chance."
        return
    if len(best) != 1:
        return
    others = [group for group in groups.every if group is not best[0]]
    second = min(others, key=lambda group: _or_last(group.mean("jct_mean_s")))
    first, seeds = leads(best[0], second, "jct_mean_s")
    gap = wording.apart(best[0].mean("jct_mean_s") / second.mean("jct_mean_s"))
    yield (
        f"In mean JCT {named(best)} beats the next, {named([second])}, in {first} of {seeds} "
        f"seeds ({gap} on average)."
    )


def _or_last(value: float) -> float:
    return value if math.isfinite(value) else math.inf
