"""Instances and plans with odd names and numbers, to check that files keep them."""

from __future__ import annotations

from hypothesis import strategies as st

from dovetail.instances.instance import Instance
from dovetail.instances.plan import Plan

TRAPS = (
    *("yes", "no", "on", "off", "y", "N", "true", "False", "null", "NULL", "~", "010", "1:30"),
    *("1e5", "1.1e9", "0x10", "0o17", "1_000", ".inf", ".nan", "-", "- a", "a: b", "a #b", "#a"),
    *("2026-01-31", "<<", "=", "!a", "&a", "*a", "[a]", "{a", "'a'", '"a"', "\\", "a\\n", "%a"),
    *(" a ", "é", "名", "\U0001f600", "a\xa0", "\ue000", "?", "? a", "|", ">", "@", "`", ",", "a,"),
)
"""Texts that a careless reader or writer of YAML takes for something else."""

_UNSEEN = "".join(map(chr, (0x61C, 0x200B, 0x200E, 0x200F, *range(0x2028, 0x202F))))
_UNSEEN += "".join(map(chr, (*range(0x2060, 0x2070), 0xFEFF, 0xFFFE, 0xFFFF)))
_IN_NAMES = st.characters(exclude_categories=("Cc", "Cs"), exclude_characters=_UNSEEN)
names = st.sampled_from(TRAPS) | st.text(_IN_NAMES, min_size=1, max_size=200).filter(str.strip)
texts = st.sampled_from(TRAPS) | st.text(st.characters(exclude_categories=("Cs",)))
positive = st.floats(min_value=1e-9, max_value=1e15)
slowdowns = st.floats(min_value=0.95, max_value=20)
shares = st.integers(1, 100)


def _maybe(strategy):
    return st.none() | strategy


def _workload():
    return st.fixed_dictionaries(
        {"memory_mib": positive | st.integers(0, 10**15)},
        optional={
            "throughput": st.dictionaries(shares, positive, max_size=3),
            "speed": st.dictionaries(names, positive, max_size=3),
            "power_w": _maybe(positive),
            "stages_s": _maybe(st.lists(positive, min_size=2, max_size=4)),
            "metrics": st.fixed_dictionaries({}, optional={"sm_active": st.floats(0, 1)}),
        },
    )


@st.composite
def odd_instances(draw):
    """Draw an instance with names and numbers that are hard to write and read back."""
    workloads = draw(st.dictionaries(names, _workload(), min_size=1, max_size=3))
    ids = draw(st.lists(names, max_size=4, unique=True))
    some = st.sampled_from(list(workloads))
    jobs = [
        {"id": name, "workload": draw(some), "weight": draw(positive), "gsla": draw(_gsla)}
        for name in ids
    ]
    pair = [draw(some), draw(some)]
    numbers = [draw(slowdowns)] * 2
    entries = [{"pair": pair, "slowdown": draw(_maybe(st.just(numbers)))}]
    node = {"id": draw(names), "gpu_count": 2, "gpu": {"model": draw(names), "memory_mib": 1}}
    cluster = {"nodes": [node], "shares": draw(st.lists(shares, unique=True, max_size=3))}
    return Instance.from_data(
        {
            "name": draw(names),
            "cluster": cluster,
            "workloads": workloads,
            "jobs": jobs,
            "slowdowns": draw(st.just([]) | st.just(entries)),
        }
    )


@st.composite
def odd_plans(draw):
    """Draw a plan with names, texts and numbers that are hard to write and read back."""
    gpus = draw(st.lists(names, min_size=1, max_size=3))
    assignment = {"job": draw(names), "gpus": gpus, "start": draw(_maybe(st.booleans()))}
    value = draw(st.floats(allow_nan=False, allow_infinity=False))
    return Plan.from_data(
        {
            "objective": {"name": "jct", "value": value},
            "solver": draw(_maybe(texts)),
            "notes": draw(st.lists(texts, max_size=2)),
            "assignments": draw(st.lists(st.just(assignment), max_size=2)),
            "waiting": [{"job": draw(names), "reason": draw(texts)}],
        }
    )


_gsla = _maybe(st.floats(min_value=1, allow_infinity=False))
