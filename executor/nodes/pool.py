"""The pool of many machines: each has an agent that keeps its jobs; this is their controller.

It asks agents and takes answers in as they come. All that is known stands behind one lock, which
nobody holds while he waits; so neither a node nor an engine that hangs holds up the service.
``docs/explanation/nodes.md`` tells what happens when a part of it dies.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Final

from dovetail.executor.jobs.events import (
    AnyEvent,
    DeviceHealed,
    DeviceSick,
    RankEnded,
    RankGone,
    RankLost,
    RankReady,
    RankRefused,
    RankStarted,
)
from dovetail.executor.jobs.specs import Run
from dovetail.executor.nodes.calls import ANSWER_S, FencedOutError, NoAnswerError
from dovetail.executor.nodes.condition import Condition
from dovetail.executor.nodes.fence import raise_epoch
from dovetail.executor.nodes.gangs import Gangs
from dovetail.executor.nodes.known_nodes import KnownNodes, merged
from dovetail.executor.nodes.lease import LEASE_S, Granted, Lease, require_length
from dovetail.executor.nodes.log_parts import CopiedLogs, LogPiece, LogPlace
from dovetail.executor.nodes.messages import (
    Answer,
    AnyOrder,
    Commit,
    Launch,
    Pause,
    Release,
    Stop,
    read_message,
)
from dovetail.executor.nodes.rank_log import RankEvent, RankLog, RankStatus
from dovetail.executor.nodes.ray_finding import RayFinder, Sighted
from dovetail.executor.nodes.remote import OnItsWay, Remote, joined, node_of, parts_of
from dovetail.executor.pools.device_health import Cause, DeviceHealth
from dovetail.executor.pools.parts import Part, Prepared
from dovetail.executor.pools.pool import SAMPLE_S, Progress, Usage
from dovetail.executor.system.clock import boot_s
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Cluster

FIND_S: Final = 20.0
"""Seconds that the first node has at the start to answer."""

OTHERS_S: Final = 5.0
"""Seconds that the others have; who comes later joins."""

ATTACH_S: Final = 10.0
"""Seconds that nodes have to tell what they run; of who does not, ranks count as lost."""

SILENT_S: Final = 3.0
"""Seconds after its last answer from which on a node that does not answer is told as such."""

FORGET_S: Final = 3600.0
"""Seconds without an answer after which a node is forgotten that its engine no longer names."""

DELIVER_S: Final = 3.0
"""Seconds that orders have to be delivered when the pool is closed."""

QUIET_S: Final = 2.0
"""Seconds that an agent waits for news at most."""

_LOOKED_S: Final = 5.0
_LOOK_S: Final = 0.5
_TOLD: Final = 3
_OTHER: Final = "its agent has another directory than before, and does not know what ran there"

_log = logging.getLogger(__name__)


class NodesPool:
    """Devices of many machines (a ``NodePool``).

    It begins with the nodes that answer soon, or did before; others join when they answer first.

    A device of node ``n1`` is called ``n1/`` and what its node calls it.

    Parameters
    ----------
    directory : path
        The service's state directory.
    finder : RayFinder
        Finds the nodes; started and closed by this pool.
    lease_s : float
        Seconds that a node's jobs run on when the node is cut off, at least ``lease.LEAST_S``.
    find_s : float
        Seconds to wait at the start for nodes to answer.
    sample_s : float
        Seconds between two looks at progress: as often it is asked for, while somebody looks.

    Raises
    ------
    InputError
        When the lease is too short, or a file of an earlier controller cannot be understood.
    """

    # What is wrong with a node is told of its devices.
    trouble = ""

    def __init__(
        self,
        directory: Path,
        finder: RayFinder,
        lease_s: float = LEASE_S,
        find_s: float = FIND_S,
        sample_s: float = SAMPLE_S,
    ) -> None:
        require_length(lease_s)
        self.name, self.notice = finder.name, ""
        self._files = directory / "nodes"
        self._files.mkdir(parents=True, exist_ok=True)
        self._mark = raise_epoch(self._files / "controller.json")
        self._granted = Granted(self._files / "lease.json", lease_s, boot_s())
        self._finder, self._lease_s = finder, lease_s
        self._watched_s = min(sample_s, QUIET_S)
        self._known = KnownNodes(self._files / "known")
        self._lock = threading.RLock()
        self._condition = Condition()
        self._seen: queue.SimpleQueue[AnyEvent] = queue.SimpleQueue()
        self._wake: Callable[[], None] = lambda: None
        self._remotes: dict[str, Remote] = {}
        self._runs: dict[str, Run] = {}
        self._gangs = Gangs(self._order)
        self._ordered: set[str] = set()
        self._told = RankLog()
        self._merged: tuple[int, Cluster] | None = None
        self._beyond: dict[str, Run] = {}
        self._looked_s = 0.0
        self._lacking = 0
        self._resumed = self._taken_up = False
        self._logs = CopiedLogs(self._files / "logs")
        self._device_health = DeviceHealth(self._files / "sick-devices.json", self._put)
        self._closing = threading.Event()
        finder.start()
        self._follow_nodes()
        threading.Thread(target=self._look_after, name="looks after nodes", daemon=True).start()
        self._await_nodes(find_s)

    def _look_after(self) -> None:
        while not self._closing.wait(self._until_lapse_s()):
            for look in (self._look_at_leases, self._follow_nodes):
                try:
                    look()
                except Exception:  # an engine in trouble must not end what runs, nor leases be lost
                    _log.exception("nodes cannot be looked after at present")

    # Nodes.

    def _follow_nodes(self) -> None:
        """Begin to talk to nodes that are new, spare those that leave, forget those that left."""
        named = self._finder.nodes()
        for node in [*self._known.nodes(), *named]:
            self._meet(node, named.get(node))
        self._spare_leaving(named)
        with self._lock:
            busy = {node for node, remote in self._remotes.items() if remote.parts}
            for node in self._remotes.keys() - named.keys():
                self._forget_if_gone(self._remotes[node])
        self._finder.weigh(self._lacking, busy)

    def _meet(self, node: str, where: Sighted | None = None) -> None:
        """Begin to talk to a node, unless that has begun; its rack may be another now."""
        with self._lock:
            known = self._remotes.get(node)
            if known is not None and where is not None:
                known.rack = where.rack
            if known is not None or self._closing.is_set():
                return
            lease = Lease(self._lease_s, boot_s(), self._granted.longest_s)
            facts, rack = self._known.of(node)
            remote = Remote(node, lease, facts, where.rack if where else rack)
            if self._resumed:
                remote.take_up()
            self._remotes[node] = remote
            self._ask(node)

    def _forget_if_gone(self, remote: Remote) -> None:
        """Forget a node that nobody names, unless something may still run there."""
        gone = remote.silent and boot_s() > remote.lease.heard_s + FORGET_S
        others = any(one.facts for one in self._remotes.values() if one is not remote)
        if gone and others and not remote.parts:
            del self._remotes[remote.id]
            self._ordered.discard(remote.id)
            self._known.forget(remote.id)
            self._wake()

    def _spare_leaving(self, named: Mapping[str, Sighted]) -> None:
        """Let no jobs be started on nodes that leave."""
        with self._lock:
            for node, where in named.items():
                remote = self._remotes.get(node)
                for gpu in remote.devices() if remote else ():
                    if where.leaving:
                        self._device_health.report(gpu.id, Cause.ENGINE, where.leaving)
                    else:
                        self._device_health.heal(gpu.id, Cause.ENGINE)

    def _await_nodes(self, within_s: float) -> None:
        """Wait until one node has answered, and a little longer for the others."""

        def all_have_answered() -> bool:
            named = self._finder.nodes()
            with self._lock:
                known = [self._remotes.get(node) for node in named]
                return all(one is not None and one.incarnation for one in known)

        def has_facts() -> bool:
            with self._lock:
                return any(remote.facts for remote in self._remotes.values())

        begun_s = boot_s()
        self._condition.wait_for(has_facts, within_s)
        others_s = begun_s + min(within_s, OTHERS_S) - boot_s()
        self._condition.wait_for(all_have_answered, others_s)

    def _await_all(self, condition: Callable[[Remote], bool], within_s: float) -> None:
        def hold() -> bool:
            with self._lock:
                return all(condition(remote) for remote in self._remotes.values())

        self._condition.wait_for(hold, within_s)

    @property
    def awaited(self) -> str:
        """Nodes that are named and have never answered, and what the engine says of others."""
        named = sorted(self._finder.nodes())
        with self._lock:
            known = ((node, self._remotes.get(node)) for node in named)
            new = [
                (node, one.silent if one else "") for node, one in known if not (one and one.facts)
            ]
        told = [*self._finder.awaited(), *(f"{node} ({why})" if why else node for node, why in new)]
        more = f" and {len(told) - _TOLD} more" if len(told) > _TOLD else ""
        return ", ".join(told[:_TOLD]) + more

    @property
    def generation(self) -> int:
        """A number that grows whenever ``cluster`` has become another; ``attach``'s wake tells."""
        return self._known.generation

    def lack(self, devices: int) -> None:
        """Take in how many devices the jobs lack that wait, for the engine to have more."""
        self._lacking = devices

    def cluster(self) -> Cluster:
        """Return the devices of all nodes that have ever answered: one object until it changes."""
        with self._lock:
            if self._merged is None or self._merged[0] != self.generation:
                remotes = [self._remotes[node] for node in sorted(self._remotes)]
                self._merged = self.generation, merged(remotes)
            return self._merged[1]

    # The service's calls.

    def sharing(self, first: Run, second: Run) -> str | None:
        """Return why two runs may never share a device of any node; None: they may."""
        same = first.spec.owner.uid == second.spec.owner.uid
        with self._lock:
            facts = [remote.facts for remote in self._remotes.values() if remote.facts]
        reasons = (one.sharing if same else one.sharing_others for one in facts)
        return next((reason for reason in reasons if reason), None)

    def library(self, run: Run) -> str:
        """Return the library that decides which shares compute right for a run."""
        with self._lock:
            told = (remote.libraries.get(run.id, "") for remote in self._remotes.values())
            return next(filter(None, told), "")

    def allowed(self, library: str, model: str) -> Collection[int]:
        """Return the shares that every node with this device model allows.

        Nodes that do not answer are left out: nothing is placed there.
        """
        with self._lock:
            facts = [one.facts for one in self._remotes.values() if one.facts and not one.silent]
        found = (one.allowed.get(library, one.allowed.get("", {})).get(model) for one in facts)
        shares = [set(each) for each in found if each is not None]
        return set.intersection(*shares) if shares else ()

    def attach(self, wake: Callable[[], None]) -> None:
        """Set what to call, from any thread, as soon as ``poll`` has something to tell."""
        self._wake = wake

    def resume(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Take up the runs that should exist, and return what was found beyond them."""
        with self._lock:
            self._device_health.resume(
                [gpu.id for r in self._remotes.values() for gpu in r.devices()]
            )
            for run in runs:
                self._admit(run)
            self._resumed = True
            for node, remote in self._remotes.items():
                remote.take_up()
                self._ask(node)
        self._await_all(lambda remote: remote.attached or bool(remote.silent), ATTACH_S)
        with self._lock:
            for remote in self._remotes.values():
                if not remote.attached:
                    self._lose(remote, remote.silent or "it has not told what it runs")
            self._taken_up = True
            return [*self._beyond.values()]

    def prelaunch(self, run: Run) -> None:
        """Do nothing: orders to nodes wait until the start is durable."""

    def launch(self, run: Run) -> None:
        """Start every rank of the run that has no trace yet, all or none at the same time."""
        with self._lock:
            if self._gangs.has(run.id):
                return
            parts = self._admit(run)
            refusal = self._why_not_now(run, parts)
            if refusal:
                self._refuse(run, refusal)
                return
            self._logs.remember(run, {rank: n for n, part in parts.items() for rank in part.ranks})
            if len(parts) == 1:
                ((node, part),) = parts.items()
                self._order(node, Launch(run=part.run))
            elif self._has_trace(run, parts):
                self._gangs.go_on(run.id, parts)
            else:
                self._gangs.begin(run.id, parts)
        self._send_orders()

    def stop(self, run: str, grace_s: float) -> None:
        """End every rank of the run (ask, wait, terminate, kill); calling it again is harmless."""
        with self._lock:
            known = self._runs.get(run)
            if known is None:
                return
            self._give_up(run, "it was stopped before it was started")
            for node, part in self._parts(known).items():
                self._order(node, Stop(part=part, grace_s=grace_s))
        self._send_orders()

    def pause(self, run: str, on: bool) -> None:
        """Stop every process of a run where it is, or let it go on; again harmless."""
        with self._lock:
            known = self._runs.get(run)
            for node in self._parts(known) if known is not None else ():
                self._order(node, Pause(run=run, on=on))
        self._send_orders()

    def release(self, run: str) -> None:
        """Give back what an ended run held. Logs stay."""
        with self._lock:
            known = self._runs.pop(run, None)
            if known is None:
                return
            for node in self._parts(known):
                self._remotes[node].parts.pop(run, None)
                self._order(node, Release(run=run))
            self._gangs.forget(run)
            self._told.forget(run)
        self._send_orders()

    def poll(self) -> Sequence[AnyEvent]:
        """Return at once what has happened since the last call; the caller sets ``at_s``."""
        return [self._seen.get_nowait() for _ in range(self._seen.qsize())]

    def progress(self, run: str) -> Sequence[Progress | None]:
        """Return how far each rank of a run was when its node last told."""
        with self._lock:
            self._looked_s = boot_s()
            known = self._runs.get(run)
            if known is None:
                return ()
            told = (self._remotes[node_of(seat.gpu)].progress.get(run, ()) for seat in known.seats)
            return [one[rank] if rank < len(one) else None for rank, one in enumerate(told)]

    def usage(self) -> Mapping[str, Usage]:
        """Return what each device of the nodes that answer was doing when its node last told."""
        with self._lock:
            self._looked_s = boot_s()
            answering = [remote for remote in self._remotes.values() if not remote.silent]
            return {device: used for r in answering for device, used in r.usage.items()}

    def log_path(self, run: str, rank: int) -> str | None:
        """Return the copy of a rank's log, with what its node has of it by now."""
        known = self._runs.get(run)
        seats = known.seats if known is not None else ()
        node = node_of(seats[rank].gpu) if rank < len(seats) else self._logs.place(run, rank)
        if node is None:
            return None

        def ask(part: str, offset: int) -> LogPiece:
            remote = self._remotes.get(node)
            if self._closing.is_set() or remote is None or remote.silent:
                return LogPiece()
            place = LogPlace(run=run, rank=rank, part=part, offset=offset)
            answer = self._finder.call(node, "log", place.model_dump_json())
            return read_message(LogPiece, answer.result(ANSWER_S))

        return self._logs.mirror(run, rank).update(ask)

    def prune(self, keep_s: float) -> None:
        """Remove what is known here of runs that ended longer ago; agents do so on their nodes."""
        self._logs.prune(keep_s, self._runs.__contains__)

    def close(self) -> None:
        """Let go of everything but the jobs: they run on, until their leases lapse."""
        if self._closing.is_set():
            return
        # What was ordered a moment ago is to reach the nodes that answer.
        self._await_all(lambda remote: not remote.waiting or bool(remote.silent), DELIVER_S)
        self._closing.set()
        self._finder.close()

    # Runs and their parts.

    def _admit(self, run: Run) -> Mapping[str, Part]:
        """Note a run, and return its parts by node as the nodes name their devices."""
        self._runs[run.id] = run
        parts = self._parts(run)
        for node, part in parts.items():
            self._remotes[node].parts[run.id] = part
        return parts

    def _parts(self, run: Run) -> dict[str, Part]:
        parts = parts_of(run)
        for node in parts:
            self._meet(node)
        return parts

    def _why_not_now(self, run: Run, parts: Mapping[str, Part]) -> str:
        """Return why a run that nothing is known of cannot be started at present."""
        if any(self._told.lost(run.id, rank) for rank in range(len(run.seats))):
            return ""
        if self._has_trace(run, parts):
            return ""
        silent = [r for r in (self._remotes[node] for node in parts) if r.silent or r.facts is None]
        return f"{silent[0].id} does not answer: {silent[0].silent}" if silent else ""

    def _has_trace(self, run: Run, nodes: Collection[str]) -> bool:
        return any(self._remotes[node].rank_log.has_trace(run.id) for node in nodes)

    def _order(self, node: str, order: AnyOrder) -> None:
        self._remotes[node].order(order)
        self._ordered.add(node)

    def _send_orders(self) -> None:
        with self._lock:
            while self._ordered:
                self._ask(self._ordered.pop())

    def _give_up(self, run: str, reason: str) -> None:
        """Abort a gang that has not been told to start, so that it never will be."""
        if self._gangs.give_up(run, reason):
            self._refuse(self._runs[run], reason)

    def _refuse(self, run: Run, reason: str) -> None:
        for rank in range(len(run.seats)):
            self._tell(RankRefused(at_s=0.0, run=run.id, rank=rank, reason=reason, later=True))

    def _give_up_hopeless(self) -> None:
        for run, reason in self._gangs.hopeless(lambda node: bool(self._remotes[node].silent)):
            self._give_up(run, reason)

    # Calls to agents.

    def _ask(self, node: str) -> None:
        """Ask a node what is to be asked, unless it is being asked; the lock is held."""
        remote = self._remotes[node]
        if self._closing.is_set() or not remote.askable:
            return
        watched = boot_s() < self._looked_s + _LOOKED_S
        wait_s = self._watched_s if watched else QUIET_S
        call, asked = remote.request(self._mark, wait_s, watched)
        answer = self._finder.call(node, "exchange", asked.model_dump_json())
        answer.add_done_callback(partial(self._took, node, call))

    def _took(self, node: str, call: OnItsWay, answer: Future[str]) -> None:
        """Take in that a call has been answered, or never will be."""
        received_s = boot_s()
        told = _read(answer)
        with self._lock:
            remote = self._remotes.get(node)
            if remote is None or self._closing.is_set() or not remote.hold(call, received_s):
                return
        if isinstance(told, Answer) and told.failed:
            # Answers of other nodes do not wait for what the engine says.
            threading.Thread(target=self._judge, args=(node, call, told), daemon=True).start()
        else:
            self._take_in(node, call, told)

    def _judge(self, node: str, call: OnItsWay, told: Answer) -> None:
        """Take in that ranks have failed, or that they are gone as their node is taken back."""
        taken_back = self._finder.taken_back(node)
        if taken_back:
            # Before it is told: jobs are started again at once, and not on what is going.
            self._spare_leaving(self._finder.nodes())
            told = told.excused(taken_back)
        self._take_in(node, call, told)

    def _take_in(self, node: str, call: OnItsWay, told: Answer | NoAnswerError) -> None:
        with self._lock:
            remote = self._remotes.get(node)
            if remote is None:
                return
            remote.drop(call)
            try:
                if isinstance(told, NoAnswerError):
                    self._missed(remote, told)
                elif remote.is_other(told) and not self._displaced(remote):
                    self._missed(remote, NoAnswerError(_OTHER), at_once=True)
                else:
                    self._answered(remote, told, call)
            except Exception as error:  # a node that is never asked again would be lost for ever
                _log.exception("what %s has told cannot be taken in", node)
                self._missed(remote, NoAnswerError(f"it cannot be taken in: {error}"))
            self._ask(node)
        self._condition.ring()
        self._send_orders()

    def _answered(self, remote: Remote, answer: Answer, call: OnItsWay) -> None:
        was_silent, attached = bool(remote.silent), remote.attached
        before = remote.incarnation
        new = remote.take_in(answer, call.sent_s, call.received_s)
        if remote.incarnation != before:
            for run in self._gangs.lost_prepared(remote.id):
                self._give_up(run, f"{remote.id}: its agent died before the start")
        if self._known.note(remote):
            told = [one.facts.notice for one in self._remotes.values() if one.facts]
            self.notice = "; ".join(dict.fromkeys(filter(None, told)))
            self._wake()
        if was_silent:
            _log.warning("%s answers again", remote.id)
            self._tell_anew(remote)
        if answer.beyond is not None and remote.attached:
            self._note_beyond(remote, answer.beyond)
        for event in new:
            self._happened(remote, event)
        self._gangs.trust(remote.id)
        if remote.attached and not attached:
            self._miss_traces(remote)
        remote.forget_released()
        self._judge_devices(remote)

    def _missed(self, remote: Remote, why: NoAnswerError, at_once: bool = False) -> None:
        """Take in that a node does not answer: after a while, or at once, it is silent."""
        remote.broken_off()
        self._gangs.doubt(remote.id)
        fenced = isinstance(why, FencedOutError)
        remote.fenced |= fenced
        at_once |= fenced
        if at_once or boot_s() > remote.lease.heard_s + SILENT_S:
            if not remote.silent:
                _log.warning("%s does not answer: %s", remote.id, why)
            if not remote.silent or at_once:
                # What is told changes no more, or every try would be told anew.
                remote.silent = str(why)
            if self._resumed:
                self._lose(remote)
        self._give_up_hopeless()

    def _displaced(self, remote: Remote) -> bool:
        """Tell whether nothing can run any more of what a node's last agent may have started."""
        if not self._resumed or boot_s() < remote.lease.gone_s:
            return False
        self._tell_gone(remote)
        remote.displace()
        return True

    # Leases.

    def _until_lapse_s(self) -> float:
        with self._lock:
            left = (remote.lease.gone_s - boot_s() for remote in self._remotes.values())
            return min([_LOOK_S, *(left_s for left_s in left if left_s > 0)])

    def _look_at_leases(self) -> None:
        with self._lock:
            self._granted.forget_lapsed(boot_s())
            for remote in self._remotes.values() if self._resumed else ():
                if boot_s() >= remote.lease.gone_s and not remote.fenced:
                    self._tell_gone(remote)
            self._give_up_hopeless()
            for node, remote in self._remotes.items():
                if remote.overdue():
                    told = f"it has not answered within {ANSWER_S:g} s"
                    self._missed(remote, NoAnswerError(told))
                self._ask(node)

    # What follows from it.

    def _happened(self, remote: Remote, event: AnyEvent | Prepared) -> None:
        match event:
            case Prepared(run=run, rendezvous=rendezvous):
                self._gangs.note_prepared(run, remote.id, rendezvous)
            case DeviceSick(gpu=gpu, reason=reason):
                self._device_health.report(gpu, Cause.NODE, reason)
            case DeviceHealed(gpu=gpu):
                self._device_health.heal(gpu, Cause.NODE)
            case RankRefused(run=run, reason=reason):
                self._tell(event)
                self._give_up(run, f"{remote.id}: {reason}")
            case RankStarted() | RankReady() | RankEnded() | RankLost() | RankGone():
                self._tell(event)

    def _tell(self, event: RankEvent) -> None:
        """Tell what happened to a rank, unless it is over, or its run nobody's any more."""
        if event.run not in self._runs or self._told.over(event.run, event.rank):
            return
        self._told.take_in(event)
        self._put(event)

    def _put(self, event: AnyEvent) -> None:
        self._seen.put(event)
        self._wake()

    def _ranks(self, remote: Remote) -> Iterator[tuple[str, int]]:
        """Yield the ranks that a node keeps and that are not known to be over."""
        for part in [*remote.parts.values()]:
            for rank in part.ranks:
                if not self._told.over(part.run.id, rank):
                    yield part.run.id, rank

    def _lose(self, remote: Remote, reason: str = "") -> None:
        why = f"{remote.id} does not answer: {reason or remote.silent}"
        for gpu in remote.devices():
            self._device_health.report(gpu.id, Cause.ANSWER, why)
        for run, rank in self._ranks(remote):
            if not self._told.lost(run, rank) and not self._gangs.is_open(run):
                self._tell(RankLost(at_s=0.0, run=run, rank=rank, reason=why))

    def _tell_gone(self, remote: Remote) -> None:
        """Tell that the ranks of a node are gone: its lease has lapsed, so none can run."""
        remote.silent = remote.silent or "it has not answered"
        self._lose(remote)
        for run, rank in [*self._ranks(remote)]:
            reason = f"{remote.id} has not answered, and its lease has lapsed"
            self._tell(RankGone(at_s=0.0, run=run, rank=rank, reason=reason))
            self._order(remote.id, Stop(part=remote.parts[run], grace_s=0.0))

    def _tell_anew(self, remote: Remote) -> None:
        """Tell how ranks are that counted as lost, now that their node answers again."""
        for run, rank in [*self._ranks(remote)]:
            if self._told.lost(run, rank):
                for event in (
                    remote.rank_log.statuses.get(run, {}).get(rank, RankStatus()).replayed()
                ):
                    self._tell(event)

    def _miss_traces(self, remote: Remote) -> None:
        """Tell that lost ranks are gone of which their node has no trace, nor an order to start."""
        for run, rank in [*self._ranks(remote)]:
            asked = isinstance(remote.standing.get(run), Launch | Commit | Stop)
            if self._told.lost(run, rank) and not remote.rank_log.has_trace(run) and not asked:
                reason = f"{remote.id} has no trace of it"
                self._tell(RankGone(at_s=0.0, run=run, rank=rank, reason=reason))

    def _note_beyond(self, remote: Remote, beyond: Sequence[Part]) -> None:
        """Note what a node keeps that nobody has asked for; told too late, it is ended at once."""
        for part in beyond:
            outside = remote.outside(part)
            name = part.run.id
            if name in self._runs and name in remote.parts:
                continue
            if self._taken_up:
                self._order(remote.id, Release(run=name))
                continue
            known = self._beyond.get(name)
            self._beyond[name] = outside.run if known is None else joined(known, outside)
            self._runs[name] = self._beyond[name]
            remote.parts[name] = part

    def _judge_devices(self, remote: Remote) -> None:
        """Let the devices of a node that answers be used, once nothing is left that is over."""
        if not remote.attached:
            return
        left = [
            run
            for run, statuses in remote.rank_log.statuses.items()
            for rank, status in statuses.items()
            if status.end is None and (run not in self._runs or self._told.over(run, rank))
        ]
        for gpu in remote.devices():
            if left:
                told = f"{left[0]} may still be on {remote.id}"
                self._device_health.report(gpu.id, Cause.ANSWER, told)
            else:
                self._device_health.heal(gpu.id, Cause.ANSWER)


def _read(answer: Future[str]) -> Answer | NoAnswerError:
    try:
        return read_message(Answer, answer.result())
    except NoAnswerError as error:
        return error
    except InputError as error:
        return NoAnswerError(f"its answer cannot be understood: {error}")
