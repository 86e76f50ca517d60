"""What rounds tell users: the decision as a plan, and what waiting jobs lack.

Most of it is computed outside the service's thread.

That thread only makes the decision, in at most one part in ``REST`` of its time. Plans and
explanations are computed from it in the threads of the requests, one at a time, and are cached for
later requests.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Self

from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.jobs.states import MANY_QUICK_ENDS, OVER, QUEUED, JobState
from dovetail.executor.live.beliefs import SEEN
from dovetail.executor.live.job_beliefs import JobBeliefs
from dovetail.executor.live.live import Live
from dovetail.executor.live.rounds.deciding import REST, Decider
from dovetail.executor.live.rounds.fair_share import MOST_IN_ROUND, Precedence
from dovetail.executor.live.rounds.outlook import SERVICE, ExpectedEnd, outlook
from dovetail.executor.live.views import HourAhead, ServiceView, Wait
from dovetail.executor.pools.pool import awaited_text
from dovetail.executor.second_opinion import starting, staying, with_sets
from dovetail.formulations.budget import UNLIMITED, Budget
from dovetail.formulations.objectives import job_values
from dovetail.formulations.rounds import Round
from dovetail.instances._record import listed
from dovetail.instances.checking.checker import CheckReport, check
from dovetail.instances.errors import DovetailError, InputError
from dovetail.instances.instance import Instance, Job
from dovetail.instances.objectives import ObjectiveName
from dovetail.instances.plan import Assignment, ObjectiveValue, Plan
from dovetail.instances.slowdowns.shares import caps_of
from dovetail.instances.slowdowns.slowdown_table import UNCAPPED
from dovetail.solver.explaining.explanations import explain
from dovetail.solver.explaining.wording import reasons
from dovetail.solver.policies.policy import Decision, RoundProof
from dovetail.solver.policies.state import State


class PlannedDecision(NamedTuple):
    """A decision with all the data that its plan and its reasons depend on; immutable.

    Attributes
    ----------
    instance : Instance
        The round.
    assigned : tuple of Assignment
        Assignments of the running jobs that stay, and of the starts.
    preempt : bool
        Whether jobs are stopped.
    policy : str
        Name of the policy.
    objective : ObjectiveName
        Objective of the policy. If the decision breaks a rule of the objective, its value is the
        throughput.
    proof : RoundProof or None
        The policy's proof.
    notice : str
        A caveat about the pool's figures.
    alone : frozenset of str
        Jobs that may start alone only.
    before : mapping of str to (str, str)
        For jobs that do not come first: the rule, and the user whose jobs do.
    services : frozenset of str
        Jobs that never end.
    """

    instance: Instance
    assigned: tuple[Assignment, ...]
    preempt: bool
    policy: str
    objective: ObjectiveName
    proof: RoundProof | None
    notice: str = ""
    alone: frozenset[str] = frozenset()
    before: Mapping[str, tuple[str, str]] = {}
    services: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        instance: Instance,
        state: State,
        decision: Decision,
        policy: str,
        objective: ObjectiveName,
    ) -> Self:
        """Return the decision of a policy on the state of a round."""
        instance = with_sets(instance, state, decision.starts)
        stopped = {job.id for job in decision.stops}
        stay = [row for row in staying(instance) if row.job not in stopped]
        starts = [starting(state, start) for start in decision.starts]
        assigned = tuple(_with_co_runners([*stay, *starts]))
        return cls(instance, assigned, bool(stopped), policy, objective, decision.proof)

    def for_user(self, name: str) -> Self:
        """Return the decision with the names of one user's workloads only; others are numbered."""
        others = (label for label in self.instance.workloads if not _is_shown(label, name))
        new = {label: f"another's ({k})" for k, label in enumerate(others, 1)}
        return self._replace(instance=_renamed(self.instance, new))


def _is_shown(label: str, name: str) -> bool:
    """Return whether a label (``Category.label``) names no other user's workload."""
    return "/" not in label or label.startswith(f"{name}/")


def _renamed(instance: Instance, new: Mapping[str, str]) -> Instance:
    """Return a round with renamed workloads."""
    return instance.replace(
        workloads={new.get(name, name): each for name, each in instance.workloads.items()},
        jobs=tuple(
            job.model_copy(update={"workload": new.get(job.workload, job.workload)})
            for job in instance.jobs
        ),
        slowdowns=instance.slowdowns.renamed(new),
    )


def plan_of(choice: PlannedDecision, budget: Budget = UNLIMITED) -> Plan:
    """Return the plan of a decision: running jobs, starts, and why the others wait.

    If the budget does not suffice for a job, its reason says only that.
    """
    instance, assigned = choice.instance, choice.assigned
    problem = instance.preempted() if choice.preempt else instance
    bare = Plan(assignments=assigned, preempt=choice.preempt)
    report = _judged(instance, bare, choice.objective)
    rows = [_with_facts(row, report) for row in assigned]
    value = report.value
    plan = Plan(
        instance=instance.name,
        solver=f"policy {choice.policy}",
        preempt=choice.preempt,
        objective=None if value is None else ObjectiveValue(name=report.objective, value=value),
        notes=(
            *filter(None, [choice.notice, _proven(choice.proof)]),
            *map(str, report.violations),
            *report.warnings,
        ),
        assignments=tuple(rows),
    )
    plan = plan.replace(stops=plan.leaving(instance.jobs))
    if not report.valid:
        return plan
    found = reasons(job_values(Round.of(problem), report.objective), assigned, budget, plan.stops)
    return plan.replace(
        waiting=tuple(
            each.replace(reason=_live_reason(each.reason, each.job, choice)) for each in found
        )
    )


def _with_facts(row: Assignment, report: CheckReport) -> Assignment:
    """Return an assignment with its job's slowdown and the source of that."""
    origin = report.job_origin.get(row.job)
    return row.replace(
        slowdown=report.job_slowdown.get(row.job),
        source=origin.source if origin else None,
        confidence=origin.confidence if origin else None,
    )


def _judged(instance: Instance, plan: Plan, objective: ObjectiveName) -> CheckReport:
    """Return a plan's report for an objective, or for throughput if it breaks that one's rules."""
    with suppress(InputError):
        report = check(instance, plan, objective)
        if report.valid:
            return report
    return check(instance, plan)


def _proven(proof: RoundProof | None) -> str:
    """Return the gap that a policy proved for the jobs it considered; empty if none."""
    if proof is None or math.isnan(proof.gap):
        return ""
    jobs = f"{proof.jobs} waiting job{'s' * (proof.jobs != 1)}"
    gap = f"a gap of {100 * proof.gap:.2f} %"
    return f"the policy proved {gap} for the starts of the {jobs} that it considered"


def _live_reason(reason: str, job: str, choice: PlannedDecision) -> str:
    """Return a reason of ``dovetail explain`` in terms of live mode.

    A job that may start only alone lacks an idle device, not predictions. A job too large for the
    pool waits for devices that may join. If devices are short, the order of users is the reason.
    """
    alone = job in choice.alone
    if reason.startswith("size: "):
        return "capacity: too few devices take jobs"
    if job in choice.before and (alone or reason.startswith("capacity: ")):
        rule, user = choice.before[job]
        return f"{rule}: waits for jobs of {user}"
    if alone and reason.startswith("unknown: "):
        gang = choice.instance.jobs_by_id[job].workers > 1
        return f"capacity: {'too few devices are' if gang else 'no device is'} idle"
    return reason


def _with_co_runners(rows: list[Assignment]) -> list[Assignment]:
    """Return the assignments with the co-runners of each."""
    on: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        for gpu in row.gpus:
            on[gpu].append(row.job)
    return [
        row.replace(
            co_runners=tuple(tuple(job for job in on[gpu] if job != row.job) for gpu in row.gpus)
        )
        for row in rows
    ]


def of_choice(job: str, choice: PlannedDecision, plan: Plan, budget: Budget = UNLIMITED) -> str:
    """Return why a job waits and what would let it start, or where it runs."""
    if job not in choice.instance.jobs_by_id:
        return (
            "it is not in the round: it holds devices that the pool does not have, or very many "
            f"jobs wait, of which about the first {MOST_IN_ROUND:,} are in the round, an equal "
            "share for each user"
        )
    try:
        # The policy may decide differently, so nothing is solved here.
        services = choice.services
        found = explain(choice.instance, plan, job, budget, trials_s=0.0, services=services)
    except DovetailError as error:
        return f"no further explanation: {error}"
    reason = _live_reason(found.reason, job, choice)
    alone = job in choice.alone
    remedies = [kept for kept in found.remedies if not (alone and kept.change.measured)]
    more = ["- more was not examined: the time limit was reached"] if budget.passed else []
    return "\n".join([reason, *(f"- {remedy.text}" for remedy in remedies), *more])


_NAMED: Final = 4
"""Devices and jobs that are listed by name; the rest are only counted."""


def lacks_of_job(job: LiveJob, beliefs: JobBeliefs, stalled: str) -> str:
    """Return the state of a job and, if it waits, what it lacks apart from a start in the round.

    ``stalled`` is what the service lacks for any start, or empty.
    """
    machine = beliefs.machine
    lines = [f"{job.id}: {job.state}" + (f", {job.why}" if job.why != job.state else "")]
    if job.state not in QUEUED:
        capped = why_capped(beliefs, job)
        return f"{lines[0]}\nit has an SM share: {capped}" if capped else lines[0]
    if job.barred:
        return f"{lines[0]}\nit waits for {_barred(job)}"
    if job.alone_only:
        lines.append(f"it may run alone only: {job.alone_only}")
    elif job.state is JobState.SUBMITTED:
        lines.append("it starts alone: its workload has no profile yet")
    elif waits_for_shares(beliefs, job):
        lines.append(
            "it waits for an idle device, or for jobs with which it was measured: beside others "
            "it needs an SM share, and none is proven for it yet"
        )
    elif needs_shares(beliefs, job):
        lines.append(
            "beside a job with which it never ran without SM shares, it and that job need one "
            "from their starts"
        )
    if _everywhere(machine, job):
        lines.append("each device that takes jobs has a replica of its service already")
    if stalled:
        lines.append(f"no job starts: each waits for {stalled}")
    if own := _reserved_for(machine, job):
        lines.append(own)
    else:
        lines += _reserved(machine, _idle(machine))
    return "\n".join([*lines, *_taking_none(machine, machine.devices)])


def _everywhere(machine: StateMachine, job: LiveJob) -> bool:
    """Return whether each device that takes jobs has another replica of a job's service."""
    if not job.service:
        return False
    held = {gpu for other in machine.replicas(job.service) for gpu in other.devices}
    free = (name for name, device in machine.devices.items() if not device.trouble)
    return held.issuperset(free)


def _barred(job: LiveJob) -> str:
    """Return what a job waits for, other than devices."""
    need = [name for name in job.awaits if name in job.spec.after]
    ends = [name for name in job.awaits if name not in need]
    return ", and ".join(
        filter(
            None,
            [
                f"its release (held by {job.held}: dovetail release JOB)" if job.held else "",
                _rest(job),
                f"{_few(need)} to finish" if need else "",
                f"{_few(ends)} to end" if ends else "",
                f"other jobs of its array (at most {job.spec.most_running} may run at a time)"
                if job.crowded
                else "",
            ],
        )
    )


def _rest(job: LiveJob) -> str:
    """Return how a service that rests may start at once; empty if it does not rest."""
    if job.again_s is None:
        return ""
    failing = job.quick_ends >= MANY_QUICK_ENDS
    ends = f", as it is failing: {job.quick_ends} quick ends in a row" if failing else ""
    return f"the end of its rest{ends} (dovetail requeue JOB ends it)"


def _barring(job: LiveJob) -> Wait:
    if job.held:
        return Wait.HELD
    if job.again_s is not None:
        return Wait.REST
    return Wait.DEPENDENCY if job.awaits else Wait.ARRAY_LIMIT


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _taking_none(machine: StateMachine, devices: Iterable[str]) -> list[str]:
    """Return which of these devices of the pool take no jobs, one line per reason."""
    by_reason: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in devices:
        device = machine.devices[name]
        if device.present and device.trouble:
            by_reason[device.sick, device.trouble].append(name)
    return [
        f"{listed(names)} take no jobs: {sick or f'each {trouble}'}"
        if len(names) > 1
        else f"{names[0]} takes no jobs: {sick or f'it {trouble}'}"
        for (sick, trouble), names in by_reason.items()
    ]


def _idle(machine: StateMachine) -> list[str]:
    """Return the devices without jobs."""
    held = machine.residents()
    return [name for name in machine.devices if not held[name]]


def _reserved_for(machine: StateMachine, job: LiveJob) -> str:
    """Return which devices are reserved for a job, and why; empty if none."""
    if job.id not in machine.reserved:
        return ""
    gpus = machine.reserved[job.id].gpus
    named = ", ".join(gpus) if len(gpus) <= _NAMED else f"{len(gpus)} devices"
    latency = job.spec.priority == "latency"
    why = "latency-critical jobs come first" if latency else "it has waited too long"
    return f"{named}: reserved for it because {why}"


def _reserved(machine: StateMachine, idle: list[str]) -> Iterator[str]:
    """Yield which of these idle devices are reserved, and for which job."""
    for job, one in machine.reserved.items():
        if names := [name for name in one.gpus if name in idle]:
            verb = "are" if len(names) > 1 else "is"
            yield f"{listed(names, _NAMED)} {verb} idle, and reserved for {job}"


class Lacks(NamedTuple):
    """What waiting jobs lack, in a few words.

    Attributes
    ----------
    beliefs : JobBeliefs
        Jobs, devices, and beliefs about them.
    closed : bool
        Whether no device takes jobs.
    dry_run : bool
        Whether no job is started at all.
    stalled : str
        What the service lacks for any start, or empty.
    before : Precedence
        The order of users.
    unused : str
        The idle devices that take no jobs, and why; empty if there are none.
    kept : str
        The idle devices that are reserved, and for which jobs; empty if there are none.
    """

    beliefs: JobBeliefs
    closed: bool
    dry_run: bool
    stalled: str
    before: Precedence
    unused: str
    kept: str

    @classmethod
    def of(cls, beliefs: JobBeliefs, dry_run: bool, stalled: str) -> Self:
        """Return the present state of devices, reservations and users."""
        machine = beliefs.machine
        closed = all(device.trouble for device in machine.devices.values())
        idle = _idle(machine)
        unused = "; ".join(_taking_none(machine, idle))
        kept = "; ".join(_reserved(machine, idle))
        return cls(beliefs, closed, dry_run, stalled, Precedence.of(machine), unused, kept)

    @property
    def machine(self) -> StateMachine:
        """Jobs and devices."""
        return self.beliefs.machine

    def of_job(self, job: LiveJob) -> str:
        """Return what a waiting job lacks; empty for other jobs."""
        if job.state not in QUEUED:
            return ""
        if job.barred:
            return _barred(job)
        if self.dry_run:
            return "a service that starts jobs: this is a dry run"
        if self.stalled:
            return self.stalled
        kept = "" if job.id in self.machine.reserved else self.kept
        return "; ".join(filter(None, [self._devices_for(job), self.unused, kept]))

    def waits(self) -> Mapping[Wait, int]:
        """Return the number of waiting jobs by what they lack."""
        machine = self.machine
        found = Counter(dict.fromkeys(Wait, 0))
        found.update(_barring(job) for job in machine.barred.values())
        without_shares: dict[tuple[object, ...], bool] = {}
        for job in machine.queued.values():
            if self.dry_run or self.stalled:
                found[Wait.SERVICE] += 1
            elif self.closed:
                found[Wait.NO_DEVICE] += 1
            elif self.before.ahead(job):
                found[Wait.ORDER] += 1
            elif not machine.may_share(job):
                found[Wait.IDLE_DEVICE] += 1
            else:
                # What its shares depend on.
                alike = job.spec.key, job.spec.priority, job.spec.isolation
                if alike not in without_shares:
                    without_shares[alike] = waits_for_shares(self.beliefs, job)
                found[Wait.SM_SHARE if without_shares[alike] else Wait.ROOM] += 1
        return found

    def _devices_for(self, job: LiveJob) -> str:
        if self.closed:
            return "a device that takes jobs"
        if _everywhere(self.machine, job):
            return "a device without a replica of its service"
        if own := _reserved_for(self.machine, job):
            return own
        devices = "an idle device" if job.spec.workers == 1 else f"{job.spec.workers} idle devices"
        if self.machine.may_share(job):
            devices = f"{devices}, or room beside other jobs"
            if waits_for_shares(self.beliefs, job):
                devices = f"{devices} once an SM share is proven for it"
        before = self.before.ahead(job)
        return f"{before[0]}: {devices}, after jobs of {before[1]}" if before else devices


# SM shares.


def why_capped(beliefs: JobBeliefs, job: LiveJob) -> str:
    """Return why a run has an SM share, if a co-runner is the reason; empty if none is."""
    capped = job.run is not None and caps_of([seat.share for seat in job.run.seats])
    if job.run is None or not capped or beliefs.cluster.uncapped:
        return ""
    residents = beliefs.machine.residents()
    never = {
        other.id: None
        for seat in job.run.seats
        for other in (residents[seat.gpu] if caps_of([seat.share]) else ())
        if other is not job and not _ran_uncapped(beliefs, job, other, seat.gpu)
    }
    if not never:
        return ""
    return f"it never ran without one beside {listed(list(never), _NAMED)}"


def _ran_uncapped(beliefs: JobBeliefs, job: LiveJob, other: LiveJob, gpu: str) -> bool:
    found = beliefs.pair(job, other, UNCAPPED, beliefs.devices.models[gpu])
    return found is not None and found.kind in SEEN


def needs_shares(beliefs: JobBeliefs, job: LiveJob) -> bool:
    """Return whether a job runs without an SM share only beside jobs it was measured with."""
    assumed = beliefs.cluster.assumed
    declared = assumed is not None and assumed.pair is not None
    return not (beliefs.cluster.uncapped or declared) and beliefs.machine.may_share(job)


def waits_for_shares(beliefs: JobBeliefs, job: LiveJob) -> bool:
    """Return whether no SM share is proven for a job that needs one beside others."""
    return needs_shares(beliefs, job) and not any(
        caps_of(beliefs.allowed(job.spec, model)) for model in beliefs.models
    )


TIME_LIMIT_S: Final = 5.0
"""Seconds that a plan's reasons, or an explanation, may take."""

_COSTLY_S: Final = 0.1
_FRESH_S: Final = 60.0
"""Seconds for which a preview is valid if nothing happens; only the work done changes meanwhile."""


@dataclass
class _Preview:
    """A decision, with the plan and the texts computed from it so far."""

    choice: PlannedDecision
    sequence: int
    made_s: float
    took_s: float
    plan: Plan | None = None
    texts: dict[str, str] = field(default_factory=dict)

    def is_shown(self, job: str, sequence: int, now_s: float) -> bool:
        """Return whether this is recent enough for a job (empty: for all jobs)."""
        if self.sequence == sequence:
            return now_s < self.made_s + _FRESH_S
        known = not job or job in self.choice.instance.jobs_by_id
        return known and self.took_s > _COSTLY_S and now_s < self.rest_until_s

    @property
    def rest_until_s(self) -> float:
        """When the service's thread may make a decision for a preview again."""
        return self.made_s + REST * self.took_s


class Previews:
    """Answers what users ask of rounds; thread-safe.

    Parameters
    ----------
    live : Live
        What the parts of the service share.
    decider : Decider
        Makes decisions; used only for previews here.
    """

    def __init__(self, live: Live, decider: Decider) -> None:
        self._live, self._decider = live, decider
        self._one = threading.Lock()
        self._last: _Preview | None = None
        self._of_audience: dict[str, _Preview] = {}
        self._lacked: tuple[tuple[int, str, int], Lacks] | None = None
        self._waits: tuple[Lacks, Mapping[Wait, int]] | None = None

    def noted(self, service: ServiceView) -> ServiceView:
        """Return the view of the service with the last decision and the evidence for shares."""
        decider, evidence = self._decider, self._decider.gatherer.view()
        return replace(service, decide_s=decider.took_s, gap=decider.gap, evidence=evidence)

    # The caller holds the lock of the state machine.

    def waiting_for(self, job: LiveJob) -> str:
        """Return what a waiting job lacks; empty for other jobs."""
        return self._lacks().of_job(job)

    def waits(self) -> Mapping[Wait, int]:
        """Return the number of waiting jobs by what they lack."""
        lacks = self._lacks()
        if self._waits is None or self._waits[0] is not lacks:
            self._waits = lacks, lacks.waits()
        return self._waits[1]

    def why_capped(self, job: LiveJob) -> str:
        """Return why a run has an SM share, if a co-runner is the reason; empty if none is."""
        return why_capped(self._live.beliefs, job)

    def _lacks(self) -> Lacks:
        """Return what waiting jobs lack, recomputed after an event and each second."""
        live = self._live
        now = live.machine.sequence, self._stalled(), int(live.now_s)
        if self._lacked is None or self._lacked[0] != now:
            self._lacked = now, Lacks.of(live.beliefs, live.dry_run, now[1])
        return self._lacked[1]

    def _stalled(self) -> str:
        """Return what prevents any start, even on idle devices; empty if nothing."""
        troubles = self._live.troubles
        if "disk" in troubles:
            return "room on the disk of the service, which is full"
        if "journal" in troubles:
            return "the journal of the service, which cannot be written"
        if "world" in troubles or self._decider.policy.trouble:
            return "a decision of the policy, which fails"
        return ""

    # The present round. ``audience`` is the only user whose workloads may be named; empty: all
    # users' may.

    def instance(self, audience: str = "") -> Instance:
        """Return the present round."""
        with self._one:
            return self._now(audience).choice.instance

    def plan(self, audience: str = "") -> Plan:
        """Return a plan of the policy's present decision."""
        with self._one:
            return self._plan(self._now(audience))

    def outlook(self, audience: str = "") -> HourAhead:
        """Return what is expected to start and to end within the next hour."""
        with self._one:
            preview = self._now(audience)
        choice = preview.choice
        with self._live.lock:
            expected = {job.id: self._expected(job) for job in choice.instance.jobs}
        return outlook(choice.instance, choice.assigned, choice.objective, expected, preview.made_s)

    def _expected(self, job: Job) -> ExpectedEnd:
        """Return how much work a job has left: by its measured rate, else by its estimate."""
        live = self._live.machine.jobs.get(job.id)
        if live is None:
            return ExpectedEnd()
        if live.service:
            return ExpectedEnd(by=SERVICE)
        seen = self._live.readings.now.get(live.run.id) if live.run and job.running else None
        if seen is not None and seen.total and seen.iterations is not None and seen.rate:
            left = max(seen.total - seen.iterations, 0.0)
            return ExpectedEnd(left / (seen.solo_rate or seen.rate), "rate", left / seen.rate)
        if live.spec.estimate_s is not None and job.remaining_s is not None:
            return ExpectedEnd(job.remaining_s, "estimate")
        return ExpectedEnd()

    def explain(self, job: LiveJob, audience: str = "") -> str:
        """Return why a job waits and what would let it start, or where it runs."""
        live = self._live
        with live.lock:
            text, over = lacks_of_job(job, live.beliefs, self._stalled()), job.state in OVER
            # While no device takes jobs, other remedies are useless.
            waits = job.state in QUEUED
            closed = waits and self._lacks().closed
        if waits and not job.barred:
            text = "\n".join(filter(None, [text, awaited_text(live.pool)]))
        if over or closed or job.barred:
            return text
        lines = [text, self._of_round(job.id, audience)]
        if waits and live.dry_run:
            lines.append("this is a dry run: nothing is started")
        return "\n".join(lines)

    def _of_round(self, job: str, audience: str) -> str:
        with self._one:
            preview = self._now(audience, job)
            if job not in preview.texts:
                budget = Budget.of(TIME_LIMIT_S)
                plan = self._plan(preview)
                preview.texts[job] = of_choice(job, preview.choice, plan, budget)
            return preview.texts[job]

    def _plan(self, preview: _Preview) -> Plan:
        if preview.plan is None:
            preview.plan = plan_of(preview.choice, Budget.of(TIME_LIMIT_S))
        return preview.plan

    def _now(self, audience: str, job: str = "") -> _Preview:
        last = self._last
        if last is None or not last.is_shown(job, self._live.machine.sequence, self._live.now_s):
            if last is not None:
                time.sleep(max(0.0, last.rest_until_s - self._live.now_s))
            last = self._last = self._live.requests.read(self._chosen)
            self._of_audience = {"": last}
        if audience not in self._of_audience:
            choice = last.choice.for_user(audience)
            self._of_audience[audience] = _Preview(choice, last.sequence, last.made_s, last.took_s)
        return self._of_audience[audience]

    def _chosen(self) -> _Preview:
        live, decider, began = self._live, self._decider, time.thread_time()
        before = Precedence.of(live.machine)
        instance, decision, objective = decider.choose()
        choice = PlannedDecision.of(
            instance, decider.view.state, decision, decider.policy.name, objective
        )
        jobs = [live.machine.jobs[job.id] for job in choice.instance.jobs]
        choice = choice._replace(
            notice=live.pool.notice,
            alone=frozenset(job.id for job in jobs if not live.machine.may_share(job)),
            before={job.id: rule for job in jobs if (rule := before.ahead(job)) is not None},
            services=frozenset(job.id for job in jobs if job.service),
        )
        took_s = time.thread_time() - began
        return _Preview(choice, live.machine.sequence, live.now_s, took_s)
