"""An instance of what runs and waits on a cluster: what could start now, and why the rest waits.

A snapshot says which GPUs jobs hold and what they ask for, and nothing of slowdowns. So no job may
share a GPU with another, unless the caller assumes a slowdown: then memory alone decides.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dovetail.advising.usage import UsageRecords
from dovetail.instances._record import shown
from dovetail.instances.errors import InputError

if TYPE_CHECKING:
    from dovetail.instances.instance import Instance

_NO_MODEL: Final = "GPU"
_MOST_JOBS: Final = 48
"""The most jobs on a GPU that an instance can have."""

_WHOLE: Final = "whole"


class Snapshot(NamedTuple):
    """An instance of a snapshot.

    Attributes
    ----------
    instance : Instance
        Its GPUs, and its jobs. A workload is what jobs ask for: ``whole`` GPUs, or some memory.
    notes : tuple of str
        What was chosen or left out, one sentence each.
    """

    instance: Instance
    notes: tuple[str, ...]


def instance_of(
    usage: UsageRecords,
    name: str = "snapshot",
    *,
    card_mib: Mapping[str, float] | None = None,
    model: str | None = None,
    assumed: float | None = None,
) -> Snapshot:
    """Return the instance of a snapshot.

    Running jobs stay on their GPUs. If the records name only their node, a consistent GPU of it is
    chosen: jobs with parts of GPUs together, the fullest GPU on which one fits first. Jobs that
    have ended, instances of MIG, and nodes on which no job may start are left out.

    Parameters
    ----------
    usage : UsageRecords
        Jobs and nodes.
    name : str
        Name of the instance.
    card_mib : mapping of str to float, optional
        Memory of the GPUs of a model, in place of what the records say.
    model : str, optional
        Take the GPUs of this model only.
    assumed : float, optional
        The slowdown of two jobs on one GPU, >= 1; of several the product. Without it, no job
        shares. Jobs that ask for whole GPUs never do.

    Raises
    ------
    InputError
        When no node has GPUs, or the memory of GPUs is not known.
    """
    cluster = _OpenNodes.of(usage, card_mib or {}, model)
    asks = list(_asks(usage, cluster))
    running = list(_placed([ask for ask in asks if ask.job["state"] == "running"], cluster))
    waiting = [ask for ask in asks if ask.job["state"] == "waiting"]
    waiting = list(_startable(waiting, cluster))
    instance = _built(name, cluster, running, waiting, assumed)
    return Snapshot(instance, tuple(_notes(cluster, usage)))


def on_new_nodes(
    usage: UsageRecords, gpus: int, per_node: int, model: str, card_mib: float
) -> UsageRecords:
    """Return usage in which all jobs that have not ended wait for equal GPUs, which are all free.

    Parameters
    ----------
    usage : UsageRecords
        The jobs; its nodes are not used.
    gpus, per_node : int
        How many GPUs there are, and how many of them on a node.
    model : str
        Their model; what model jobs had or asked for does not count.
    card_mib : float
        The memory of each.
    """
    import pandas as pd

    full, rest = divmod(gpus, per_node)
    counts = [per_node] * full + [rest] * (rest > 0)
    nodes = {"node": [f"n{k}" for k in range(len(counts))], "gpus": counts}
    state = usage.jobs["state"].replace("running", "waiting")
    jobs = usage.jobs.assign(state=state, node=None, placement=None, gpu_model=None)
    frame = pd.DataFrame({**nodes, "gpu_model": model, "card_mib": card_mib})
    return UsageRecords.of(jobs, frame, usage.profiles, usage.left_out, usage.notes)


class _NodeCards(NamedTuple):
    """The GPUs of a node, and the jobs on each by position."""

    node: str
    model: str
    memory_mib: float
    rack: str | None
    sharing: str | None
    on: list[list[_Ask]]

    @property
    def ways(self) -> Iterator[str | None]:
        """How jobs share each GPU: as its node says, or else as the jobs on it need."""
        for jobs in self.on:
            needed = {ask.sharing for ask in jobs} - {None}
            yield self.sharing or (needed.pop() if len(needed) == 1 else None)


class _Ask(NamedTuple):
    """What a job asks for on each of its GPUs."""

    job: Mapping[str, Any]
    memory_mib: float | None

    @property
    def workload(self) -> str:
        """What names its workload: equal for jobs that ask for the same."""
        return _WHOLE if self.memory_mib is None else f"memory-{self.memory_mib:.0f}-mib"

    @property
    def sharing(self) -> str | None:
        """The only way in which a job with parts of GPUs shares them; None for any."""
        return None if self.memory_mib is None else self.job["sharing"]


@dataclass
class _OpenNodes:
    """The GPUs on which jobs may start, and what was left out.

    Attributes
    ----------
    nodes : dict of str to _NodeCards
        By name.
    skipped : set of str
        Nodes that were left out.
    left_out, chosen : Counter of str
        Jobs and GPUs by why they were left out, and jobs for which something was chosen.
    """

    nodes: dict[str, _NodeCards] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    left_out: Counter[str] = field(default_factory=Counter)
    chosen: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(
        cls, usage: UsageRecords, card_mib: Mapping[str, float], model: str | None
    ) -> _OpenNodes:
        """Return the GPUs of the nodes in usage."""
        found = cls()
        for row in usage.nodes.to_dict("records"):
            kind = row["gpu_model"] or _NO_MODEL
            count = 0 if math.isnan(row["gpus"]) else int(row["gpus"])
            why = found._why_not(row, kind, model)
            if why is not None or count == 0:
                found.left_out[why or "nodes without GPUs"] += max(count, 1)
                found.skipped.add(row["node"])
            else:
                memory_mib = float(card_mib.get(kind, row["card_mib"]))
                if math.isnan(memory_mib):
                    rule = "the memory of these GPUs is not in the records: give it"
                    raise InputError(f"{rule} (--gpu-memory {kind}=MIB)", f"GPUs of model {kind}")
                on: list[list[_Ask]] = [[] for _ in range(count)]
                where = (row["node"], kind, memory_mib, row["rack"], row["sharing"])
                found.nodes[row["node"]] = _NodeCards(*where, on)
        if not found.nodes:
            what = f" of model {shown(model)}" if model is not None else ""
            rule = f"must list nodes with GPUs{what} on which jobs may start, got none"
            raise InputError(f"{rule} (--gpus N takes others)")
        return found

    def _why_not(self, row: Mapping[str, Any], kind: str, model: str | None) -> str | None:
        """Return why the GPUs of a row are left out, None if they are not."""
        if row["closed"]:
            return "GPUs of nodes on which no job may start"
        if _is_mig(kind):
            return "GPUs that are instances of MIG"
        if model is not None and kind != model:
            return "GPUs of another model"
        return "GPUs of a second model on a node" if row["node"] in self.nodes else None

    @property
    def models(self) -> dict[str, float]:
        """The memory of the GPUs of each model, the least if they differ."""
        found: dict[str, float] = {}
        for node in self.nodes.values():
            found[node.model] = min(node.memory_mib, found.get(node.model, math.inf))
        return found


def _is_mig(model: str) -> bool:
    return "mig-" in model.lower()


def _asks(usage: UsageRecords, cluster: _OpenNodes) -> Iterator[_Ask]:
    """Yield what jobs that run or wait ask for.

    A part of a GPU is memory: of the card that a running job has, of the largest card for one that
    waits, which fits on fewer GPUs than a part of a smaller one would.
    """
    largest_mib = max(cluster.models.values())
    for job in usage.jobs.to_dict("records"):
        if job["state"] == "ended":
            cluster.left_out["jobs that have ended"] += 1
            continue
        if job["gpu_model"] is not None and _is_mig(job["gpu_model"]):
            cluster.left_out["jobs on instances of MIG"] += 1
            continue
        if not job["gpus"] >= 1:
            cluster.left_out["jobs that do not say how many GPUs they have"] += 1
            continue
        fraction, memory_mib = job["fraction"], job["memory_request_mib"]
        if math.isnan(memory_mib) and not math.isnan(fraction):
            node = cluster.nodes.get((job["node"] or "").partition(",")[0])
            memory_mib = fraction * (node.memory_mib if node else largest_mib)
        yield _Ask(job, None if math.isnan(memory_mib) else float(math.floor(memory_mib)))


def _startable(asks: Iterable[_Ask], cluster: _OpenNodes) -> Iterator[_Ask]:
    """Yield the waiting jobs that an instance can describe."""
    models = cluster.models
    for ask in asks:
        model = ask.job["gpu_model"]
        if model is not None and model not in models:
            cluster.left_out["waiting jobs that ask for another GPU model"] += 1
        elif model is not None and len(models) > 1:
            why = "waiting jobs that ask for one of several GPU models (see --gpu-model)"
            cluster.left_out[why] += 1
        else:
            yield ask


class _HeldCards(NamedTuple):
    """A running job and its GPUs, each as node and position."""

    ask: _Ask
    gpus: list[tuple[str, int]]


def _placed(asks: list[_Ask], cluster: _OpenNodes) -> Iterator[_HeldCards]:
    """Yield running jobs with their GPUs: first those whose GPUs have names, then whole GPUs."""
    positions: dict[tuple[str, str], int] = {}
    order = sorted(asks, key=lambda ask: (not _is_named(ask), ask.memory_mib is not None))
    for ask in order:
        tokens = _tokens(ask)
        if not tokens:
            cluster.left_out["running jobs whose nodes the records do not name"] += 1
            continue
        open_tokens = [token for token in tokens if token[0] in cluster.nodes]
        if not open_tokens:
            if not all(node in cluster.skipped for node, _ in tokens):
                cluster.left_out["running jobs on nodes that are not listed"] += 1
            continue
        gpus = _gpus(ask, open_tokens, cluster, positions)
        if gpus is None:
            cluster.left_out["running jobs for which their nodes have too few GPUs"] += 1
            continue
        for node, at in gpus:
            cluster.nodes[node].on[at].append(ask)
        if not _is_named(ask):
            cluster.chosen["jobs on GPUs that were chosen, as the records name nodes only"] += 1
        yield _HeldCards(ask, gpus)


def _is_named(ask: _Ask) -> bool:
    tokens = _tokens(ask)
    return bool(tokens) and all(gpu for _, gpu in tokens)


def _tokens(ask: _Ask) -> list[tuple[str, str]]:
    """Return node and name of each GPU of a running job, with empty names if they are unknown."""
    placement, nodes = ask.job["placement"], ask.job["node"]
    if placement:
        split = (token.partition("/") for token in placement.split(","))
        return [(node, gpu) for node, _, gpu in split]
    names = nodes.split(",") if nodes else []
    count = int(ask.job["gpus"])
    if not names or count % len(names):
        return []
    return [(name, "") for name in names for _ in range(count // len(names))]


def _gpus(
    ask: _Ask,
    tokens: list[tuple[str, str]],
    cluster: _OpenNodes,
    positions: dict[tuple[str, str], int],
) -> list[tuple[str, int]] | None:
    """Return a GPU for each token, None if a node has too few; the GPUs of a job differ."""
    found: list[tuple[str, int]] = []
    for node, gpu in tokens:
        cards = cluster.nodes[node]
        taken = {at for where, at in found if where == node}
        if gpu:
            at = positions.get((node, gpu))
            if at is None:
                at = _position(gpu, cards, set(_positions_on(node, positions)))
        else:
            at = _fullest(ask, cards, taken)
        if at is None or at in taken or len(cards.on[at]) >= _MOST_JOBS:
            return None
        if gpu:
            positions[node, gpu] = at
        found.append((node, at))
    return found


def _positions_on(node: str, positions: Mapping[tuple[str, str], int]) -> Iterator[int]:
    """Yield the positions on a node that have a name."""
    return (at for (where, _), at in positions.items() if where == node)


def _position(gpu: str, cards: _NodeCards, named: set[int]) -> int | None:
    """Return the position of a GPU by its name: its index if that is one, else the next free."""
    count = len(cards.on)
    if gpu.isdecimal() and int(gpu) < count and int(gpu) not in named:
        return int(gpu)
    return next((at for at in range(count) if at not in named), None)


def _fullest(ask: _Ask, cards: _NodeCards, taken: set[int]) -> int | None:
    """Return the fullest GPU that a job fits on beside others with parts, or an empty one."""
    best, most_mib = None, -1.0
    for at, jobs in enumerate(cards.on):
        memories = [each.memory_mib for each in jobs]
        used_mib = sum(mib for mib in memories if mib is not None)
        is_shared = ask.memory_mib is not None and None not in memories
        needed = {each.sharing for each in (ask, *jobs)} - {None}
        is_shared &= len({cards.sharing or next(iter(needed), None), *needed}) == 1
        fits = used_mib + (ask.memory_mib or 0.0) <= cards.memory_mib
        if at not in taken and (not jobs or (is_shared and fits)) and used_mib > most_mib:
            best, most_mib = at, used_mib
    return best


def _built(
    name: str,
    cluster: _OpenNodes,
    running: list[_HeldCards],
    waiting: list[_Ask],
    assumed: float | None,
) -> Instance:
    from dovetail.instances.instance import Instance

    asks = {ask.workload: ask for ask in (*(each.ask for each in running), *waiting)}
    rules: dict[str, object] = {"max_jobs_per_gpu": _most_jobs(cluster, asks.values(), assumed)}
    sharing = _usual_sharing([*(each.ask for each in running), *waiting], cluster)
    rules |= {} if sharing is None else {"sharing": sharing}
    if assumed is not None:
        rules["assumed"] = {"pair": assumed, "sets": "product"}
    made = Instance.build(name, **rules)
    for cards in cluster.nodes.values():
        ways = list(cards.ways) if any(cards.ways) else None
        own = (cards.node, len(cards.on), cards.model, cards.memory_mib)
        made.add_node(*own, rack=cards.rack, sharing=ways)
    least_mib = min(cluster.models.values())
    for workload, ask in asks.items():
        made.add_workload(workload, least_mib if ask.memory_mib is None else ask.memory_mib)
    if assumed is not None and _WHOLE in asks:
        for workload in asks:
            made.add_slowdown([_WHOLE, workload], None)
    first_s = min((each for each in _submissions(waiting)), default=0.0)
    for ask, gpus in running:
        names = [f"{node}-{at}" for node, at in gpus]
        kept = _kept_sharing(ask, gpus, cluster, sharing)
        held = {"workers": len(gpus), "sharing": kept, "state": "running", "gpus": names}
        made.add_job(ask.job["job"], ask.workload, **held)
    for ask in waiting:
        made.add_job(ask.job["job"], ask.workload, sharing=ask.sharing, **_wants(ask.job, first_s))
    return made.instance()


def _usual_sharing(asks: Iterable[_Ask], cluster: _OpenNodes) -> str | None:
    """Return how GPUs are shared of which nothing says so; None if no record says it of any.

    A scheduler that gives a GPU the way that its jobs need gives all the only one that is needed.
    """
    needed = {ask.sharing for ask in asks} - {None}
    said = {each.sharing for each in cluster.nodes.values()} - {None}
    if not needed | said:
        return None
    if len(needed) == 1 and not said:
        return needed.pop()
    unsaid = sum(way is None for each in cluster.nodes.values() for way in each.ways)
    if "mps" in needed and unsaid:
        cluster.chosen["GPUs that count as time-sliced, as no record says otherwise"] += unsaid
    return "time_sliced"


def _kept_sharing(
    ask: _Ask, gpus: list[tuple[str, int]], cluster: _OpenNodes, usual: str | None
) -> str | None:
    """Return how a running job shares GPUs; None, counted, if it shares one in another way."""
    for node, at in gpus:
        cards = cluster.nodes[node]
        ways = {list(cards.ways)[at] or usual, ask.sharing}
        if ask.sharing is not None and len(cards.on[at]) > 1 and len(ways) > 1:
            cluster.chosen["running jobs that share a GPU in another way than they ask for"] += 1
            return None
    return ask.sharing


def _most_jobs(cluster: _OpenNodes, asks: Iterable[_Ask], assumed: float | None) -> int:
    """Return how many jobs a GPU may have: as many as fit by memory if they may share."""
    now = max(len(jobs) for cards in cluster.nodes.values() for jobs in cards.on)
    fit = 0
    if assumed is not None:
        parts = [ask.memory_mib for ask in asks if ask.memory_mib is not None]
        largest_mib = max(cards.memory_mib for cards in cluster.nodes.values())
        fit = int(largest_mib // max(min(parts), 1.0)) if parts else 0
    return min(max(now, fit, 2), _MOST_JOBS)


def _submissions(asks: list[_Ask]) -> Iterator[float]:
    return (ask.job["submit_s"] for ask in asks if not math.isnan(ask.job["submit_s"]))


def _wants(job: Mapping[str, Any], first_s: float) -> dict[str, object]:
    """Return the fields of a waiting job."""
    fields: dict[str, object] = {"workers": int(job["gpus"])}
    for name in ("workers_per_node", "workers_together"):
        if job[name] > 1:
            fields[name] = int(job[name])
    if not math.isnan(job["submit_s"]):
        fields["arrival_s"] = job["submit_s"] - first_s
    return fields


def _notes(cluster: _OpenNodes, usage: UsageRecords) -> Iterator[str]:
    for counts in (cluster.left_out, cluster.chosen):
        yield from (f"{what}: {count:,}" for what, count in counts.items())
    now = usage.jobs[usage.jobs["state"] != "ended"]
    shares = int(now["sm_share"].notna().sum())
    if shares:
        yield f"jobs with a part of the SMs, of which the instance says nothing: {shares:,}"
