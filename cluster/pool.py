"""The pool of many machines, which controls an agent on each of them.

It calls the agents and handles their answers as they arrive. One lock guards its state and is never
held during a call, so neither a node nor an engine (Ray, Slurm) that hangs blocks the service.
``docs/explanation/nodes.md`` describes the effects of failures.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Final

from dovetail.cluster.fence import raise_epoch
from dovetail.cluster.gangs import Gangs
from dovetail.cluster.known_nodes import KnownNode, merged, read_known, write_known
from dovetail.cluster.lease import LEASE_S, GrantedLease, RemoteLease, require_length
from dovetail.cluster.logs import CopiedLogs, LogPiece, LogPlace
from dovetail.cluster.messages import (
    ANSWER_S,
    AgentAnswer,
    AgentCallError,
    FencedError,
    read_message,
)
from dovetail.cluster.rank_log import RankLog
from dovetail.cluster.ray_finder import NodeInfo, RayFinder
from dovetail.cluster.remote import Call, Remote, joined, node_of, parts_of
from dovetail.executor.jobs.events import (
    AnyEvent,
    IsolationLost,
    IsolationRegained,
    RankEnded,
    RankEvent,
    RankGone,
    RankLost,
    RankRefused,
)
from dovetail.executor.jobs.specs import Run
from dovetail.executor.pools.device_health import Cause, DeviceHealth
from dovetail.executor.pools.pool import SAMPLE_S, Progress, Usage
from dovetail.executor.pools.runs.files import Part
from dovetail.executor.system.clock import boot_s
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Cluster

FIND_S: Final = 20.0
"""Seconds that a starting service waits for the first node to answer."""

OTHERS_S: Final = 5.0
"""Seconds that it waits for the other nodes; later ones join."""

ATTACH_S: Final = 10.0
"""Seconds that nodes have to report their runs; after that, their ranks are treated as lost."""

SILENT_S: Final = 3.0
"""Seconds after its last answer at which a node is treated as silent."""

FORGET_S: Final = 3600.0
"""Seconds without an answer after which a node that its engine does not name is forgotten."""

DELIVER_S: Final = 3.0
"""Seconds that agents have to accept the last wants when the pool is closed."""

QUIET_S: Final = 2.0
"""The longest time that an agent waits for news, in seconds."""

_LOOKED_S: Final = 5.0
_WATCH_S: Final = 0.5
_SHOWN: Final = 3
_OTHER: Final = "its agent has another directory than before, without the runs of the last one"

_log = logging.getLogger(__name__)


class NodesPool:
    """Devices of many machines (a ``NodePool``).

    The pool starts with the nodes that answer soon or answered an earlier controller; others join
    with their first answer. The name of a device is its node's name, a slash, and the node's own
    name for the device.

    Parameters
    ----------
    directory : path
        The service's state directory.
    finder : RayFinder
        Finds the nodes and calls their agents; started and closed by this pool.
    lease_s : float
        Seconds for which jobs keep running if their node is cut off, at least ``lease.LEAST_S``.
    find_s : float
        Seconds to wait for nodes at the start.
    sample_s : float
        Seconds between two readings of progress, while the service reads it.

    Raises
    ------
    InputError
        When the lease is too short, or a file of an earlier controller is invalid.
    """

    # Faults of a node are reported as faults of its devices.
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
        self.name, self.notice, self.reserves = finder.name, "", False
        self.gate = None  # the shares of nodes are measured there, by dovetail doctor --splits
        files = directory / "nodes"
        self._known_files = files / "known"
        self._known_files.mkdir(parents=True, exist_ok=True)
        self._mark = raise_epoch(files / "controller.json")
        self._granted = GrantedLease(files / "lease.json", lease_s, boot_s())
        self._finder, self._lease_s = finder, lease_s
        self._watched_s = min(sample_s, QUIET_S)
        self._known = read_known(self._known_files)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._seen: queue.SimpleQueue[AnyEvent] = queue.SimpleQueue()
        self._wake: Callable[[], None] = lambda: None
        self._named: Mapping[str, NodeInfo] = {}
        self._remotes: dict[str, Remote] = {}
        self._runs: dict[str, Run] = {}
        self._unknown: dict[str, Run] = {}
        self._gangs = Gangs(self._remotes, self._want)
        self._unsent: set[str] = set()
        self._reported = RankLog()
        self._is_isolated: dict[str, bool] = {}
        self._cluster: Cluster | None = None
        self._looked_s = 0.0
        self._lacking = 0
        self._resumed = self._taken_up = False
        self._logs = CopiedLogs(files / "logs")
        self._device_health = DeviceHealth(files / "sick-devices.json", self._put)
        self._closing = threading.Event()
        finder.start()
        self._follow_nodes()
        threading.Thread(target=self._watch, name="watches nodes", daemon=True).start()
        self._await_nodes(find_s)

    def _watch(self) -> None:
        while not self._closing.wait(_WATCH_S):
            for check in (self._check_leases, self._follow_nodes):
                try:
                    check()
                except Exception:  # without this thread, all leases would lapse
                    _log.exception("nodes cannot be watched at present")

    # Nodes.

    def _follow_nodes(self) -> None:
        """Call new nodes, mark leaving ones, and forget nodes that have left."""
        named = self._finder.nodes()
        with self._lock:
            self._named = named
            for node in {**self._known, **named}:
                self._meet(node, named.get(node))
            self._mark_leaving(named)
            busy = {node for node, remote in self._remotes.items() if remote.wants}
            # An engine that names no node may just have no report yet.
            for node in self._remotes.keys() - named.keys() if named else ():
                self._forget_if_gone(self._remotes[node])
        self._finder.weigh(self._lacking, busy)

    def _meet(self, node: str, where: NodeInfo | None = None) -> None:
        """Start calling a node if it is new; otherwise update its rack."""
        known = self._remotes.get(node)
        if known is not None and where is not None:
            known.rack = where.rack
        if known is not None or self._closing.is_set():
            return
        lease = RemoteLease(self._lease_s, boot_s(), self._granted.longest_s)
        before = self._known.get(node, KnownNode())
        self._remotes[node] = Remote(
            node, lease, before.facts, where.rack if where else before.rack
        )
        self._ask(node)

    def _forget_if_gone(self, remote: Remote) -> None:
        """Forget a node that is no longer named, unless it may still have runs."""
        gone = remote.silent and boot_s() > remote.lease.answered_s + FORGET_S
        if gone and not remote.wants:
            del self._remotes[remote.id]
            self._unsent.discard(remote.id)
            self._known.pop(remote.id, None)
            (self._known_files / f"{remote.id}.json").unlink(missing_ok=True)
            self._cluster = None
            self._wake()

    def _mark_leaving(self, named: Mapping[str, NodeInfo]) -> None:
        """Mark the devices of leaving nodes as sick, so that no jobs are started there."""
        with self._lock:
            for node, where in named.items():
                remote = self._remotes.get(node)
                for device in remote.device_ids() if remote else ():
                    self._set_health(device, Cause.ENGINE, where.leaving)

    def _set_health(self, device: str, cause: Cause, reason: str) -> None:
        """Report a device as sick for a cause, or as healed if there is no reason."""
        if reason:
            self._device_health.report(device, cause, reason)
        else:
            self._device_health.heal(device, cause)

    def _await_nodes(self, within_s: float) -> None:
        """Wait until one node has answered, and then a little longer for the others."""
        begun_s = boot_s()
        with self._lock:
            self._changed.wait_for(lambda: any(r.facts for r in self._remotes.values()), within_s)
            self._changed.wait_for(
                lambda: all(self._remotes[node].incarnation for node in self._named),
                begun_s + min(within_s, OTHERS_S) - boot_s(),
            )

    @property
    def awaited(self) -> str:
        """The nodes that are named but have never answered, and further ones from the engine."""
        awaited = [*self._finder.awaited()]
        for node in sorted(self._finder.nodes()):
            remote = self._remotes.get(node)
            if remote is None or remote.facts is None:
                why = remote.silent if remote else ""
                awaited.append(f"{node} ({why})" if why else node)
        more = f" and {len(awaited) - _SHOWN} more" if len(awaited) > _SHOWN else ""
        return ", ".join(awaited[:_SHOWN]) + more

    def lack(self, devices: int) -> None:
        """Set how many devices waiting jobs lack, so that the engine may get more nodes."""
        self._lacking = devices

    def cluster(self) -> Cluster:
        """Return the devices of all nodes that ever answered; the same object until they change."""
        with self._lock:
            if self._cluster is None:
                self._cluster = merged([self._remotes[node] for node in sorted(self._remotes)])
            return self._cluster

    # The service's calls.

    def sharing(self, same_user: bool) -> str | None:
        """Return why runs of one user, or of two, may never share a device; None: they may."""
        with self._lock:
            facts = [remote.facts for remote in self._remotes.values() if remote.facts]
        if len({one.cluster.sharing for one in facts}) > 1:
            return "some nodes have MPS and others have not: a slowdown is another on each"
        reasons = (one.sharing if same_user else one.sharing_others for one in facts)
        return next((reason for reason in reasons if reason), None)

    def library(self, run: Run) -> str:
        """Return the library that decides which shares compute correctly for a run."""
        with self._lock:
            found = (remote.libraries.get(run.id, "") for remote in self._remotes.values())
            return next(filter(None, found), "")

    def allowed(self, library: str, model: str) -> Collection[int]:
        """Return the shares that every node with this device model allows.

        Silent nodes are ignored, because nothing is placed there.
        """
        with self._lock:
            facts = [one.facts for one in self._remotes.values() if one.facts and not one.silent]
        found = (one.allowed.get(library, one.allowed.get("", {})).get(model) for one in facts)
        shares = [set(each) for each in found if each is not None]
        return set.intersection(*shares) if shares else ()

    def attach(self, wake: Callable[[], None]) -> None:
        """Set what to call, from any thread, as soon as ``poll`` has something to report."""
        self._wake = wake

    def resume(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Resume the runs that should exist, and return other runs that were found."""
        with self._lock:
            remotes = self._remotes.values()
            self._device_health.resume([device for r in remotes for device in r.device_ids()])
            for run in runs:
                self._admit(run)
            self._resumed = True
            self._send_anew()
            self._changed.wait_for(
                lambda: all(r.attached or r.silent for r in self._remotes.values()), ATTACH_S
            )
            for remote in self._remotes.values():
                if not remote.attached:
                    self._lose(remote, remote.silent or "it has not reported its runs")
            # Runs that are found from now on are unwanted, and end.
            self._taken_up = True
            self._send_anew()
            return [*self._unknown.values()]

    def prelaunch(self, run: Run) -> None:
        """Do nothing: nodes are called once the start is durable."""

    def launch(self, run: Run) -> None:
        """Start every rank of the run that has no trace yet, all together or none."""
        with self._lock:
            parts = self._admit(run)
            if any(self._remotes[node].wants[run.id].phase != "keep" for node in parts):
                return
            refusal = self._why_not_now(run, parts)
            if refusal:
                self._refuse(run, refusal)
                return
            nodes = {rank: node for node, part in parts.items() for rank in part.ranks}
            self._logs.remember(run.id, nodes, run.spec.owner.uid)
            if len(parts) > 1 and not self._has_trace(run, parts):
                self._gangs.begin(run.id, parts)
            else:
                # If a gang has a trace, an earlier controller has decided to start it.
                for node, part in parts.items():
                    self._want(node, part, phase="launch" if part.whole else "commit")
            self._send()

    def stop(self, run: str, grace_s: float) -> None:
        """End every rank of the run (ask, wait, terminate, kill); safe to repeat."""
        with self._lock:
            if run in self._runs:
                self._give_up(run, "it was stopped before it was started")
                for node, part in self._parts(self._runs[run]).items():
                    self._want(node, part, phase="stop", grace_s=grace_s)
                self._send()

    def pause(self, run: str, on: bool) -> None:
        """Suspend every process of a run, or let it continue; safe to repeat."""
        with self._lock:
            if run in self._runs:
                for node, part in self._parts(self._runs[run]).items():
                    self._want(node, part, paused=on)
                self._send()

    def release(self, run: str) -> None:
        """Release the resources of an ended run. Its logs stay."""
        with self._lock:
            known = self._runs.pop(run, None)
            if known is not None:
                self._give_up(run, "it was released before it was started")
                for node in self._parts(known):
                    self._remotes[node].release(run)
                    self._unsent.add(node)
                self._reported.forget(run)
                self._is_isolated.pop(run, None)
                self._send()

    def poll(self) -> Sequence[AnyEvent]:
        """Return the events since the last call without waiting; the caller sets ``at_s``."""
        return [self._seen.get_nowait() for _ in range(self._seen.qsize())]

    def progress(self, run: str) -> Sequence[Progress | None]:
        """Return the progress of each rank of a run in its node's last answer."""
        with self._lock:
            self._looked_s = boot_s()
            known = self._runs.get(run)
            if known is None:
                return ()
            of = (self._remotes[node_of(seat.gpu)].progress.get(run, ()) for seat in known.seats)
            return [one[rank] if rank < len(one) else None for rank, one in enumerate(of)]

    def usage(self) -> Mapping[str, Usage]:
        """Return the usage of each device in its node's last answer, without silent nodes."""
        with self._lock:
            self._looked_s = boot_s()
            answering = [remote for remote in self._remotes.values() if not remote.silent]
            return {device: used for r in answering for device, used in r.usage.items()}

    def log_path(self, run: str, rank: int) -> str | None:
        """Return the copy of a rank's log, updated if its node answers."""
        known = self._runs.get(run)
        seats = known.seats if known is not None else ()
        node = node_of(seats[rank].gpu) if rank < len(seats) else self._logs.node_of(run, rank)
        if node is None:
            return None

        def ask(place: LogPlace) -> LogPiece:
            remote = self._remotes.get(node)
            if self._closing.is_set() or remote is None or remote.silent:
                raise AgentCallError(f"{node}: does not answer")
            answer = self._finder.call(node, "log", place.model_dump_json())
            try:
                return read_message(LogPiece, answer.result(ANSWER_S))
            except TimeoutError:
                why = f"has not answered within {ANSWER_S:g} s"
                raise AgentCallError(f"{node}: {why}") from None
            except AgentCallError as error:
                raise AgentCallError(f"{node}: {error}") from None

        return self._logs.update(run, rank, ask)

    def log_lack(self, run: str, rank: int) -> str:
        """Return why a rank's node did not send its output when it was last asked; or nothing."""
        return self._logs.lack(run, rank)

    def prune(self, keep_s: float) -> None:
        """Remove the logs of runs that ended longer ago; agents do so on their nodes."""
        self._logs.prune(keep_s, self._runs.__contains__)

    def close(self) -> None:
        """Close the pool; the jobs keep running until their leases lapse."""
        with self._lock:
            if self._closing.is_set():
                return
            if self._resumed:
                # The last wants should still reach the nodes that answer.
                self._changed.wait_for(
                    lambda: all(
                        r.silent or r.held == r.version or r.incarnation is None
                        for r in self._remotes.values()
                    ),
                    DELIVER_S,
                )
            self._closing.set()
        self._finder.close()

    # Runs and their parts.

    def _admit(self, run: Run) -> Mapping[str, Part]:
        """Record a run, and return its parts by node, with the nodes' names of devices."""
        self._runs[run.id] = run
        parts = self._parts(run)
        for node, part in parts.items():
            if run.id not in self._remotes[node].wants:
                self._remotes[node].want(part)
        return parts

    def _parts(self, run: Run) -> dict[str, Part]:
        parts = parts_of(run)
        for node in parts:
            self._meet(node)
        return parts

    def _want(self, node: str, part: Part, **changes: object) -> None:
        self._remotes[node].want(part, **changes)
        self._unsent.add(node)

    def _send(self) -> None:
        while self._unsent:
            self._ask(self._unsent.pop())

    def _send_anew(self) -> None:
        """Send all nodes their wants, even if these have not changed."""
        for node, remote in self._remotes.items():
            remote.version += 1
            self._unsent.add(node)
        self._send()

    def _why_not_now(self, run: Run, parts: Mapping[str, Part]) -> str:
        """Return why a run without a trace cannot be started now, empty if it can."""
        lost = any(self._reported.status(run.id, rank).lost for rank in range(len(run.seats)))
        if lost or self._has_trace(run, parts):
            return ""
        silent = [r for r in (self._remotes[node] for node in parts) if r.silent or r.facts is None]
        return f"{silent[0].id} does not answer: {silent[0].silent}" if silent else ""

    def _has_trace(self, run: Run, nodes: Collection[str]) -> bool:
        return any(self._remotes[node].rank_log.has_trace(run.id) for node in nodes)

    def _give_up(self, run: str, reason: str) -> None:
        """Abort a gang, if its start has not been decided yet."""
        if self._gangs.give_up(run, reason) and run in self._runs:
            self._refuse(self._runs[run], reason)

    def _refuse(self, run: Run, reason: str) -> None:
        for rank in range(len(run.seats)):
            self._report(RankRefused(at_s=0.0, run=run.id, rank=rank, reason=reason, later=True))

    def _advance_gangs(self) -> None:
        for run, reason in self._gangs.advance():
            self._give_up(run, reason)

    # Calls to agents.

    def _ask(self, node: str) -> None:
        """Send a node the next request, unless a call is open."""
        remote = self._remotes[node]
        if self._closing.is_set() or not remote.askable:
            return
        watch = boot_s() < self._looked_s + _LOOKED_S
        call, asked = remote.request(
            self._mark,
            self._watched_s if watch else QUIET_S,
            watch=watch,
            resumed=self._resumed,
            keep_others=not self._taken_up,
        )
        answer = self._finder.call(node, "exchange", asked.model_dump_json())
        answer.add_done_callback(partial(self._finish_call, remote, call))

    def _finish_call(self, remote: Remote, call: Call, answer: Future[str]) -> None:
        """Handle the answer to a call, or its failure."""
        received_s = boot_s()
        read = _read(answer)
        with self._lock:
            if remote.call is not call:
                return
            if isinstance(read, AgentAnswer) and self._has_failed(read):
                # The engine may take long; answers of other nodes must not wait for it.
                call.waits, call.due_s = False, math.inf
                examine = (remote, call, read, received_s)
                threading.Thread(target=self._examine, args=examine, daemon=True).start()
            else:
                self._take_in(remote, call, read, received_s)

    def _has_failed(self, answer: AgentAnswer) -> bool:
        """Return whether an answer reports that a rank has failed, for the first time."""
        ranks = answer.state.ranks if answer.state else ()
        return any(
            isinstance(event, RankEnded)
            and event.status != 0
            and event.run in self._runs
            and not self._reported.over(event.run, event.rank)
            for event in ranks
        )

    def _examine(self, remote: Remote, call: Call, answer: AgentAnswer, received_s: float) -> None:
        """Handle an answer with failed ranks, after asking the engine if it took the node back."""
        taken_back = self._finder.taken_back(remote.id)
        if taken_back:
            # First, because jobs restart immediately, but must not restart on leaving nodes.
            self._mark_leaving(self._finder.nodes())
        with self._lock:
            self._take_in(remote, call, answer, received_s, taken_back)

    def _take_in(
        self,
        remote: Remote,
        call: Call,
        answer: AgentAnswer | AgentCallError,
        received_s: float,
        taken_back: str = "",
    ) -> None:
        if self._closing.is_set() or self._remotes.get(remote.id) is not remote:
            return
        remote.call = None
        try:
            if isinstance(answer, AgentCallError):
                self._missed(remote, answer)
            elif remote.is_other(answer) and not self._displaced(remote):
                self._missed(remote, AgentCallError(_OTHER), at_once=True)
            else:
                was_silent, known = bool(remote.silent), remote.facts is not None
                remote.take_in(answer, call.sent_s, received_s)
                if was_silent and known:
                    _log.warning("%s answers again", remote.id)
                self._answered(remote, taken_back)
        except Exception as error:  # otherwise the node would never be called again
            _log.exception("the answer of %s cannot be handled", remote.id)
            self._missed(remote, AgentCallError(f"its answer cannot be handled: {error}"))
        self._unsent.add(remote.id)
        self._send()
        self._changed.notify_all()

    def _answered(self, remote: Remote, taken_back: str) -> None:
        """Report the changes of an answer."""
        known = KnownNode(facts=remote.facts, rack=remote.rack)
        if self._known.get(remote.id) != known:
            self._known[remote.id] = known
            write_known(self._known_files, remote.id, known)
            self._cluster = None
            notices = [one.facts.notice for one in self._remotes.values() if one.facts]
            self.notice = "; ".join(dict.fromkeys(filter(None, notices)))
            self._wake()
        if remote.attached and not self._taken_up:
            self._note_unwanted(remote)
        self._report_isolation(remote)
        for run, ranks in [*remote.rank_log.statuses.items()]:
            for rank, status in ranks.items():
                for event in status.news_after(self._reported.status(run, rank)):
                    self._report_news(remote, event, taken_back)
        if remote.attached:
            self._report_traceless(remote)
            self._check_devices(remote)
        self._advance_gangs()

    def _missed(self, remote: Remote, why: AgentCallError, at_once: bool = False) -> None:
        """Handle a failed call: the node becomes silent, immediately or after a while."""
        remote.give_up_call()
        fenced = isinstance(why, FencedError)
        remote.fenced |= fenced
        at_once |= fenced
        if at_once or boot_s() > remote.lease.answered_s + SILENT_S:
            if not remote.silent and remote.facts is not None:
                _log.warning("%s does not answer: %s", remote.id, why)
            if not remote.silent or at_once:
                # The first reason is kept, otherwise every attempt would be reported.
                remote.silent = str(why)
            if self._resumed:
                self._lose(remote)
        self._advance_gangs()

    def _displaced(self, remote: Remote) -> bool:
        """Return whether no rank of the node's previous agent can still run."""
        if not self._resumed or boot_s() < remote.lease.gone_s:
            return False
        self._report_gone(remote)
        remote.displace()
        return True

    # Leases.

    def _check_leases(self) -> None:
        with self._lock:
            self._granted.forget_lapsed(boot_s())
            for remote in self._remotes.values() if self._resumed else ():
                if boot_s() >= remote.lease.gone_s and not remote.fenced:
                    self._report_gone(remote)
            self._advance_gangs()
            for remote in self._remotes.values():
                if remote.overdue():
                    why = f"it has not answered within {ANSWER_S:g} s"
                    self._missed(remote, AgentCallError(why))
            self._unsent.update(self._remotes)
            self._send()
            self._changed.notify_all()

    # Reports.

    def _report_news(self, remote: Remote, event: RankEvent, taken_back: str) -> None:
        if taken_back and isinstance(event, RankEnded) and event.status != 0:
            event = RankGone(at_s=0.0, run=event.run, rank=event.rank, reason=taken_back)
        self._report(event)
        if isinstance(event, RankRefused):
            self._give_up(event.run, f"{remote.id}: {event.reason}")

    def _report(self, event: RankEvent) -> None:
        """Report an event of a rank, unless the rank is over or its run has been released."""
        if event.run in self._runs and not self._reported.over(event.run, event.rank):
            self._reported.take_in(event)
            self._put(event)

    def _report_isolation(self, remote: Remote) -> None:
        """Report the runs that have lost isolation, before ranks refused for it, or regained it."""
        for run in remote.state.isolation:
            if run not in self._runs:
                continue
            nodes = [self._remotes[node] for node in self._parts(self._runs[run])]
            told = {one.id: one.state.isolation.get(run, "") for one in nodes}
            lost = [f"{node}: {why}" for node, why in told.items() if why]
            before, self._is_isolated[run] = self._is_isolated.get(run), not lost
            if lost and before is not False:
                self._put(IsolationLost(at_s=0.0, run=run, reason=lost[0]))
            elif not lost and before is not True:
                self._put(IsolationRegained(at_s=0.0, run=run))

    def _put(self, event: AnyEvent) -> None:
        self._seen.put(event)
        self._wake()

    def _ranks(self, remote: Remote) -> Iterator[tuple[str, int]]:
        """Yield the ranks that should be on a node and are not reported as over."""
        for want in [*remote.wants.values()]:
            for rank in want.part.ranks:
                if not self._reported.over(want.part.run.id, rank):
                    yield want.part.run.id, rank

    def _lose(self, remote: Remote, reason: str = "") -> None:
        why = f"{remote.id} does not answer: {reason or remote.silent}"
        for device in remote.device_ids():
            self._device_health.report(device, Cause.ANSWER, why)
        for run, rank in self._ranks(remote):
            if not self._reported.status(run, rank).lost and not self._gangs.is_open(run):
                self._report(RankLost(at_s=0.0, run=run, rank=rank, reason=why))

    def _report_gone(self, remote: Remote) -> None:
        """Report the ranks of a node as gone: its lease has lapsed, so none can run."""
        remote.silent = remote.silent or "it has not answered"
        self._lose(remote)
        for run, rank in [*self._ranks(remote)]:
            reason = f"{remote.id} has not answered, and its lease has lapsed"
            self._report(RankGone(at_s=0.0, run=run, rank=rank, reason=reason))
            self._want(remote.id, remote.wants[run].part, phase="stop", grace_s=0.0)

    def _report_traceless(self, remote: Remote) -> None:
        """Report lost ranks as gone if their node has no trace of them and will not start them."""
        for run, rank in [*self._ranks(remote)]:
            kept = remote.wants[run].phase == "keep"
            lost = self._reported.status(run, rank).lost
            if kept and lost and not remote.rank_log.has_trace(run):
                reason = f"{remote.id} has no trace of it"
                self._report(RankGone(at_s=0.0, run=run, rank=rank, reason=reason))

    def _note_unwanted(self, remote: Remote) -> None:
        """Resume the runs of a node that the service does not know."""
        for part in remote.state.unwanted:
            name = part.run.id
            if name not in remote.wants:
                outside, known = remote.outside(part), self._unknown.get(name)
                self._unknown[name] = joined(known, outside) if known else outside.run
                self._runs[name] = self._unknown[name]
                self._want(remote.id, part)

    def _check_devices(self, remote: Remote) -> None:
        """Update the health of a node's devices: sick while a rank that should be over remains."""
        left = [
            run
            for run, ranks in remote.rank_log.statuses.items()
            for rank, status in ranks.items()
            if status.end is None and (run not in self._runs or self._reported.over(run, rank))
        ]
        reason = f"{left[0]} may still be on {remote.id}" if left else ""
        sick = {remote.outside_device(gpu): why for gpu, why in remote.state.sick.items()}
        for device in remote.device_ids():
            self._set_health(device, Cause.ANSWER, reason)
            self._set_health(device, Cause.NODE, sick.get(device, ""))


def _read(answer: Future[str]) -> AgentAnswer | AgentCallError:
    try:
        return read_message(AgentAnswer, answer.result())
    except AgentCallError as error:
        return error
    except InputError as error:
        return AgentCallError(f"its answer is invalid: {error}")
