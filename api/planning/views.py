"""A plan arranged for readers: by node and GPU, by job, the waiting jobs, and facts about it.

Terminal tables and the HTML report show the same view. Figures are computed by the
independent checker, not taken from the plan.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from dovetail.formulations.objectives import BUILT_IN
from dovetail.instances._record import AnyShare, listed
from dovetail.instances.checking.checker import CheckReport, Origin, check
from dovetail.instances.instance import Gpu, Instance, Job, Node
from dovetail.instances.plan import Assignment, ObjectiveValue, Plan, Stop, Waiting
from dovetail.toolkit.wording import figure, number, percent


@dataclass(frozen=True)
class PlacedJob:
    """A job that has GPUs.

    Attributes
    ----------
    job : Job
        The job.
    gpus : tuple of str
        The GPUs of its workers.
    slowdown, bound : float or None
        Its slowdown, and the upper bound that its gSLA limits; None if unknown.
    sub_batch : int or None
        The sub-batch at which it runs, if the plan names one.
    origin : Origin or None
        Origin of its slowdown; None if the instance does not say, or the job is alone.
    change : str
        ``starts``, ``stays`` where it is, or ``moves``: it is stopped and starts again.
    """

    job: Job
    gpus: tuple[str, ...]
    slowdown: float | None
    bound: float | None
    sub_batch: int | None
    change: Literal["starts", "stays", "moves"]
    origin: Origin | None = None

    @property
    def closeness(self) -> float:
        """The fraction of its gSLA that is used up: 1 at the limit, 0 without one."""
        if self.job.gsla is None or self.bound is None:
            return 0.0
        return self.bound / self.job.gsla


@dataclass(frozen=True)
class PlannedWorker:
    """One worker of a job on a GPU, under a share (None: no cap)."""

    placed: PlacedJob
    worker: int
    share: AnyShare

    @property
    def part(self) -> str:
        """Number of the worker of how many, as ``2/4``; empty if there is only one."""
        workers = self.placed.job.workers
        return f"{self.worker}/{workers}" if workers > 1 else ""


@dataclass(frozen=True)
class GpuView:
    """A GPU, the workers on it, and the memory that they and the reserve take."""

    gpu: Gpu
    seats: tuple[PlannedWorker, ...]
    used_mib: float

    @property
    def used_part(self) -> float:
        """The fraction of the memory in use, 0..1."""
        return self.used_mib / self.gpu.memory_mib


@dataclass(frozen=True)
class NodeView:
    """A node and its GPUs."""

    node: Node
    gpus: tuple[GpuView, ...]


@dataclass(frozen=True)
class PlanView:
    """A plan laid out for a reader.

    Attributes
    ----------
    instance : Instance
        The round that the plan answers; with preemption, its running jobs are pending.
    plan : Plan
        The plan.
    report : CheckReport
        The checker's report.
    nodes : tuple of NodeView
        Every node, in the order of the file.
    placed : tuple of PlacedJob
        Every job that has GPUs, in the order of the file.
    waiting : tuple of Waiting
        Every other job, in the order of the file, with the plan's reason if it has one.
    stops : tuple of Stop
        The running jobs that must stop, to wait or move, with their GPUs.
    """

    instance: Instance
    plan: Plan
    report: CheckReport
    nodes: tuple[NodeView, ...]
    placed: tuple[PlacedJob, ...]
    waiting: tuple[Waiting, ...]
    stops: tuple[Stop, ...]

    @property
    def gpus(self) -> tuple[GpuView, ...]:
        """Every GPU, in the order of the file."""
        return tuple(gpu for node in self.nodes for gpu in node.gpus)

    @property
    def changes(self) -> Mapping[str, int]:
        """Number of jobs that start and stay, and if the plan preempts, that move and stop."""
        found = Counter(each.change for each in self.placed)
        changes = {"start": found["starts"], "stay": found["stays"]}
        if not self.plan.preempt:
            return changes
        return {**changes, "move": found["moves"], "stop": len(self.stops) - found["moves"]}

    def after_stop(self, stop: Stop) -> str:
        """Return what happens to a job after it is stopped."""
        again = next((each.gpus for each in self.placed if each.job.id == stop.job), None)
        return "then waits" if again is None else f"then starts again on {listed(again, 4)}"

    @property
    def reason_kinds(self) -> Mapping[str, int]:
        """Number of jobs that wait for each kind of reason (its text before the colon)."""
        kinds = (each.reason.partition(":")[0] or "no reason given" for each in self.waiting)
        return dict(Counter(kinds).most_common())


def view(instance: Instance, plan: Plan) -> PlanView:
    """Lay a plan out for a reader.

    Parameters
    ----------
    instance : Instance
        The round that the plan answers.
    plan : Plan
        A plan that the checker finds valid.

    Raises
    ------
    InputError
        When the instance lacks a field that the plan's objective needs.
    """
    problem = instance.preempted() if plan.preempt else instance
    report = check(instance, plan)
    assigned = {assignment.job: assignment for assignment in plan.assignments}
    placed = tuple(
        _placed(job, plan, assigned[job.id], report) for job in instance.jobs if job.id in assigned
    )
    reasons = {waiting.job: waiting for waiting in plan.waiting}
    return PlanView(
        instance=problem,
        plan=plan,
        report=report,
        nodes=_nodes(problem, _seats(placed, assigned), report),
        placed=placed,
        waiting=tuple(
            reasons.get(job.id, Waiting(job=job.id))
            for job in problem.jobs
            if job.id not in assigned
        ),
        stops=plan.leaving(instance.jobs),
    )


def _placed(job: Job, plan: Plan, assignment: Assignment, report: CheckReport) -> PlacedJob:
    starts = plan.starts(assignment, job.running)
    return PlacedJob(
        job=job,
        gpus=assignment.gpus,
        slowdown=report.job_slowdown.get(job.id),
        bound=report.job_bound.get(job.id),
        sub_batch=assignment.sub_batch,
        origin=report.job_origin.get(job.id),
        change="stays" if not starts else "moves" if job.running else "starts",
    )


def _seats(
    placed: tuple[PlacedJob, ...], assigned: Mapping[str, Assignment]
) -> Mapping[str, list[PlannedWorker]]:
    seats: dict[str, list[PlannedWorker]] = defaultdict(list)
    for each in placed:
        shares = assigned[each.job.id].shares
        for worker, (gpu, share) in enumerate(zip(each.gpus, shares, strict=True), start=1):
            seats[gpu].append(PlannedWorker(each, worker, share))
    return seats


def _nodes(
    instance: Instance, seats: Mapping[str, list[PlannedWorker]], report: CheckReport
) -> tuple[NodeView, ...]:
    idle_mib = instance.cluster.reserve_mib
    return tuple(
        NodeView(
            node,
            tuple(
                GpuView(
                    gpu, tuple(seats.get(gpu.id, ())), report.gpu_memory_mib.get(gpu.id, idle_mib)
                )
                for gpu in node.devices
            ),
        )
        for node in instance.cluster.nodes
    )


def status(plan: Plan) -> str:
    """Return the status of a plan, and whether it is proven that none does better."""
    if plan.status is None or plan.objective is None:
        return "checked and valid; no proof of how good it is"
    return "optimal: no plan does better, proven" if plan.status == "optimal" else plan.status


def values(report: CheckReport, claim: ObjectiveValue | None) -> Iterator[tuple[str, str]]:
    """Yield the recomputed value, after the first stage's if any, each with its proven bound."""
    if BUILT_IN[report.objective].two_stage:
        most = claim.placed_weight_bound if claim else None
        bound = "" if most is None else f"   bound {figure(most)}"
        yield "weight placed", f"{figure(report.placed_weight)}{bound}"
    if claim is None:
        value = "unknown" if report.value is None else figure(report.value)
        yield report.objective, f"{value} (recomputed)"
    elif claim.bound is None or claim.gap is None:
        yield claim.name, f"{figure(claim.value)}   no bound proven"
    else:
        proven = f"bound {figure(claim.bound)}   gap {percent(claim.gap)}"
        yield claim.name, f"{figure(claim.value)}   {proven}"


def gpus_needed(laid_out: PlanView) -> tuple[str, str]:
    """Return how many GPUs are enough, if the objective asks for that; else an empty text."""
    plan, report, gpus = laid_out.plan, laid_out.report, laid_out.gpus
    claim = plan.objective
    if claim is None or not BUILT_IN[report.objective].cheapest:
        return "GPUs needed", ""
    every = len(laid_out.placed) == len(laid_out.instance.jobs)
    jobs = "all jobs" if every else "the jobs that run"
    enough = f"{report.gpus_used:,} of {len(gpus):,} are enough for {jobs}"
    least, none = "are needed", "fewer are not"
    if any(view.gpu.cost_per_hour for view in gpus):
        enough += f", at {figure(claim.value)} an hour"
        least, none = "an hour are needed", "no others are cheaper"
    if plan.status == "optimal":
        return "GPUs needed", f"{enough}, proven: {none}"
    if claim.bound is None:
        return "GPUs needed", enough
    return "GPUs needed", f"{enough}; at least {figure(claim.bound)} {least}"


def node_spans(report: CheckReport) -> tuple[str, str]:
    """Return the number of nodes that jobs span, and how it is counted."""
    return "node spans", f"{report.nodes_spanned} (nodes of each job, summed)"


def origins(laid_out: PlanView) -> str:
    """Return the number of jobs by the origin of their slowdown; empty if all are measured.

    The proof is that no plan does better by these numbers, right or wrong.
    """
    found = Counter(each.origin for each in laid_out.placed if each.origin is not None)
    if all(origin.source == "measured" for origin in found):
        return ""
    counts = sorted((str(origin), jobs) for origin, jobs in found.items())
    listing = "; ".join(f"{origin}: {number(jobs, 'job')}" for origin, jobs in counts)
    return f"{listing} (the proof holds for these numbers)"


def verified(plan: Plan) -> str:
    """Return what was verified about a plan besides the check of every plan; empty if nothing."""
    found, claim = plan.verification, plan.objective
    if found is None:
        return ""
    if claim is None or claim.bound is None:
        return "the plan by the checker; there is no bound to verify"
    if found.pairs is None:
        return f"the plan by the checker; not its bound: {plan.solver} left no certificate of it"
    pairs = number(found.pairs, "pair")
    return f"plan by the checker, bound and gap by a certificate, against all {pairs} of jobs"
