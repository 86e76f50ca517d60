"""The agent of one node, which runs jobs there for a controller on another machine.

The agent brings the runs of this machine's pool to the states that the controller wants, reports
the states of ranks and devices, and renews the lease of its jobs. ``ray_agent`` is its transport.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import pwd
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dovetail.cluster.fence import Fence, Mark, identity
from dovetail.cluster.logs import LogPiece, LogPlace, piece_of
from dovetail.cluster.messages import (
    AgentAnswer,
    AgentFacts,
    AgentRequest,
    FencedError,
    Kind,
    Method,
    NodeState,
    Want,
    read_message,
)
from dovetail.cluster.rank_log import RankLog
from dovetail.executor.jobs.events import (
    DeviceHealed,
    DeviceSick,
    IsolationLost,
    IsolationRegained,
    RankEvent,
    RankRefused,
)
from dovetail.executor.jobs.specs import Owner
from dovetail.executor.pools.local import LocalPool
from dovetail.executor.pools.runs.files import KEEP_S, PASS_THROUGH, ROOM_S, Part, PreparedPart
from dovetail.executor.pools.runs.lease import NodeLease
from dovetail.executor.system.clock import boot_s
from dovetail.executor.system.directories import require_own
from dovetail.instances.errors import InputError

_log = logging.getLogger(__name__)


class Agent:
    """Runs the jobs of one node; created and called in one event loop.

    Each home (a controller's state directory) has its own pool directory, since two controllers may
    give runs the same names.

    Parameters
    ----------
    directory : path
        The agent's state directory on this node.
    open_pool : callable
        Takes a folder for its files, and returns the pool of this node's devices.
    address : str
        The address at which ranks on other nodes reach the ranks on this node.
    """

    def __init__(
        self, directory: Path, open_pool: Callable[[Path], LocalPool], address: str
    ) -> None:
        self._directory, self._open_pool, self._address = directory, open_pool, address
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(PASS_THROUGH)
        self._id = identity(directory / "agent.json")
        self._fence = Fence(directory / "controller.json")
        self._lease = NodeLease(directory / "lease")
        self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        self.pool: LocalPool | None = None
        self._begin()
        if self._fence.mark is not None:
            # Jobs need a supervisor even if no controller calls.
            self._open(self._fence.mark.home)

    def _begin(self) -> None:
        """Begin an incarnation, without any wants of a controller."""
        self.incarnation = secrets.token_hex(8)
        self._wants: dict[str, Want] = {}
        self._wanted, self._version, self._keep_others = 0, 1, True

    def _open(self, home: str) -> LocalPool:
        self._rank_log, self._sick = RankLog(), dict[str, str]()
        self._isolation: dict[str, str] = {}
        self._prepared: dict[str, PreparedPart] = {}
        pool = self._open_pool(self._directory / "homes" / home)
        pool.join(self._address, self._lease)
        pool.attach(self._wake)
        pool.resume(pool.unreleased())
        self.pool = pool
        return pool

    def _wake(self) -> None:
        """Wake all waiting requests; from any thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._wake_here)

    def _wake_here(self) -> None:
        """Wake all waiting requests; in the event loop."""
        self._changed.set()
        self._changed.clear()

    # Calls.

    async def call(self, method: Method, text: str) -> tuple[Kind, str]:
        """Return the JSON of the answer to a call, or a line that says why it failed.

        Parameters
        ----------
        method : str
            ``exchange`` or ``log``.
        text : str
            The JSON of an ``AgentRequest`` or of a ``LogPlace``.
        """
        try:
            if method == "log":
                return "answer", self._log(read_message(LogPlace, text)).model_dump_json()
            return "answer", (
                await self.exchange(read_message(AgentRequest, text))
            ).model_dump_json()
        except Exception as error:  # the controller shows it
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            kind: Kind = "fenced" if isinstance(error, FencedError) else "error"
            return kind, " ".join(str(why).split())

    async def exchange(self, request: AgentRequest) -> AgentAnswer:
        """Carry out the wants of a request, and answer as soon as there is news.

        Raises
        ------
        FencedError
            When another controller has this node.
        """
        pool = self._admit(request)
        mine = request.incarnation == self.incarnation
        until_s = boot_s() + request.wait_s if mine else 0.0
        if mine:
            if request.renew_s is not None:
                self._lease.renew_until(request.renew_s + request.lease_s)
            if request.wants is not None and request.version > self._wanted:
                self._take_wants(request, request.wants, pool)
                until_s = 0.0
        wanted = self._wanted
        while True:
            self._take_in(pool)
            left_s = until_s - boot_s()
            # Once a newer request has arrived, no caller waits for the answer to this one.
            if request.seen != self._version or wanted != self._wanted or left_s <= 0:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
            if self._fence.mark != _mark(request):
                raise FencedError("another controller has taken this node")
        return self._answer(request, mine, pool)

    def _log(self, place: LogPlace) -> LogPiece:
        path = None if self.pool is None else self.pool.log_path(place.run, place.rank)
        return piece_of(Path(path), place.part, place.offset) if path else LogPiece()

    @property
    def busy(self) -> bool:
        """Whether it has runs."""
        return self.pool is not None and bool(self.pool.kept())

    # The controller.

    def _admit(self, request: AgentRequest) -> LocalPool:
        """Return the pool of the controller's home, if the fence admits the controller."""
        before, mark = self._fence.mark, _mark(request)
        is_new = self._fence.admit(mark, not self._lease.lapsed or self._may_run())
        # A controller that was briefly displaced gets a new incarnation, too.
        if is_new or request.incarnation is None:
            self._begin()
            self._wake_here()
        if self.pool is not None and before is not None and before.home != mark.home:
            self.pool.close()
            self.pool = None
        return self.pool or self._open(mark.home)

    def _may_run(self) -> bool:
        """Return whether any rank may still be running.

        Runs that are over stay in the files of their home until its controller returns.
        """
        if self.pool is None:
            return False
        self._take_in(self.pool)
        return any(not self._is_over(part) for part in self._parts(self.pool))

    def _parts(self, pool: LocalPool) -> list[Part]:
        parts = (pool.part(run.id) for run in pool.kept())
        return [part for part in parts if part is not None]

    def _is_over(self, part: Part) -> bool:
        return all(self._rank_log.over(part.run.id, rank) for rank in part.ranks)

    def _take_wants(self, request: AgentRequest, wants: tuple[Want, ...], pool: LocalPool) -> None:
        for want in wants:
            if self._wants.get(want.part.run.id) != want:
                self._carry_out(want, pool)
                self._wants[want.part.run.id] = want
        self._wants = {want.part.run.id: want for want in wants}
        self._wanted, self._keep_others = request.version, request.keep_others
        # The set of unwanted runs has changed with the wants.
        self._version += 1
        self._wake_here()
        if not self._keep_others:
            for part in self._unwanted(pool):
                pool.stop(part.run.id, 0.0)

    def _carry_out(self, want: Want, pool: LocalPool) -> None:
        """Bring a run to the wanted state; safe to repeat."""
        part, run = want.part, want.part.run
        unknown = why_unknown_here(run.spec.owner)
        if want.phase in ("launch", "prepare") and unknown:
            for rank in part.ranks:
                refused = RankRefused(at_s=0.0, run=run.id, rank=rank, reason=unknown)
                self._rank_log.take_in(refused)
            return
        if want.phase not in ("keep", "launch", "prepare") or pool.has_trace(part):
            pool.keep(part)
        match want.phase:
            case "launch":
                pool.launch(run)
            case "prepare":
                pool.prepare(run, part.ranks, part.rendezvous)
            case "commit":
                pool.commit(run.id)
            case "abort":
                pool.abort(run.id, want.reason)
            case "stop":
                pool.stop(run.id, want.grace_s)
        if want.paused is not None:
            pool.pause(run.id, want.paused)

    # The state.

    def _take_in(self, pool: LocalPool) -> None:
        for event in pool.poll():
            self._version += 1
            if isinstance(event, DeviceSick):
                self._sick[event.gpu] = event.reason
            elif isinstance(event, DeviceHealed):
                self._sick.pop(event.gpu, None)
            elif isinstance(event, IsolationLost):
                self._isolation[event.run] = event.reason
            elif isinstance(event, IsolationRegained):
                self._isolation[event.run] = ""
            elif isinstance(event, RankEvent):
                self._rank_log.take_in(event)
        for prepared in pool.prepared():
            self._version += 1
            self._prepared[prepared.run] = prepared
        if not self._keep_others:
            for part in self._unwanted(pool):
                if self._is_over(part):
                    pool.release(part.run.id)
            kept = self._wants.keys() | {run.id for run in pool.kept()}
            for run in self._rank_log.statuses.keys() - kept:
                self._rank_log.forget(run)
                self._prepared.pop(run, None)
                self._version += 1
            for run in self._isolation.keys() - kept:
                del self._isolation[run]
                self._version += 1

    def _unwanted(self, pool: LocalPool) -> list[Part]:
        """Return the parts that the pool has but no want names."""
        return [part for part in self._parts(pool) if part.run.id not in self._wants]

    # Answers.

    def _answer(self, request: AgentRequest, mine: bool, pool: LocalPool) -> AgentAnswer:
        sends = not mine or request.seen != self._version
        watched = [run for run in pool.kept() if request.watch or sends]
        alive = [run for run in watched if request.watch and self._rank_log.has_trace(run.id)]
        return AgentAnswer(
            incarnation=self.incarnation,
            clock_s=boot_s(),
            until_s=self._lease.deadline_s,
            wanted=self._wanted,
            version=self._version,
            state=self._state(pool) if sends else None,
            facts=None if mine else facts_of(self._id, pool),
            progress={run.id: tuple(pool.progress(run.id)) for run in watched},
            usage=pool.usage() if request.watch else {},
            libraries={run.id: found for run in alive if (found := pool.library(run))},
        )

    def _state(self, pool: LocalPool) -> NodeState:
        held = (one for one in self._prepared.values() if not self._rank_log.has_trace(one.run))
        return NodeState(
            ranks=tuple(self._rank_log.events()),
            prepared={one.run: one.rendezvous for one in held},
            unwanted=tuple(self._unwanted(pool)),
            sick=self._sick,
            isolation=self._isolation,
        )


def _mark(request: AgentRequest) -> Mark:
    return Mark(home=request.home, epoch=request.epoch)


def started(directory: Path, open_pool: Callable[[Path], LocalPool], address: str) -> Agent:
    """Return the agent of this node, the only one of its directory until this process ends.

    Parameters
    ----------
    directory : path
        The agent's state directory.
    open_pool : callable
        Opens the pool, as for ``Agent``.
    address : str
        The address at which other nodes reach this one.

    Raises
    ------
    InputError
        When the directory cannot be used.
    """
    require_own(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        rule = f"cannot be created: {error.strerror}"
        raise InputError(rule, "directory", str(directory)) from None
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(directory / "lock", flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        agent = Agent(directory, open_pool, address)
    except Exception as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            raise InputError("is in use by another agent", "directory", str(directory)) from None
        raise
    threading.Thread(target=_prune, args=(agent,), name="prunes", daemon=True).start()
    return agent


def _prune(agent: Agent) -> None:
    """Remove the files of runs that ended long ago or take too much of the disk."""
    while True:
        time.sleep(ROOM_S)
        try:
            if agent.pool is not None:
                agent.pool.prune(KEEP_S)
        except Exception:  # without it, nothing would ever be removed again
            _log.exception("old runs are not removed")


def facts_of(agent: str, pool: LocalPool) -> AgentFacts:
    """Return the facts of an agent and its pool."""
    models = {gpu.model for node in pool.cluster().nodes for gpu in node.devices}
    return AgentFacts(
        agent=agent,
        pool=pool.name,
        notice=pool.notice,
        cluster=pool.cluster(),
        sharing=pool.sharing(same_user=True),
        sharing_others=pool.sharing(same_user=False),
        allowed={
            library: {model: tuple(sorted(pool.allowed(library, model))) for model in models}
            for library in ("", *pool.libraries())
        },
    )


def why_unknown_here(owner: Owner) -> str:
    """Return why the owner of a job is not the same user on this node, empty if it is.

    An agent of root runs jobs under the uid that the owner has on the service's machine.
    """
    if os.geteuid() != 0:
        return ""
    try:
        uid = pwd.getpwnam(owner.name).pw_uid
    except KeyError:
        # The name may be unknown here although the uid is known.
        if any(user.pw_uid == owner.uid for user in pwd.getpwall()):
            return ""
        here = "is no user"
    else:
        if uid == owner.uid:
            return ""
        here = f"is user {uid}"
    return (
        f"{owner.name} (user {owner.uid}) {here} on {socket.gethostname()}: "
        "users must have the same numbers on all nodes"
    )
