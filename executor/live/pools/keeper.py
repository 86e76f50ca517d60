"""Everything about one run of local processes happens in one thread: its keeper.

The keeper launches, watches and ends the run's ranks, and tells what it saw as events. It waits
on descriptors of the shims (pidfds), so that it costs nothing while nothing happens. A keeper
that ends, with its service, leaves the ranks running; the next one finds them by their files.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

from dovetail.executor.live import events
from dovetail.executor.live.clock import boot_s
from dovetail.executor.live.jobs import Run
from dovetail.executor.live.pools.gate import Gate, LaunchError, NotNowError, complaint
from dovetail.executor.live.pools.processes import Process, boot_id, holders, session
from dovetail.executor.live.pools.run_files import DamagedError, RankFiles, RunFiles, StopOrder

PREPARE_S: Final = 60.0
"""Seconds that the shims of a run have to bring their processes to the gate."""

SHIM_KILL_S: Final = 10.0
"""Seconds that a shim has to kill what it guards, before it is killed itself."""

LEAVE_S: Final = 5.0
"""Seconds that a run's thread has to end; one that hangs in a hook is left behind."""

_READY_FIRST_S: Final = 0.02
_READY_MOST_S: Final = 1.0
_SWEEP_S: Final = 0.2
_TROUBLE_S: Final = 2.0

_log = logging.getLogger(__name__)


class Bounds(NamedTuple):
    """What a rank is kept within from before its program runs.

    Attributes
    ----------
    cpus : tuple of int
        Cores it may run on; empty = all.
    cgroups : tuple of str
        ``cgroup.procs`` files that it enters.
    """

    cpus: tuple[int, ...] = ()
    cgroups: tuple[str, ...] = ()


class Hooks(Protocol):
    """What kinds of local pools do differently.

    All are called from the run's own thread, so they may take their time, but not for ever.
    """

    def rank_spec(self, run: Run, rank: int, files: RunFiles) -> dict[str, object]:
        """Return what the shim of a rank is to run; LaunchError where it cannot be."""
        ...

    def is_ready(self, run: Run, rank: int, pid: int) -> bool:
        """Return whether a rank is proven to run under its cap; asked again until it is."""
        ...

    def before_kill(self, run: Run, rank: int) -> None:
        """Do what has to be done before the processes of a rank are killed."""
        ...

    def members(self, run: Run, rank: int) -> list[Process]:
        """Return processes that belong to a rank by other signs than token and session."""
        ...


class _Phase(Enum):
    IDLE = auto()
    """It has no trace."""
    ALIVE = auto()
    """Its shim runs."""
    ABANDONED = auto()
    """Its shim is gone without a word; what is left of it is being killed."""
    UNKNOWN = auto()
    """Its record is damaged, or cannot be read now."""
    OVER = auto()


@dataclass
class _Rank:
    number: int
    files: RankFiles
    phase: _Phase = _Phase.IDLE
    process: Process | None = None
    shim: Process | None = None
    watch: int | None = None
    gate: Gate | None = None
    ready: bool = False
    pause_s: float = _READY_FIRST_S
    due_s: float = 0.0
    rung: int = 0
    killed: bool = False
    trouble: str = ""
    lost: str = ""


@dataclass
class _Orders:
    """What the service wants; set from its thread."""

    launch: bool = False
    stop_s: float | None = None
    leave: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Keeper:
    """Keeps one run.

    Parameters
    ----------
    run : Run
        The run.
    files : RunFiles
        Its files.
    hooks : Hooks
        The pool that it belongs to.
    tell : callable
        Takes events, from this thread; their ``at_s`` is set by whoever reads them.
    """

    def __init__(
        self, run: Run, files: RunFiles, hooks: Hooks, tell: Callable[[events.AnyEvent], None]
    ) -> None:
        self.kept = run
        self._files, self._hooks, self._tell = files, hooks, tell
        self._orders = _Orders()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ranks = [_Rank(k, files.rank(k)) for k in range(len(run.seats))]
        self._stopping: StopOrder | None = None
        self._find()
        self._thread = threading.Thread(target=self._keep, name=f"keeper of {run.id}", daemon=True)
        self._thread.start()

    # Orders, from the service's thread.

    def order_launch(self) -> None:
        """Start every rank that has no trace, unless the run is being stopped."""
        self._order(launch=True)

    def order_stop(self, grace_s: float) -> None:
        """End every rank; an earlier order holds where it ends sooner."""
        self._order(stop_s=grace_s)

    def leave(self) -> None:
        """End this thread, and let the ranks run on."""
        self._order(leave=True)
        self._thread.join(LEAVE_S)
        if not self._thread.is_alive():
            os.close(self._wake)

    def _order(
        self, launch: bool = False, stop_s: float | None = None, leave: bool = False
    ) -> None:
        with self._orders.lock:
            self._orders.launch |= launch
            self._orders.leave |= leave
            if stop_s is not None:
                known = self._orders.stop_s
                self._orders.stop_s = stop_s if known is None else min(stop_s, known)
        os.eventfd_write(self._wake, 1)

    # The thread.

    def _keep(self) -> None:
        """Keep the run until it is over or the service leaves."""
        try:
            while self._goes_on():
                self._guarded_step()
        finally:
            for rank in self._ranks:
                self._unwatch(rank)

    def _goes_on(self) -> bool:
        over = all(rank.phase is _Phase.OVER for rank in self._ranks)
        return not over and not self._orders.leave

    def _guarded_step(self) -> None:
        try:
            self._obey()
            for rank in self._ranks:
                self._advance(rank)
        except Exception as error:  # a keeper that dies would leave devices busy for ever
            _log.exception("%s: its keeper failed", self.kept.id)
            for rank in self._ranks:
                self._lose(rank, f"its keeper failed: {error}")
                rank.due_s = boot_s() + _TROUBLE_S
        if self._goes_on():
            self._sleep()

    def _sleep(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        for rank in self._ranks:
            if rank.watch is not None:
                poll.register(rank.watch, select.POLLIN)
        due = [rank.due_s for rank in self._ranks if rank.due_s]
        wait_ms = max(0.0, min(due) - boot_s()) * 1000 + 1 if due else None
        poll.poll(wait_ms)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _obey(self) -> None:
        with self._orders.lock:
            launch, stop_s = self._orders.launch, self._orders.stop_s
            self._orders.launch, self._orders.stop_s = False, None
        if stop_s is not None:
            self._begin_stop(stop_s)
        if self._stopping is not None:
            self._refuse_idle("it was stopped before it was started")
        elif launch:
            self._launch()

    # Finding what there is.

    def _find(self) -> None:
        """Take up ranks that have a trace."""
        for rank in self._ranks:
            self._adopt(rank)
        order = self._files.stop_order()
        if order is not None and order.boot == boot_id():
            self._stopping = order

    def _adopt(self, rank: _Rank) -> None:
        try:
            started = rank.files.started()
            if started is None:
                return
            if started.never:
                self._end(rank, self._refused(rank, started.never))
                return
            rank.process = started.rank
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

    def _take_up(self, rank: _Rank) -> None:
        assert rank.process is not None
        rank.phase, rank.trouble, rank.due_s = _Phase.ALIVE, "", boot_s()
        self._tell(
            events.RankStarted(
                at_s=0.0,
                run=self.kept.id,
                rank=rank.number,
                pid=rank.process.pid,
                pid_started=rank.process.started,
            )
        )

    # Launching: all ranks come to their gates, then all gates open, or none.

    def _launch(self) -> None:
        idle = [rank for rank in self._ranks if rank.phase is _Phase.IDLE]
        try:
            self._files.make(self.kept)
            specs = [self._hooks.rank_spec(self.kept, k.number, self._files) for k in idle]
            for rank, spec in zip(idle, specs, strict=True):
                rank.files.write_spec(spec)
                rank.gate = Gate(rank.files)
            self._await_gates(idle)
        except Exception as error:
            if not isinstance(error, LaunchError | OSError):
                _log.exception("%s: it could not be launched", self.kept.id)
            self._abort(idle, str(error), isinstance(error, NotNowError))
            return
        for rank in idle:
            assert rank.gate is not None
            rank.gate.open()
        for rank in idle:
            self._await_start(rank)

    def _await_gates(self, ranks: list[_Rank]) -> None:
        deadline_s = boot_s() + PREPARE_S
        for rank in ranks:
            assert rank.gate is not None
            answer = rank.gate.answer(deadline_s)
            if answer != "prepared":
                raise LaunchError(f"rank {rank.number}: {complaint(answer)}")

    def _abort(self, ranks: list[_Rank], reason: str, later: bool) -> None:
        for rank in ranks:
            if rank.gate is not None:
                rank.gate.dismiss()
            self._end(rank, self._refused(rank, reason, later))

    def _await_start(self, rank: _Rank) -> None:
        assert rank.gate is not None
        answer = rank.gate.answer(boot_s() + PREPARE_S)
        if answer == "started":
            rank.gate.leave()
        else:
            rank.gate.dismiss()
        self._adopt(rank)
        if rank.phase is _Phase.IDLE:
            # It has left no trace, and once it is refused it never can.
            self._refuse(rank, f"rank {rank.number}: {complaint(answer)}")

    def _refuse_idle(self, reason: str) -> None:
        for rank in self._ranks:
            if rank.phase is _Phase.IDLE:
                self._refuse(rank, reason)

    def _refuse(self, rank: _Rank, reason: str) -> None:
        if rank.files.never_start(reason):
            self._end(rank, self._refused(rank, reason))
        else:
            self._adopt(rank)

    # Watching.

    def _advance(self, rank: _Rank) -> None:
        rank.due_s = 0.0
        if rank.phase is _Phase.ALIVE:
            self._watch(rank)
        elif rank.phase is _Phase.ABANDONED:
            self._sweep(rank)
        elif rank.phase is _Phase.UNKNOWN:
            self._doubt(rank)

    def _watch(self, rank: _Rank) -> None:
        assert rank.shim is not None
        assert rank.process is not None
        if not rank.shim.alive:
            self._conclude(rank)
            return
        if self._stopping is not None:
            self._climb(rank, self._stopping)
        if not rank.ready:
            self._try_ready(rank, rank.process.pid)

    def _try_ready(self, rank: _Rank, pid: int) -> None:
        rank.ready = self._hooks.is_ready(self.kept, rank.number, pid)
        if rank.ready:
            rank.lost = ""
            self._tell(events.RankReady(at_s=0.0, run=self.kept.id, rank=rank.number))
            return
        _due(rank, boot_s() + rank.pause_s)
        rank.pause_s = min(2 * rank.pause_s, _READY_MOST_S)

    def _conclude(self, rank: _Rank) -> None:
        """Tell how a rank ended whose shim is gone."""
        ending = rank.files.ending()
        if ending is None:
            rank.phase = _Phase.ABANDONED
            rank.due_s = boot_s()
        elif ending.status is None:
            self._end(rank, self._refused(rank, f"rank {rank.number}: {ending.refused}"))
        else:
            ended = events.RankEnded(
                at_s=0.0, run=self.kept.id, rank=rank.number, status=ending.status
            )
            self._end(rank, ended)

    def _sweep(self, rank: _Rank) -> None:
        """Kill what a dead shim left, until there is proof that nothing is left."""
        if self._kill_rest(rank):
            self._end(rank, self._gone(rank, "its launcher was killed"))
        else:
            rank.due_s = boot_s() + _SWEEP_S

    def _doubt(self, rank: _Rank) -> None:
        """Wait for the processes of a rank whose record is damaged; when it is stopped, kill."""
        self._adopt(rank)
        if rank.phase is not _Phase.UNKNOWN:
            return
        if self._stopping is None and holders(rank.files.token):
            self._lose(rank, rank.trouble)
            rank.due_s = boot_s() + _TROUBLE_S
        elif self._kill_rest(rank):
            self._end(rank, self._gone(rank, rank.trouble))
        else:
            rank.due_s = boot_s() + _SWEEP_S

    def _kill_rest(self, rank: _Rank) -> bool:
        """Kill every process that is known to be the rank's; return whether there was none."""
        rest = self._rest(rank)
        if rest and not rank.killed:
            # Once, even where it fails: what is left has to be killed all the same.
            rank.killed = True
            self._hooks.before_kill(self.kept, rank.number)
        for process in rest:
            process.send(signal.SIGKILL)
        return not rest

    def _rest(self, rank: _Rank) -> set[Process]:
        rest = {*holders(rank.files.token), *self._hooks.members(self.kept, rank.number)}
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
            self._files.make(self.kept)
            self._files.write_stop_order(self._stopping)
        except OSError:
            # Then a service started meanwhile gives the whole grace again.
            _log.warning("%s: its stop order could not be kept", self.kept.id)

    def _climb(self, rank: _Rank, stop: StopOrder) -> None:
        """Go up the ladder as far as time has come."""
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

    # Telling.

    def _end(self, rank: _Rank, event: events.AnyEvent) -> None:
        rank.phase, rank.due_s = _Phase.OVER, 0.0
        self._unwatch(rank)
        self._tell(event)

    def _unwatch(self, rank: _Rank) -> None:
        if rank.watch is not None:
            os.close(rank.watch)
            rank.watch = None
        if rank.shim is not None:
            rank.shim.reap()

    def _lose(self, rank: _Rank, reason: str) -> None:
        """Tell, once, that nobody can say whether a rank still runs."""
        if rank.phase in (_Phase.IDLE, _Phase.OVER) or rank.lost == reason:
            return
        # Once all is well again it is told anew that the rank is ready.
        rank.ready, rank.lost = False, reason
        self._tell(events.RankLost(at_s=0.0, run=self.kept.id, rank=rank.number, reason=reason))

    def _refused(self, rank: _Rank, reason: str, later: bool = False) -> events.RankRefused:
        return events.RankRefused(
            at_s=0.0, run=self.kept.id, rank=rank.number, reason=reason, later=later
        )

    def _gone(self, rank: _Rank, reason: str) -> events.RankGone:
        return events.RankGone(at_s=0.0, run=self.kept.id, rank=rank.number, reason=reason)


def _due(rank: _Rank, at_s: float) -> None:
    rank.due_s = min(rank.due_s, at_s) if rank.due_s else at_s
