"""The supervisor of one run of local processes: a thread that does everything for the run.

It launches, watches and ends the run's ranks, and reports events. It waits on descriptors of the
shims (pidfds), so an idle supervisor costs nothing. A supervisor that ends with its service leaves
the ranks running; the next one finds them by their files.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from dovetail.executor.jobs import events
from dovetail.executor.pools.pool import Progress
from dovetail.executor.pools.runs.files import (
    DamagedError,
    Part,
    PreparedPart,
    RankFiles,
    RunFiles,
    StopOrder,
)
from dovetail.executor.pools.runs.hooks import Hooks
from dovetail.executor.pools.runs.lease import SHIM_KILL_S, NodeLease
from dovetail.executor.pools.runs.processes import ProcessId, holders, session
from dovetail.executor.pools.runs.progress import rank_progress
from dovetail.executor.pools.runs.start_barrier import (
    ForkServer,
    LaunchError,
    NotNowError,
    StartBarrier,
    complaint,
    is_blameless,
)
from dovetail.executor.pools.shim.kernel import descendants, send
from dovetail.executor.pools.shim.lease import LAPSED
from dovetail.executor.system.clock import boot_id, boot_s

PREPARE_S: Final = 60.0
"""Seconds that the shims of a run have to bring their processes to the start barrier."""

COMMIT_S: Final = 60.0
"""Seconds that ranks are held at the start barrier before they are refused."""


LEAVE_S: Final = 5.0
"""Seconds that a run's thread has to end; a thread that hangs in a hook is left running."""

_READY_FIRST_S: Final = 0.02
_READY_MOST_S: Final = 1.0
_SWEEP_S: Final = 0.2
_TROUBLE_S: Final = 2.0
_OVERDUE_S: Final = 2.0
_LOOK_S: Final = 15.0
_UNREPORTED_S: Final = 20.0

_SILENT: Final = "its process has ended, but its launcher hangs or is stopped"

_SIGNALLED_S: Final = 0.01
_SIGNALLED_AT_MOST: Final = 100

_LONGEST_SLEEP_S: Final = 3600.0
"""The longest timeout of ``poll``, which accepts at most 24.8 days."""

_log = logging.getLogger(__name__)


class _Phase(Enum):
    IDLE = auto()
    """The rank has no trace."""
    HELD = auto()
    """It waits at the start barrier, without a trace."""
    ALIVE = auto()
    """Its shim runs."""
    ABANDONED = auto()
    """Its shim is gone without a report; its remaining processes are being killed."""
    UNKNOWN = auto()
    """Its record is damaged, or temporarily unreadable."""
    OVER = auto()


@dataclass
class _SupervisedRank:
    number: int
    files: RankFiles
    phase: _Phase = _Phase.IDLE
    process: ProcessId | None = None
    shim: ProcessId | None = None
    watch: int | None = None
    barrier: StartBarrier | None = None
    held_until_s: float = 0.0
    ready: bool = False
    pause_s: float = _READY_FIRST_S
    due_s: float = 0.0
    started_s: float = 0.0
    alive_s: float = 0.0
    rung: int = 0
    killed: bool = False
    trouble: str = ""
    lost: str = ""
    refusal: tuple[str, bool] | None = None


class _Orders(NamedTuple):
    """Orders of the service that the run's thread has not carried out yet."""

    bring: bool = False
    launch: bool = False
    report: bool = False
    commit: bool = False
    abort: str = ""
    stop_s: float | None = None
    pause: bool | None = None


class RunSupervisor:
    """Supervises the ranks of one run that are on this node.

    Parameters
    ----------
    part : Part
        The part of the run on this node.
    files : RunFiles
        The run's files.
    hooks : Hooks
        The pool that it belongs to.
    fork_server : ForkServer
        Forks the shims of ranks.
    report : callable
        Receives events and prepared parts; the reader sets ``at_s``.
    lease : NodeLease, optional
        The lease under which the ranks run.
    """

    def __init__(
        self,
        part: Part,
        files: RunFiles,
        hooks: Hooks,
        fork_server: ForkServer,
        report: Callable[[events.AnyEvent | PreparedPart], None],
        lease: NodeLease | None = None,
    ) -> None:
        self.part, self.kept = part, part.run
        self._files, self._hooks, self._fork_server = files, hooks, fork_server
        self._report, self._lease = report, lease
        self._orders, self._ordering = _Orders(), threading.Lock()
        self._begun, self._leaving, self._failure = False, False, ""
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ranks = [_SupervisedRank(k, files.rank(k)) for k in part.ranks]
        self._stopping: StopOrder | None = None
        self._find()
        self._thread = threading.Thread(
            target=self._keep, name=f"supervisor of {self.kept.id}", daemon=True
        )

    # From the service's thread.

    def bring_one(self) -> None:
        """Send a run of one rank to the start barrier in this thread; its own begins later."""
        self._bring_to_barrier(together=False)

    def begin(self) -> None:
        """Start the thread, unless it has been started."""
        if not self._begun:
            # First: after a Ctrl-C during the start, the thread must not be started again.
            self._begun = True
            self._thread.start()

    def order(
        self,
        *,
        bring: bool = False,
        launch: bool = False,
        report: bool = False,
        commit: bool = False,
        abort: str = "",
        stop_s: float | None = None,
        pause: bool | None = None,
    ) -> None:
        """Add to the orders that the thread carries out next.

        Parameters
        ----------
        bring : bool
            Bring every rank without a trace to the start barrier, unless the run is being stopped.
        launch : bool
            Start the ranks at the start barrier.
        report : bool
            Report when all ranks are at the start barrier.
        commit : bool
            Refuse the ranks without a trace that are not there.
        abort : str
            Refuse every rank that has not been started, for this reason.
        stop_s : float, optional
            End every rank with this grace, unless an earlier order ends it sooner.
        pause : bool, optional
            Suspend the processes of every rank, or let them continue.
        """
        with self._ordering:
            known = self._orders
            graces = [grace_s for grace_s in (known.stop_s, stop_s) if grace_s is not None]
            self._orders = _Orders(
                known.bring or bring,
                known.launch or launch,
                known.report or report,
                known.commit or commit,
                abort or known.abort,
                min(graces, default=None),
                known.pause if pause is None else pause,
            )
        if launch and not self._begun and self._lease is None and self._stopping is None:
            # The program starts now, not when the thread does.
            self._release_held()
        os.eventfd_write(self._wake, 1)
        self.begin()

    def begin_leave(self) -> None:
        """Ask this thread to end soon; the ranks keep running."""
        self._leaving = True
        os.eventfd_write(self._wake, 1)
        self.begin()

    def leave(self, until_s: float | None = None) -> None:
        """End this thread, waiting for it at most until a given time; the ranks keep running."""
        self.begin_leave()
        within_s = LEAVE_S if until_s is None else max(0.0, until_s - boot_s())
        self._thread.join(within_s)
        if not self._thread.is_alive():
            os.close(self._wake)

    @property
    def over(self) -> bool:
        """Whether every rank is over."""
        return all(rank.phase is _Phase.OVER for rank in self._ranks)

    @property
    def trouble(self) -> str:
        """Why the run's state is unknown or it cannot be ended, empty if all is well."""
        reasons = [self._failure, *(rank.lost or rank.trouble for rank in self._ranks)]
        return next((f"{self.kept.id}: {why}" for why in reasons if why), "")

    def progress(self) -> list[Progress | None]:
        """Return the progress of each rank of the run; None for a rank that reports nothing."""
        found = {rank.number: rank_progress(rank.files, rank.shim) for rank in self._ranks}
        return [found.get(k) for k in range(len(self.kept.seats))]

    # The thread.

    def _keep(self) -> None:
        """Supervise the run until it is over or the service leaves."""
        try:
            while self._goes_on():
                self._guarded_step()
        finally:
            for rank in self._ranks:
                self._unwatch(rank)

    def _goes_on(self) -> bool:
        return not self.over and not self._leaving

    def _guarded_step(self) -> None:
        try:
            self._carry_out_orders()
            for rank in self._ranks:
                self._advance(rank)
            self._failure = ""
            if self._goes_on():
                self._sleep()
        except Exception as error:  # a run supervisor that dies would leave devices busy for ever
            self._fail(f"its supervisor failed: {error}")

    def _fail(self, reason: str) -> None:
        """Report a failure, and wait before the next attempt."""
        if reason != self._failure:
            _log.exception("%s: its supervisor failed", self.kept.id)
        self._failure = reason
        for rank in self._ranks:
            self._lose(rank, reason)
        # Wait for orders only: an ended shim would wake it again and again.
        self._await({self._wake}, _TROUBLE_S)

    def _sleep(self) -> None:
        watched = {self._wake}
        for rank in self._ranks:
            if rank.watch is not None:
                watched.add(rank.watch)
            if rank.barrier is not None:
                watched.add(rank.barrier.descriptor)
        due = [rank.due_s for rank in self._ranks if rank.due_s]
        self._await(watched, min(due) - boot_s() if due else _LONGEST_SLEEP_S)

    def _await(self, watched: set[int], within_s: float) -> None:
        """Wait until one of the descriptors can be read, or the time is up."""
        poll = select.poll()
        for descriptor in watched:
            poll.register(descriptor, select.POLLIN)
        poll.poll(min(max(0.0, within_s), _LONGEST_SLEEP_S) * 1000 + 1)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _carry_out_orders(self) -> None:
        with self._ordering:
            orders, self._orders = self._orders, _Orders()
        if orders.stop_s is not None:
            self._begin_stop(orders.stop_s)
        if self._stopping is not None:
            self._give_up("it was stopped before it was started")
        elif orders.abort:
            self._give_up(orders.abort, later=True)
        else:
            self._bring_about(orders)
            if orders.pause is not None:
                self._pause(orders.pause)

    def _pause(self, on: bool) -> None:
        """Signal the processes that are not yet in the desired state, until there are none.

        A process may start another while the processes are listed. A process that the job itself
        had stopped continues with the others, because the origin of a stop is unknown.
        """
        number = signal.SIGSTOP if on else signal.SIGCONT
        shims = [rank.shim for rank in self._those(_Phase.ALIVE) if rank.shim is not None]
        for _ in range(_SIGNALLED_AT_MOST):
            below = [stat for shim in shims for stat in descendants(shim.pid)]
            other = [s for s in below if s.state not in "ZX" and (s.state in "Tt") is not on]
            if not other:
                return
            for stat in other:
                send(stat.pid, stat.started, number)
            time.sleep(_SIGNALLED_S)

    def _bring_about(self, orders: _Orders) -> None:
        if orders.bring:
            self._bring_to_barrier(orders.report)
        if orders.report:
            self._report_held()
        if orders.launch:
            self._open_barrier()
        if orders.commit:
            self._give_up("it was not prepared when it was to start", later=True)

    # Finding existing ranks.

    def _find(self) -> None:
        """Resume ranks that have a trace."""
        order = self._files.stop_order()
        if order is not None and order.boot == boot_id():
            self._stopping = order
        for rank in self._ranks:
            self._adopt(rank)

    def _adopt(self, rank: _SupervisedRank) -> None:
        try:
            started = rank.files.started()
            if started is None:
                return
            if started.never:
                self._end(rank, self._refused(rank, started.never, started.later))
                return
            rank.process, rank.started_s = started.rank, started.at_s
            rank.shim = started.shim if started.boot == boot_id() else None
            rank.watch = rank.shim.watch() if rank.shim else None
            if rank.watch is not None:
                self._take_up(rank)
            elif rank.files.ending() is not None:
                self._conclude(rank)
            elif rank.shim is None:
                self._end(rank, self._gone(rank, "the machine was restarted"))
            else:
                rank.phase = _Phase.ABANDONED
        except (DamagedError, OSError) as error:
            rank.phase, rank.trouble = _Phase.UNKNOWN, str(error)

    def _take_up(self, rank: _SupervisedRank) -> None:
        assert rank.process is not None
        rank.phase, rank.trouble, rank.due_s = _Phase.ALIVE, "", boot_s()
        rank.alive_s = rank.due_s
        self._report(
            events.RankStarted(
                at_s=0.0,
                run=self.kept.id,
                rank=rank.number,
                pid=rank.process.pid,
                pid_started=rank.process.started,
            )
        )

    # Launching: all ranks come to the start barrier, then it opens for all, or none.

    def _bring_to_barrier(self, together: bool) -> None:
        """Send ranks to the start barrier; if there are several or ``together``, await them."""
        idle = self._those(_Phase.IDLE)
        if not idle:
            return
        try:
            if self._lapsed():
                raise NotNowError(LAPSED)
            self._files.make(self.part)
            if self._lease is not None:
                # Nothing else on this node knows the run.
                self._files.name(self.part)
            specs = [self._hooks.rank_spec(self.part, k.number, self._files) for k in idle]
            for rank, spec in zip(idle, specs, strict=True):
                rank.files.write_spec(spec)
                try:
                    rank.barrier = StartBarrier(self._fork_server, rank.files)
                except ConnectionError as error:
                    raise NotNowError(f"rank {rank.number}: {complaint('')}") from error
            if self._lease is None:
                # The journal of this machine has the run: the shims need not wait for its files.
                self._files.name(self.part)
            if together or len(idle) > 1:
                self._await_barrier(idle)
        except Exception as error:
            if not isinstance(error, LaunchError | OSError):
                _log.exception("%s: it could not be launched", self.kept.id)
            # An OSError here concerns the service's own files, pipes or processes, not the job.
            self._abort(idle, str(error), isinstance(error, NotNowError | OSError))
            return
        for rank in idle:
            rank.phase, rank.held_until_s = _Phase.HELD, boot_s() + COMMIT_S

    def _open_barrier(self) -> None:
        if self._lapsed():
            self._give_up(LAPSED, later=True)
        for rank in self._release_held():
            self._await_start(rank)

    def _release_held(self) -> list[_SupervisedRank]:
        """Open the start barrier of the ranks there, and return them."""
        held = self._those(_Phase.HELD)
        for rank in held:
            assert rank.barrier is not None
            rank.barrier.open()
        return held

    def _report_held(self) -> None:
        held = tuple(rank.number for rank in self._those(_Phase.HELD))
        if held:
            self._report(PreparedPart(self.kept.id, held, self._hooks.rendezvous(self.part)))

    def _those(self, phase: _Phase) -> list[_SupervisedRank]:
        return [rank for rank in self._ranks if rank.phase is phase]

    def _lapsed(self) -> bool:
        return self._lease is not None and self._lease.lapsed

    def _await_barrier(self, ranks: list[_SupervisedRank]) -> None:
        deadline_s = boot_s() + PREPARE_S
        for rank in ranks:
            assert rank.barrier is not None
            answer = rank.barrier.answer(deadline_s)
            if answer != "prepared":
                refusal = NotNowError if is_blameless(answer) else LaunchError
                raise refusal(f"rank {rank.number}: {complaint(answer)}")

    def _abort(self, ranks: list[_SupervisedRank], reason: str, later: bool) -> None:
        for rank in ranks:
            if rank.barrier is not None:
                rank.barrier.dismiss()
            self._end(rank, self._refused(rank, reason, later))

    def _await_start(self, rank: _SupervisedRank) -> None:
        assert rank.barrier is not None
        deadline_s = boot_s() + PREPARE_S
        answer = rank.barrier.answer(deadline_s)
        if answer == "prepared":
            answer = rank.barrier.answer(deadline_s)
        if answer != "started":
            rank.barrier.dismiss()
            rank.barrier = None
        rank.phase = _Phase.IDLE
        self._adopt(rank)
        if rank.phase is _Phase.IDLE:
            # It has left no trace, and a refused rank never can.
            self._refuse(
                rank, f"rank {rank.number}: {complaint(answer)}", later=is_blameless(answer)
            )

    def _give_up(self, reason: str, later: bool = False) -> None:
        """Refuse permanently the ranks that have not been started."""
        for rank in self._those(_Phase.HELD):
            assert rank.barrier is not None
            if rank.barrier.opened:
                # In the service's thread, before this order came.
                self._await_start(rank)
                continue
            rank.barrier.dismiss()
            rank.barrier, rank.phase = None, _Phase.IDLE
        for rank in self._those(_Phase.IDLE):
            self._refuse(rank, reason, later)

    def _refuse(self, rank: _SupervisedRank, reason: str, later: bool = False) -> None:
        """Refuse a rank permanently, as soon as this can be written to its files."""
        rank.refusal = reason, later
        try:
            refused = rank.files.never_start(reason, later)
        except OSError as error:
            # Not reported until it is durable: the next service could still start the rank.
            if rank.trouble != str(error):
                _log.warning("%s: rank %d cannot be refused: %s", self.kept.id, rank.number, error)
            rank.trouble = str(error)
            _due(rank, boot_s() + _TROUBLE_S)
            return
        if refused:
            self._end(rank, self._refused(rank, reason, later))
        else:
            self._adopt(rank)

    def _hold(self, rank: _SupervisedRank) -> None:
        """Keep a rank at the start barrier as long as it may still be started."""
        assert rank.barrier is not None
        answer = rank.barrier.heard()
        if answer is not None and answer != "prepared":
            reason = complaint(answer) if answer else "its launcher died before the start"
            self._give_up(f"rank {rank.number}: {reason}", later=is_blameless(answer))
        elif self._lapsed():
            self._give_up(LAPSED, later=True)
        elif boot_s() >= rank.held_until_s:
            self._give_up(f"it was prepared, and not committed within {COMMIT_S:g} s", later=True)
        else:
            _due(rank, rank.held_until_s)
            if self._lease is not None:
                _due(rank, self._lease.deadline_s)

    # Watching.

    def _advance(self, rank: _SupervisedRank) -> None:
        rank.due_s = 0.0
        if rank.phase is _Phase.IDLE and rank.refusal is not None:
            self._refuse(rank, *rank.refusal)
        elif rank.phase is _Phase.HELD:
            self._hold(rank)
        elif rank.phase is _Phase.ALIVE:
            self._watch(rank)
        elif rank.phase is _Phase.ABANDONED:
            self._sweep(rank)
        elif rank.phase is _Phase.UNKNOWN:
            self._doubt(rank)

    def _watch(self, rank: _SupervisedRank) -> None:
        assert rank.shim is not None
        assert rank.process is not None
        # The last message of a shim says that there is an exit status.
        if (rank.barrier is not None and rank.barrier.speaks) or not rank.shim.alive:
            self._conclude(rank)
            return
        if self._stopping is not None:
            self._climb(rank, self._stopping)
        if self._lease is not None:
            self._help_lapse(rank, self._lease)
        if self._end_is_unreported(rank, rank.process):
            self._lose(rank, _SILENT)
        elif not rank.ready:
            self._try_ready(rank, rank.process.pid)

    def _end_is_unreported(self, rank: _SupervisedRank, process: ProcessId) -> bool:
        """Return whether a rank's process ended some time ago, and its shim lives on."""
        now = boot_s()
        if process.alive:
            rank.alive_s = now
        _due(rank, now + _LOOK_S)
        return now > rank.alive_s + _UNREPORTED_S

    def _try_ready(self, rank: _SupervisedRank, pid: int) -> None:
        rank.ready = self._hooks.is_ready(self.kept, rank.number, pid)
        if rank.ready:
            rank.lost = ""
            self._report(events.RankReady(at_s=0.0, run=self.kept.id, rank=rank.number))
            return
        _due(rank, boot_s() + rank.pause_s)
        rank.pause_s = min(2 * rank.pause_s, _READY_MOST_S)

    def _conclude(self, rank: _SupervisedRank) -> None:
        """Report the end of a rank whose shim is gone."""
        ending = rank.files.ending()
        if ending is None:
            rank.phase = _Phase.ABANDONED
            rank.due_s = boot_s()
        elif ending.status is None:
            reason = f"rank {rank.number}: {ending.refused}"
            self._end(rank, self._refused(rank, reason, ending.lapsed))
        elif ending.lapsed:
            self._end(rank, self._gone(rank, LAPSED))
        else:
            ended = events.RankEnded(
                at_s=0.0,
                run=self.kept.id,
                rank=rank.number,
                status=ending.status,
                asked=self._stopping is not None,
                ended_s=ending.ended_s,
            )
            self._end(rank, ended)

    def _sweep(self, rank: _SupervisedRank) -> None:
        """Kill the processes left by a dead shim, until it is proven that there are none."""
        if self._kill_rest(rank):
            self._end(rank, self._gone(rank, "its launcher was killed"))
        else:
            rank.due_s = boot_s() + _SWEEP_S

    def _doubt(self, rank: _SupervisedRank) -> None:
        """Wait for the processes of a rank with a damaged record, or kill them on a stop order."""
        self._adopt(rank)
        if rank.phase is not _Phase.UNKNOWN:
            return
        if self._stopping is None and holders(rank.files.token, self.kept.spec.owner.uid):
            self._lose(rank, rank.trouble)
            rank.due_s = boot_s() + _TROUBLE_S
        elif self._kill_rest(rank):
            self._end(rank, self._gone(rank, rank.trouble))
        else:
            rank.due_s = boot_s() + _SWEEP_S

    def _kill_rest(self, rank: _SupervisedRank) -> bool:
        """Kill every known process of the rank; return whether there was none."""
        rest = self._rest(rank)
        if rest and not rank.killed:
            # Once, even if it fails: the remaining processes must be killed anyway.
            rank.killed = True
            self._hooks.before_kill(self.kept, rank.number)
        for process in rest:
            process.send(signal.SIGKILL)
        return not rest

    def _rest(self, rank: _SupervisedRank) -> set[ProcessId]:
        uid = self.kept.spec.owner.uid
        rest = {*holders(rank.files.token, uid), *self._hooks.members(self.kept, rank.number)}
        if rank.process is not None:
            rest.update(session(rank.process))
        return rest

    # Ending: ask, wait, let the pool terminate, kill.

    def _begin_stop(self, grace_s: float) -> None:
        order = StopOrder(boot_s(), grace_s, boot_id())
        known = self._stopping
        if known is not None and known.asked_s + known.grace_s <= order.asked_s + grace_s:
            return
        self._stopping = (
            order
            if known is None
            else known._replace(grace_s=order.asked_s + grace_s - known.asked_s)
        )
        try:
            if self._files.read_part() is None:
                self._files.make(self.part)
                self._files.name(self.part)
            self._files.write_stop_order(self._stopping)
        except OSError:
            # A service that starts meanwhile then grants the whole grace again.
            _log.warning("%s: its stop order could not be written", self.kept.id)

    def _climb(self, rank: _SupervisedRank, stop: StopOrder) -> None:
        """Take the next step of ending a rank if its time has come."""
        assert rank.shim is not None
        now, kill_s = boot_s(), stop.asked_s + stop.grace_s
        if rank.rung == 0:
            rank.rung = 1
            rank.shim.send(signal.SIGTERM)
        if rank.rung == 1 and now >= kill_s:
            rank.rung, rank.killed = 2, True
            self._hooks.before_kill(self.kept, rank.number)
            rank.shim.send(signal.SIGQUIT)
        if rank.rung == 2 and now >= kill_s + SHIM_KILL_S:
            self._kill_rest(rank)
            rank.shim.send(signal.SIGKILL)
        _due(rank, kill_s if rank.rung == 1 else max(kill_s + SHIM_KILL_S, now + _SWEEP_S))

    def _help_lapse(self, rank: _SupervisedRank, lease: NodeLease) -> None:
        """Kill a rank that its shim should have killed after the lapse: the shim may be stopped."""
        assert rank.shim is not None
        overdue_s = lease.end_of(rank.started_s) + lease.kill_s + _OVERDUE_S
        if boot_s() >= overdue_s:
            self._kill_rest(rank)
            rank.shim.send(signal.SIGKILL)
        _due(rank, max(overdue_s, boot_s() + _SWEEP_S))

    # Reporting.

    def _end(self, rank: _SupervisedRank, event: events.AnyEvent) -> None:
        rank.phase, rank.due_s, rank.lost, rank.trouble = _Phase.OVER, 0.0, "", ""
        self._unwatch(rank)
        self._report(event)

    def _unwatch(self, rank: _SupervisedRank) -> None:
        if rank.watch is not None:
            os.close(rank.watch)
            rank.watch = None
        if rank.barrier is not None:
            rank.barrier.leave()
            rank.barrier = None

    def _lose(self, rank: _SupervisedRank, reason: str) -> None:
        """Report once that it is unknown whether a rank still runs."""
        if rank.phase in (_Phase.IDLE, _Phase.HELD, _Phase.OVER) or rank.lost == reason:
            return
        # Once its state is known again, the rank is reported as ready again.
        rank.ready, rank.lost = False, reason
        self._report(events.RankLost(at_s=0.0, run=self.kept.id, rank=rank.number, reason=reason))

    def _refused(
        self, rank: _SupervisedRank, reason: str, later: bool = False
    ) -> events.RankRefused:
        return events.RankRefused(
            at_s=0.0, run=self.kept.id, rank=rank.number, reason=reason, later=later
        )

    def _gone(self, rank: _SupervisedRank, reason: str) -> events.RankGone:
        return events.RankGone(at_s=0.0, run=self.kept.id, rank=rank.number, reason=reason)


def _due(rank: _SupervisedRank, at_s: float) -> None:
    rank.due_s = min(rank.due_s, at_s) if rank.due_s else at_s
