"""The agent of one node: it keeps the node's jobs for a controller elsewhere.

It has no transport (``ray_agent`` has): it carries out orders on a pool of this machine, keeps what
happened until the controller has seen it, and lets nothing run longer than its lease.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dovetail.executor.jobs.events import AnyEvent, DeviceHealed, DeviceSick, RankRefused
from dovetail.executor.jobs.specs import JobSpec, Owner, Run, Seat
from dovetail.executor.nodes.condition import Condition
from dovetail.executor.nodes.fence import Fence, FencedError, Mark, identity
from dovetail.executor.nodes.log_parts import LogPiece, LogPlace, piece_of
from dovetail.executor.nodes.messages import (
    Abort,
    Answer,
    AnyOrder,
    Attach,
    Commit,
    Exchange,
    Facts,
    Launch,
    News,
    Pause,
    Prepare,
    Release,
    Stop,
)
from dovetail.executor.nodes.rank_log import RankLog
from dovetail.executor.pools.lease import Lease
from dovetail.executor.pools.local import LocalPool
from dovetail.executor.pools.opening import opener
from dovetail.executor.pools.parts import Part, Prepared, whole
from dovetail.executor.pools.run_files import KEEP_S, PASS_THROUGH, PRUNE_S
from dovetail.executor.system.clock import boot_s
from dovetail.executor.system.directories import require_own
from dovetail.instances.errors import DovetailError, InputError

MOST_NEWS: Final = 1000
"""Events of one answer, but of one that tells all anew; the rest comes with the next."""


class EndingError(DovetailError):
    """The agent ends: no other controller has its node, and jobs run on until the lease lapses."""

    def __init__(self) -> None:
        super().__init__("the agent ends")


@dataclass
class _Outbox:
    """What happened and is not known to have been seen."""

    news: list[News] = field(default_factory=list)
    last: int = 0

    def add(self, event: AnyEvent | Prepared) -> None:
        self.last += 1
        self.news.append(News(number=self.last, event=event))

    def confirm(self, seen: int) -> None:
        self.news = [one for one in self.news if one.number > seen]


class Agent:
    """Keeps the jobs of one node; all methods are safe from any thread.

    Every controller's state directory has a pool directory of its own, since runs of two are
    named alike.

    Parameters
    ----------
    directory : path
        The agent's state directory on this node.
    open_pool : callable
        Makes the pool of this node's devices that keeps its files in a directory.
    address : str
        Where ranks on other nodes reach those on this one.
    """

    def __init__(
        self, directory: Path, open_pool: Callable[[Path], LocalPool], address: str
    ) -> None:
        self.incarnation = secrets.token_hex(8)
        self._directory, self._open_pool, self.address = directory, open_pool, address
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(PASS_THROUGH)
        self._id = identity(directory / "agent.json")
        self._fence = Fence(directory / "controller.json")
        self._lease = Lease(directory / "lease")
        self._lock = threading.RLock()
        self._condition = Condition()
        self._pool: LocalPool | None = None
        self._rank_log = RankLog()
        self._sick: dict[str, DeviceSick | DeviceHealed] = {}
        self._leaving: set[str] = set()
        self._outbox, self._done, self._turn = _Outbox(), 0, 0
        self._closed = False
        if self._fence.mark is not None:
            # Jobs are seen to though no controller may come.
            self._open(self._fence.mark.home)

    # What a controller asks.

    def exchange(self, asked: Exchange) -> Answer:
        """Carry out orders, and answer as soon as there is news.

        Raises
        ------
        FencedError
            When another controller has this node.
        EndingError
            When the agent is closed.
        """
        with self._lock:
            if self._closed:
                # Nothing is opened anew that nobody would close.
                raise EndingError
            pool = self._admit(asked)
            if asked.turn < self._turn:
                return self._nothing()
            self._turn = turn = asked.turn
            done = self._done
            beyond = (
                self._carry_out_orders(asked, pool)
                if asked.incarnation == self.incarnation
                else None
            )
            wait_s = asked.wait_s if self._done == done else 0.0
        # A request that waits is answered as soon as a newer one has come.
        self._condition.ring()
        self._condition.wait_for(lambda: self._has_news(turn), wait_s)
        with self._lock:
            return self._answer(asked, beyond, newest=turn == self._turn)

    def prune(self, keep_s: float) -> None:
        """Remove what is left of runs that ended longer ago."""
        pool = self._pool
        if pool is not None:
            pool.prune(keep_s)

    def log(self, place: LogPlace) -> LogPiece:
        """Return a piece of what a rank has written."""
        pool = self._pool
        path = None if pool is None else pool.log_path(place.run, place.rank)
        return piece_of(Path(path), place.part, place.offset) if path else LogPiece()

    def close(self) -> None:
        """Let go of everything but the jobs, which run on until the lease lapses."""
        with self._lock:
            self._closed = True
            if self._pool is not None:
                self._pool.close()
                self._pool = None
        self._condition.ring()

    # Who asks.

    def _admit(self, asked: Exchange) -> LocalPool:
        mark = Mark(home=asked.home, epoch=asked.epoch)
        before = self._fence.mark
        if self._fence.admit(mark, not self._lease.lapsed or self._may_run()):
            # One that has been displaced and comes back has to begin anew, too.
            self.incarnation = secrets.token_hex(8)
            self._outbox, self._done, self._turn = _Outbox(), 0, 0
        if self._pool is not None and before is not None and before.home != mark.home:
            self._pool.close()
            self._pool = None
        return self._pool or self._open(mark.home)

    def is_busy(self) -> bool:
        """Tell whether runs are kept."""
        return self._pool is not None and bool(self._pool.kept())

    def _may_run(self) -> bool:
        """Tell whether a rank that is kept is not known to be over.

        Runs that are over wait for their controller in the files of its home.
        """
        pool = self._pool
        if pool is None:
            return False
        self._take_in(pool)
        parts = [pool.part(run.id) for run in pool.kept()]
        return any(part is not None and not self._is_over(part) for part in parts)

    def _is_over(self, part: Part) -> bool:
        return all(self._rank_log.over(part.run.id, rank) for rank in part.ranks)

    def _open(self, home: str) -> LocalPool:
        self._rank_log, self._sick, self._leaving = RankLog(), {}, set()
        pool = self._open_pool(self._directory / "homes" / home)
        pool.join(self.address, self._lease)
        pool.attach(self._condition.ring)
        pool.resume(pool.unreleased())
        self._pool = pool
        return pool

    # Orders.

    def _carry_out_orders(self, asked: Exchange, pool: LocalPool) -> tuple[Part, ...] | None:
        """Carry out what has not been, and return what is kept beyond what was attached."""
        if asked.renew_s is not None:
            self._lease.renew_until(asked.renew_s + asked.lease_s)
        self._outbox.confirm(asked.seen)
        beyond = None
        for order in asked.orders:
            if order.number == self._done + 1:
                self._carry_out(order, pool)
                self._done = order.number
            if isinstance(order, Attach):
                beyond = self._beyond(order, pool)
        return beyond

    def _carry_out(self, order: AnyOrder, pool: LocalPool) -> None:
        match order:
            case Attach():
                self._attach(order, pool)
            case Launch(run=run):
                if self._may_start(whole(run)):
                    pool.launch(run)
            case Prepare(part=part):
                if self._may_start(part):
                    pool.prepare(part.run, part.ranks, part.rendezvous)
            case Commit(part=part):
                pool.keep(part)
                pool.commit(part.run.id)
            case Abort(part=part, reason=reason):
                pool.keep(part)
                pool.abort(part.run.id, reason)
            case Stop(part=part, grace_s=grace_s):
                pool.keep(part)
                pool.stop(part.run.id, grace_s)
            case Pause(run=run, on=on):
                pool.pause(run, on)
            case Release(run=run):
                self._release(run, pool)

    def _attach(self, order: Attach, pool: LocalPool) -> None:
        """Take up what should be here, and tell all that is known anew."""
        for part in order.parts:
            if pool.has_trace(part):
                pool.keep(part)
        self._take_in(pool)
        self._outbox.news = []
        for told in self._sick.values():
            self._outbox.add(told)
        for run in pool.kept():
            for event in self._rank_log.replayed(run.id):
                self._outbox.add(event)

    def _beyond(self, order: Attach, pool: LocalPool) -> tuple[Part, ...]:
        known = {part.run.id for part in order.parts}
        kept = (pool.part(run.id) for run in pool.kept() if run.id not in known)
        return tuple(part for part in kept if part is not None)

    def _may_start(self, part: Part) -> bool:
        reason = why_unknown_here(part.run.spec.owner)
        if reason is None and not self._lease.lapsed:
            return True
        later = reason is None
        for rank in part.ranks:
            refused = RankRefused(
                at_s=0.0,
                run=part.run.id,
                rank=rank,
                reason=reason or "the lease of its node had lapsed",
                later=later,
            )
            self._note(refused)
        return False

    def _release(self, run: str, pool: LocalPool) -> None:
        """Let go of a run; one that is not over is ended before."""
        self._take_in(pool)
        if pool.part(run) is not None and not self._let_go_if_over(run, pool):
            pool.stop(run, 0.0)
            self._leaving.add(run)

    def _let_go_if_over(self, run: str, pool: LocalPool) -> bool:
        part = pool.part(run)
        if part is not None and not self._is_over(part):
            return False
        pool.release(run)
        self._rank_log.forget(run)
        self._leaving.discard(run)
        return True

    # News.

    def _has_news(self, turn: int) -> bool:
        with self._lock:
            if self._pool is not None:
                self._take_in(self._pool)
            return bool(self._outbox.news) or turn != self._turn or self._closed

    def _take_in(self, pool: LocalPool) -> None:
        for event in pool.poll():
            self._note(event)
        for prepared in pool.prepared():
            self._outbox.add(prepared)
        for run in [*self._leaving]:
            self._let_go_if_over(run, pool)

    def _note(self, event: AnyEvent) -> None:
        self._rank_log.take_in(event)
        if isinstance(event, DeviceSick | DeviceHealed):
            self._sick[event.gpu] = event
        self._outbox.add(event)

    # Answers.

    def _answer(self, asked: Exchange, beyond: tuple[Part, ...] | None, newest: bool) -> Answer:
        pool = self._pool
        if pool is None:
            # Not fenced: of a node whose agent never comes back, ranks would count as lost forever.
            raise EndingError
        if self._fence.mark != Mark(home=asked.home, epoch=asked.epoch):
            raise FencedError("another controller has come meanwhile")
        if not newest:
            # All of it comes with the answer to the newer request, or its order would be lost.
            return self._nothing()
        new = {getattr(one.event, "run", None) for one in self._outbox.news}
        watched = [run for run in pool.kept() if asked.watch or run.id in new]
        # With what is kept comes all that is known of it: of the rest there is no trace.
        news = self._outbox.news[: MOST_NEWS if beyond is None else None]
        told = {
            "done": self._done,
            "news": tuple(news),
            "beyond": beyond,
            "facts": None if asked.incarnation == self.incarnation else facts_of(self._id, pool),
            "progress": {run.id: tuple(pool.progress(run.id)) for run in watched},
        }
        if asked.watch:
            alive = (run for run in watched if self._rank_log.has_trace(run.id))
            libraries = {run.id: found for run in alive if (found := pool.library(run))}
            told |= {"usage": pool.usage(), "libraries": libraries}
        return self._nothing().model_copy(update=told)

    def _nothing(self) -> Answer:
        return Answer(
            incarnation=self.incarnation,
            clock_s=boot_s(),
            until_s=self._lease.deadline_s,
            done=0,
        )


@contextmanager
def hosted(directory: Path, pool: str, address: str) -> Iterator[Agent]:
    """Have an agent that keeps the jobs of this node; they run on after it.

    Parameters
    ----------
    directory : path
        The agent's state directory.
    pool : str
        As ``opening.opener`` has it.
    address : str
        Where other nodes reach this one.

    Raises
    ------
    InputError
        When there is no such pool, or the directory cannot be had.
    """
    require_own(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        told = f"cannot be made: {error.strerror}"
        raise InputError(told, "directory", str(directory)) from None
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(directory / "lock", flags, 0o600), "r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError("another agent keeps it", "directory", str(directory)) from None
        agent = Agent(directory, opener(pool, directory), address)
        over = threading.Event()
        threading.Thread(target=_prune, args=(agent, over), daemon=True).start()
        try:
            yield agent
        finally:
            over.set()
            agent.close()


def _prune(agent: Agent, over: threading.Event) -> None:
    while not over.wait(PRUNE_S):
        agent.prune(KEEP_S)


def facts_of(agent: str, pool: LocalPool) -> Facts:
    """Return what an agent says of itself and its pool."""
    first, same, other = (_somebody(uid) for uid in (0, 0, 1))
    models = {gpu.model for node in pool.cluster().nodes for gpu in node.devices}
    return Facts(
        agent=agent,
        pool=pool.name,
        notice=pool.notice,
        cluster=pool.cluster(),
        sharing=pool.sharing(first, same),
        sharing_others=pool.sharing(first, other),
        allowed={
            library: {model: tuple(sorted(pool.allowed(library, model))) for model in models}
            for library in ("", *pool.libraries())
        },
    )


def _somebody(uid: int) -> Run:
    """Return a run of a user, to ask a pool who may share."""
    owner = Owner(name=f"user {uid}", uid=uid, gid=uid)
    spec = JobSpec(command=("true",), workload="w", owner=owner, cwd="/")
    return Run(id="j0.0", job="j0", spec=spec, seats=(Seat(gpu="none"),))


def why_unknown_here(owner: Owner) -> str | None:
    """Return why a job's owner is not the same user on this node; None: he is.

    Where the service is root's, jobs run under the number that their owner has where he submitted
    them, so names and numbers have to be alike on all nodes.
    """
    if os.geteuid() != 0:
        return None
    uid = _uid_of(owner)
    if uid == owner.uid:
        return None
    here = "is no user" if uid is None else f"is user {uid}"
    return (
        f"{owner.name} (user {owner.uid}) {here} on {socket.gethostname()}: "
        "users have to be alike on all nodes"
    )


def _uid_of(owner: Owner) -> int | None:
    """Return the number that a name has here; of one that is not known, his own if that is."""
    try:
        return pwd.getpwnam(owner.name).pw_uid
    except KeyError:
        known = any(user.pw_uid == owner.uid for user in pwd.getpwall())
        return owner.uid if known else None
