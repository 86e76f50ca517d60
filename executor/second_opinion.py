"""Check decisions before they are carried out, in simulations and in live mode.

The state that policies see becomes records: the round an instance, and starts a plan.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.rules import slowdown_at_last
from dovetail.instances._record import IDLE, AnyShare, FrozenDict
from dovetail.instances.checking.checker import violations_of_starts
from dovetail.instances.instance import Assumed, Cluster, Instance, Job, Node
from dovetail.instances.plan import Assignment, Plan
from dovetail.instances.slowdowns.columns import Slowdowns
from dovetail.instances.slowdowns.entry import MODES, GpuKind, SlowdownEntry, Source
from dovetail.instances.slowdowns.sets import LARGEST, slowdown_at
from dovetail.instances.slowdowns.shares import BEST_EFFORT, NO_CAP, caps_of, share_code
from dovetail.solver.policies.policy import Start
from dovetail.solver.policies.state import Job as SeenJob
from dovetail.solver.policies.state import State

_Member = tuple[int, AnyShare]
"""A workload of the state, and its share."""

_LEAST, _MOST = 1e-3, 1e15
"""Range of slowdowns in a record; believed slowdowns outside it are clipped."""


def instance_of(
    state: State,
    cluster: Cluster,
    troubled: Collection[str],
    alone: Collection[int],
) -> Instance:
    """Return a state as an instance: its jobs, and the believed slowdowns of their workloads.

    Every pair of workloads has an entry at all allowed caps, with ``slowdown: null`` if the two
    may not share, so that no predictor fills it in. There is no entry at ``idle`` for a workload
    that is not isolated.

    Parameters
    ----------
    state : State
        Jobs, and beliefs.
    cluster : Cluster
        Cluster of the pool; devices that take no jobs and hold none are left out.
    troubled : collection of str
        Devices that take no jobs.
    alone : collection of int
        Indices of the workloads that run alone; they get no entries.
    """
    jobs = sorted([*state.running.values(), *state.pending.values()], key=lambda job: job.number)
    used = sorted({job.workload for job in jobs})
    holding = {state.machines.gpu_ids[gpu] for gpu, on in enumerate(state.residents) if on}
    gpus = {gpu for gpu in state.machines.gpu_ids if gpu not in troubled or gpu in holding}
    shared = [workload for workload in used if workload not in alone]
    return Instance(
        name="live",
        cluster=_only(cluster, cluster.nodes, gpus),
        workloads={state.names[k]: state.workloads[k] for k in used},
        jobs=tuple(_record(state, job) for job in jobs),
        slowdowns=_pairs(state, shared),
    )


def instance_of_starts(state: State, starts: Sequence[Start]) -> Instance:
    """Return the part of a round that the checker needs to judge starts.

    It has the GPUs of the starts (all GPUs of their nodes if the hosts are known), all other GPUs
    of the jobs that run on them, and the starting and running jobs there. A gang that also runs
    elsewhere, but on no GPU of a start, is cut down to these GPUs. Nodes that are down have no
    GPUs. Nothing is validated: the state is made of records.
    """
    machines = state.machines
    joined = {gpu for start in starts for gpu in start.gpus}
    if state.hosts is not None:
        joined.update(*(machines.node_gpus[machines.node[gpu]] for gpu in joined.copy()))
    hosts = {job.number: job for gpu in joined for job in state.residents[gpu]}
    held = joined.union(*(job.gpus for job in hosts.values()))
    near = {gpu for gpu in held if machines.node[gpu] not in state.down}
    gpus = sorted(near)
    nodes = [machines.rules.nodes[k] for k in sorted({machines.node[gpu] for gpu in gpus})]
    running = {job.number: job for gpu in gpus for job in state.residents[gpu]}
    jobs = [_record(state, start.job) for start in starts]
    jobs += [_record(state, running[number], near) for number in sorted(running)]
    used = {job.workload for job in [*running.values(), *(start.job for start in starts)]}
    found = _with_entries(state, _members_by_gpu(state, starts, gpus))
    return Instance.model_construct(
        name="starts",
        cluster=_only(machines.rules, nodes, {machines.gpu_ids[gpu] for gpu in gpus}),
        workloads=FrozenDict((state.names[k], state.workloads[k]) for k in used),
        jobs=tuple(jobs),
        slowdowns=Slowdowns.of(_entry(state, model, members) for model, members in found),
    )


def with_sets(instance: Instance, state: State, starts: Sequence[Start]) -> Instance:
    """Return a round with an entry for each set of three or more jobs, running or after starts."""
    gpus = {gpu for gpu, residents in enumerate(state.residents) if len(residents) > 1}
    gpus.update(gpu for start in starts for gpu in start.gpus)
    shared = _with_entries(state, _members_by_gpu(state, starts, gpus))
    known = instance.entries
    found = [
        _entry(
            state, model, members, "measured" if _is_given(state, model, members) else "estimate"
        )
        for model, members in sorted(shared, key=repr)
        if len(members) > 2
    ]
    return instance.replace(
        slowdowns=instance.slowdowns.extended([one for one in found if one.key not in known])
    )


def _with_entries(
    state: State, found: set[tuple[int, tuple[_Member, ...]]]
) -> set[tuple[int, tuple[_Member, ...]]]:
    """Return the jobs of these, on one GPU each, that need an entry for the checker.

    Jobs without caps that no entry names would have the slowdowns that the cluster's owner
    declares, if any. Instead they have those that are believed, but for sets by the declared rule,
    which the checker works out from their pairs.
    """
    if state.instance.cluster.assumed is None:
        return found
    whole = {(model, part) for model, members in found for part in _parts(state, model, members)}
    return {each for each in whole if not _is_by_rule(state, *each)}


def _parts(state: State, model: int, members: tuple[_Member, ...]) -> Iterator[tuple[_Member, ...]]:
    yield members
    free = [member for member in members if member[1] is None]
    yield from combinations(free, 2)
    kind, coded = _on(state, model, free)
    for part, _ in state.sets.parts(kind, coded) if len(free) > 3 else ():
        yield tuple(sorted((workload, None) for workload, _ in part))


def _is_by_rule(state: State, model: int, members: Sequence[_Member]) -> bool:
    free = state.products and len(members) > 2 and all(share is None for _, share in members)
    return free and not _is_given(state, model, members)


def _is_given(state: State, model: int, members: Sequence[_Member]) -> bool:
    return state.sets.settles(*_on(state, model, members))


def _on(
    state: State, model: int, members: Sequence[_Member]
) -> tuple[GpuKind, list[tuple[int, int]]]:
    """Return a model with how jobs share it, and members with the codes of their shares."""
    coded = [(workload, share_code(share)) for workload, share in members]
    return GpuKind(state.predicted.models[model], state.machines.rules.sharing), coded


def staying(instance: Instance) -> list[Assignment]:
    """Return the present assignments of the running jobs."""
    return [
        Assignment.model_construct(
            job=job.id, gpus=job.gpus, share=job.share, sub_batch=job.sub_batch, start=False
        )
        for job in instance.jobs
        if job.gpus is not None
    ]


def starting(state: State, start: Start) -> Assignment:
    """Return a start as an assignment."""
    return Assignment.model_construct(
        job=start.job.id,
        gpus=tuple(state.machines.gpu_ids[gpu] for gpu in start.gpus),
        share=start.shares or (None,) * len(start.gpus),
        sub_batch=state.modes[start.job.workload][start.mode].sub_batch,
        start=True,
    )


def _members_by_gpu(
    state: State, starts: Sequence[Start], gpus: Iterable[int]
) -> set[tuple[int, tuple[_Member, ...]]]:
    """Return the jobs on each GPU before and after the starts, with the model of the GPU."""
    found = set()
    come: dict[int, list[_Member]] = defaultdict(list)
    for start in starts:
        for k, gpu in enumerate(start.gpus):
            come[gpu].append((start.job.workload, start.shares[k] if start.shares else None))
    for gpu in gpus:
        there = [(job.workload, job.share_on(gpu)) for job in state.residents[gpu]]
        for members in (there, [*there, *come[gpu]]):
            # Jobs left at `idle` without the job they ran behind have no entry: none may join.
            if len(members) > 1 and any(share != IDLE for _, share in members):
                members.sort(key=lambda member: (member[0], share_code(member[1])))
                found.add((state.machines.model[gpu], tuple(members)))
    return found


def _only(cluster: Cluster, among: Iterable[Node], gpus: Collection[str]) -> Cluster:
    """Return the cluster with only these GPUs, and only the given nodes that have any of them.

    Of declared slowdowns only the rule for sets is left: pairs have entries.
    """
    nodes = []
    for node in among:
        devices = tuple(gpu for gpu in node.devices if gpu.id in gpus)
        if devices:
            nodes.append(
                Node.model_construct(id=node.id, rack=node.rack, host=node.host, gpus=devices)
            )
    declared = cluster.assumed
    if declared is not None:
        declared = None if declared.sets is None else Assumed(sets=declared.sets)
    return cluster.model_copy(update={"nodes": tuple(nodes), "assumed": declared})


def _record(state: State, job: SeenJob, gpus: Collection[int] | None = None) -> Job:
    """Return a job's record; if GPUs are given, a running job is cut down to them."""
    running = job.phase == "running"
    held = [k for k, gpu in enumerate(job.gpus) if gpus is None or gpu in gpus]
    return Job.model_construct(
        id=job.id,
        workload=state.names[job.workload],
        workers=len(held) if running else job.workers,
        workers_per_node=job.together if job.one_each and not running else None,
        workers_together=None if job.one_each or running else job.together,
        gsla=None if math.isinf(job.gsla) else job.gsla,
        weight=job.weight,
        arrival_s=max(0.0, job.arrival_s),
        remaining_s=job.remaining(state.now),
        priority="latency" if job.latency else "batch",
        state="running" if running else "pending",
        gpus=tuple(state.machines.gpu_ids[job.gpus[k]] for k in held) if running else None,
        share=tuple(job.shares[k] for k in held) if running and job.shares else None,
        sub_batch=state.modes[job.workload][job.mode].sub_batch if running else None,
    )


def _pairs(state: State, shared: Sequence[int]) -> Slowdowns:
    """Return the believed slowdowns of all pairs of these workloads, at all caps."""
    table = state.believed
    codes = np.array([[*map(share_code, caps)] for caps in table.caps], dtype=np.int64)
    isolated = np.array([bool(one.isolation) for one in state.workloads], dtype=np.bool_)
    shape = len(table.models), len(table.caps), len(shared), len(shared)
    m, k, a, b = (axis.ravel() for axis in np.indices(shape))
    a, b = (np.array(shared, dtype=np.int64)[one] for one in (a, b))
    may = (a < b) | ((a == b) & (codes[k, 0] <= codes[k, 1]))
    for one, share in ((a, codes[k, 0]), (b, codes[k, 1])):
        may &= isolated[one] | (share != BEST_EFFORT)
    m, k, a, b = (axis[may] for axis in (m, k, a, b))
    back = np.array(table.mirror, dtype=np.int64)[k]

    def both(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.stack([values[m, k, a, b], values[m, back, b, a]], axis=1)

    slowdown, upper, p99 = (both(each) for each in (table.slowdown, table.upper, table.p99))
    highest = np.maximum(upper, slowdown)
    slowdown, upper, tail = (
        np.clip(each, _LEAST, _MOST)
        for each in (slowdown, highest, np.where(np.isnan(p99), highest, p99))
    )
    known = np.asarray(~np.isnan(slowdown + upper).any(axis=1))
    power_w = table.power_w[m, k, a, b]
    origins, confidences = table.origins, table.confidences
    mode = MODES.index(state.machines.rules.sharing)
    capped = ((codes != NO_CAP) & (codes != BEST_EFFORT)).any(axis=1)

    def where(rows: NDArray[np.bool_], values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(rows if values.ndim == 1 else rows[:, np.newaxis], values, math.nan)

    def differ(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.bool_]:
        return np.asarray((one != other).any(axis=1))

    return Slowdowns.of_pairs(
        state.names,
        np.stack([a, b], axis=1),
        table.models,
        model=m,
        share=codes[k],
        slowdown=where(known, slowdown),
        upper=where(known & differ(upper, slowdown), upper),
        p99=where(known & differ(tail, upper), tail),
        power_w=where(known & (power_w > 0), power_w),
        confidence=None
        if confidences is None
        else where(known & differ(upper, slowdown), confidences[m, k, a, b]),
        source=None if origins is None else np.where(known, origins[m, k, a, b], -1),
        # Runs with caps may outlive a service that had MPS.
        mode=np.where(capped[k], MODES.index("mps"), mode),
    )


def _entry(
    state: State, model: int, members: Sequence[_Member], origin: Source | None = None
) -> SlowdownEntry:
    """Return the believed slowdowns of two or more jobs on a GPU."""
    names = tuple(state.names[workload] for workload, _ in members)
    shares = tuple(share for _, share in members)
    slowdown, upper, tail = _together(state, model, members)
    power_w = math.nan
    if len(members) == 2:
        (a, mine), (b, theirs) = members
        caps = state.predicted.caps_place.get((mine, theirs))
        power_w = math.nan if caps is None else float(state.predicted.power_w[model, caps, a, b])
    known = not any(map(math.isnan, (*slowdown, *upper)))
    return SlowdownEntry(
        pair=(names[0], names[1]) if len(names) == 2 else None,
        set=names if len(names) > 2 else None,
        share=None if set(shares) == {None} else shares,
        slowdown=slowdown if known else None,
        upper=upper if known and upper != slowdown else None,
        p99=tail if known and tail != upper else None,
        power_w=power_w if known and power_w > 0 else None,
        gpu_model=state.predicted.models[model],
        source=origin if known else None,
        # Runs with caps may outlive a service that had MPS.
        mode="mps" if caps_of(shares) else state.machines.rules.sharing,
    )


_Values = tuple[float, ...]


def _together(
    state: State, model: int, members: Sequence[_Member]
) -> tuple[_Values, _Values, _Values]:
    """Return slowdown, upper bound and tail of each member with the others as co-runners.

    For three or more jobs without an entry they follow from the pairs. Tail latencies follow only
    for a job that all others run behind; otherwise they get the largest possible bound.
    """
    if len(members) == 2:
        there, back = (_beside(state, model, *order) for order in (members, members[::-1]))
        return (there[0], back[0]), (there[1], back[1]), (there[2], back[2])
    nothing = (math.nan,) * len(members)
    where = _on(state, model, members)
    given = state.sets.find(*where)
    if given is not None:
        return given.slowdown, given.upper, given.tail
    shares = [share for _, share in members]
    behind = [workload for workload, share in members if share == IDLE]
    if (
        len(members) > LARGEST
        or state.sets.settles(*where)
        or any((model, a, b) in state.clashes for a, b in combinations(behind, 2))
    ):
        return nothing, nothing, nothing
    if state.capped_sets and None in shares and not behind:
        return nothing, nothing, nothing
    pairs = np.array([[_beside(state, model, a, b) for b in members] for a in members])
    alone = [slowdown_at_last(state.workloads[k], share) for k, share in members]
    slowdowns, uppers, tails = (
        np.minimum(slowdown_at(pairs[:, :, k], shares, k > 0, alone), _MOST) for k in range(3)
    )
    # Equal members get equal numbers, whatever the order of summation.
    alike = [members.index(member) for member in members]
    highest = np.maximum(slowdowns, uppers)
    if len(behind) < len(members) - 1:
        tails = np.full(len(members), _MOST)
    return (
        tuple(slowdowns[alike].tolist()),
        tuple(highest[alike].tolist()),
        tuple(tails[alike].tolist()),
    )


def _beside(state: State, model: int, mine: _Member, theirs: _Member) -> _Values:
    """Return slowdown, upper bound and tail of a job with a co-runner, measured if possible."""
    table = state.believed
    caps = table.caps_place.get((mine[1], theirs[1]))
    if caps is None:
        return math.nan, math.nan, math.nan
    cell = model, caps, mine[0], theirs[0]
    slowdown = table.rows[model][caps][mine[0]][theirs[0]]
    upper = table.upper_rows[model][caps][mine[0]][theirs[0]]
    p99 = float(table.p99[cell])
    bounds = slowdown, max(upper, slowdown), max(upper, slowdown) if math.isnan(p99) else p99
    return tuple(x if math.isnan(x) else min(max(x, _LEAST), _MOST) for x in bounds)


_ROUNDING: Final = 1e-8
"""Relative difference up to which times count as equal."""


def violations(state: State, starts: Sequence[Start]) -> list[str]:
    """Return a line for each rule of the round problem that a set of starts breaks.

    The rules are the ones that ``dovetail check`` applies, on the state before the starts; measured
    slowdowns of running pairs replace predictions.

    Parameters
    ----------
    state : State
        The pool; jobs that the decision stops are pending already.
    starts : sequence of Start
        Starts of pending jobs.
    """
    unreadable = [why for start in starts for why in malformed(state, start)]
    if unreadable or not starts:
        return unreadable
    instance = instance_of_starts(state, starts)
    assigned = *staying(instance), *(starting(state, start) for start in starts)
    plan = Plan.model_construct(assignments=assigned)
    broken = [str(violation) for violation in violations_of_starts(instance, plan)]
    return [*broken, *_together_in_a_service(state, starts)]


def _together_in_a_service(state: State, starts: Sequence[Start]) -> Iterator[str]:
    """Yield where two replicas of one service would be on a GPU after the starts."""
    there = {(job.replica_of, gpu) for job in state.running.values() for gpu in job.gpus}
    for start in starts:
        for gpu in start.gpus if start.job.replica_of else ():
            if (start.job.replica_of, gpu) in there:
                name = state.machines.gpu_ids[gpu]
                yield f"puts {start.job.id!r} beside another replica of its service on {name}"
            there.add((start.job.replica_of, gpu))


def unlawful(state: State, stops: Sequence[SeenJob]) -> list[str]:
    """Return a line for each rule of stops that stopping these running jobs breaks.

    The rules are those of ``solver.policies.stops``, for policies that prove their decisions.

    Parameters
    ----------
    state : State
        The pool before the stops.
    stops : sequence of Job
        The jobs that a decision takes off their GPUs.
    """
    return [f"stops {job.id!r}, which {why}" for job in stops for why in _kept(state, job)]


def _kept(state: State, job: SeenJob) -> Iterator[str]:
    """Yield why a job may not be stopped now."""
    now_s = state.now
    if state.running.get(job.number) is not job:
        yield "does not run"
        return
    if any(other.latency for gpu in job.gpus for other in state.residents[gpu]):
        yield "is latency-critical or shares a GPU with such a job"
    if job.checkpoint_s == math.inf:
        yield "does not resume from checkpoints"
    again_s = job.waiting_since_s + job.stops_apart_s
    if job.starts > 1 and now_s < again_s * (1 - _ROUNDING):
        yield f"was stopped {now_s - job.waiting_since_s:.0f} s ago"
    if job.gsla < math.inf:
        speeds = [of_model[job.workload] for of_model in state.speed]
        here_s = max(0.0, job.done(now_s) - job.resumed_s - job.checkpoint_s) / max(speeds)
        if now_s - job.started_s + job.restart_s > job.gsla * here_s * (1 + _ROUNDING):
            yield f"would break its gSLA of {job.gsla:g} by the restart"


def malformed(state: State, start: Start) -> Iterator[str]:
    """Yield the reasons why a start cannot be checked: its job is not waiting, for instance."""
    job, gpus = start.job, start.gpus
    if job.phase != "pending" or state.pending.get(job.number) is not job:
        yield f"starts {job.id!r}, which is {job.phase}"
    if len(set(gpus)) != job.workers or len(gpus) != job.workers:
        yield f"gives {job.id!r} {len(set(gpus))} GPUs for {job.workers} workers"
    on = Counter(state.machines.node[gpu] for gpu in gpus if 0 <= gpu < len(state.machines))
    apart = [number for number in on.values() if number % job.together]
    apart += [number for number in on.values() if job.one_each and number != job.together]
    if apart:
        rule = "" if job.one_each else "a multiple of "
        yield f"gives {job.id!r} {apart[0]} GPUs of a node, not {rule}{job.together}"
    if start.shares is not None and len(start.shares) != job.workers:
        yield f"gives {job.id!r} {len(start.shares)} shares"
    if not 0 <= start.mode < len(state.modes[job.workload]):
        yield f"runs {job.id!r} in no known mode"
    if not all(0 <= gpu < len(state.machines) for gpu in gpus):
        yield f"puts {job.id!r} on a GPU that is not there"
