"""A node as its controller knows it: its desired state, its reported state and the open call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dovetail.cluster.fence import Mark
from dovetail.cluster.lease import RemoteLease
from dovetail.cluster.messages import (
    ANSWER_S,
    AgentAnswer,
    AgentFacts,
    AgentRequest,
    NodeState,
    Want,
)
from dovetail.cluster.rank_log import RankLog
from dovetail.executor.jobs.events import RankEnded, RankEvent
from dovetail.executor.jobs.specs import Run
from dovetail.executor.pools.pool import Progress, Usage
from dovetail.executor.pools.runs.files import Part
from dovetail.executor.system.clock import boot_s
from dovetail.instances.instance import Gpu

_PAUSE_S: Final = 0.2
_MOST_PAUSE_S: Final = 2.0


@dataclass(eq=False)
class Call:
    """An open request; ``due_s`` is infinite while its answer is examined."""

    version: int
    waits: bool
    sent_s: float
    due_s: float


@dataclass
class Remote:
    """A node as its controller knows it, without threads, locks or connections.

    Attributes
    ----------
    id : str
        The node's id. The controller's name for a device is this id, a slash and the node's name.
    lease : RemoteLease
        The lease of the node's jobs.
    facts : AgentFacts or None
        The last facts of its agent.
    rack : str or None
        The node's rack.
    incarnation : str or None
        The incarnation of the agent that answered last.
    silent : str
        Why it does not answer, empty if it does.
    doubted : bool
        Whether its last call failed, so that its agent may have died since its last answer.
    fenced : bool
        Whether its agent obeys another controller.
    wants : mapping of str to Want
        The wants of its runs, with the node's names of devices.
    version, held : int
        The version of the wants, and the version that the agent has. None are sent before the pool
        has been resumed.
    state, rank_log : NodeState, RankLog
        The last state of this incarnation, and its ranks.
    call : Call or None
        The open call. It may be replaced while the agent only waits for news.
    """

    id: str
    lease: RemoteLease
    facts: AgentFacts | None = None
    rack: str | None = None
    incarnation: str | None = None
    silent: str = ""
    doubted: bool = False
    fenced: bool = False
    wants: dict[str, Want] = field(default_factory=dict)
    version: int = 1
    held: int = 0
    state: NodeState = field(default_factory=NodeState)
    rank_log: RankLog = field(default_factory=RankLog)
    progress: Mapping[str, Sequence[Progress | None]] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)
    call: Call | None = None
    _seen: int = 0
    _offset_s: float = 0.0
    _pause_s: float = _PAUSE_S
    _paused_s: float = 0.0

    # Wants.

    def want(self, part: Part, **changes: object) -> None:
        """Change the desired state of a part of a run."""
        known = self.wants.get(part.run.id) or Want(part=part)
        self.wants[part.run.id] = known.model_copy(update={"part": part, **changes})
        self.version += 1

    def release(self, run: str) -> None:
        """Remove the want of a run: the agent ends its remaining processes, and releases it."""
        self.wants.pop(run, None)
        self.libraries.pop(run, None)
        self.version += 1

    def is_other(self, answer: AgentAnswer) -> bool:
        """Return whether an answer is from an agent with a new directory."""
        known, new = self.facts, answer.facts
        return known is not None and new is not None and known.agent != new.agent

    def displace(self) -> None:
        """Stop the runs of the previous agent, because the next one does not know their start."""
        for want in [*self.wants.values()]:
            if want.phase in ("launch", "prepare", "commit"):
                self.want(want.part, phase="stop", grace_s=0.0)

    @property
    def attached(self) -> bool:
        """Whether the agent has reported all of its runs to this controller."""
        return self.held > 0

    # Calls.

    @property
    def askable(self) -> bool:
        """Whether a request may be sent now."""
        replaceable = self.call is None or (self.call.waits and self.call.version < self.version)
        return replaceable and boot_s() >= self._paused_s

    def request(
        self, mark: Mark, wait_s: float, *, watch: bool, resumed: bool, keep_others: bool
    ) -> tuple[Call, AgentRequest]:
        """Open the next call, and return it with its request.

        Parameters
        ----------
        mark : Mark
            The controller's mark.
        wait_s : float
            How long the agent may wait for news if no wants are sent.
        watch : bool
            Whether the answer must include progress, usage and libraries.
        resumed : bool
            Whether the wants are complete, and may be sent.
        keep_others : bool
            Whether unwanted runs keep running.
        """
        known = self.incarnation is not None
        sends = known and resumed and self.held < self.version
        waits = known and not sends and not self.silent
        sent_s = boot_s()
        request = AgentRequest(
            home=mark.home,
            epoch=mark.epoch,
            incarnation=self.incarnation,
            renew_s=self.lease.quoted_s,
            lease_s=self.lease.length_s,
            version=self.version,
            wants=tuple(self.wants.values()) if sends else None,
            keep_others=keep_others,
            seen=self._seen,
            wait_s=wait_s if waits else 0.0,
            watch=watch or not known,
        )
        self.lease.note_request(sent_s)
        self.call = Call(self.version, waits, sent_s, sent_s + request.wait_s + ANSWER_S)
        return self.call, request

    def overdue(self) -> bool:
        """Return whether its call has been open for too long."""
        return self.call is not None and self.call.due_s <= boot_s()

    def give_up_call(self) -> None:
        """Abandon the open call, and pause before the next one."""
        self.call, self.doubted = None, True
        self._paused_s = boot_s() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _MOST_PAUSE_S)

    # Answers.

    def take_in(self, answer: AgentAnswer, sent_s: float, received_s: float) -> None:
        """Update the state from an answer."""
        if answer.incarnation != self.incarnation:
            if answer.facts is None:
                return
            self.incarnation, self.facts = answer.incarnation, answer.facts
            self.lease.forget_clock()
            self._offset_s = (sent_s + received_s) / 2 - answer.clock_s
        self.lease.note_answer(answer.clock_s, answer.until_s, received_s)
        self.silent, self.doubted, self.fenced, self._pause_s = "", False, False, _PAUSE_S
        self.held, self._seen = answer.wanted, answer.version
        if answer.state is not None:
            self.state, self.rank_log = answer.state, RankLog(map(self._here, answer.state.ranks))
        self._note_readings(answer)

    def _here(self, event: RankEvent) -> RankEvent:
        if isinstance(event, RankEnded) and event.ended_s is not None:
            return event.replace(ended_s=event.ended_s + self._offset_s)
        return event

    def _note_readings(self, answer: AgentAnswer) -> None:
        def here(progress: Progress | None) -> Progress | None:
            return progress and progress._replace(at_s=progress.at_s + self._offset_s)

        if answer.progress:
            self.progress = {run: [*map(here, ranks)] for run, ranks in answer.progress.items()}
        for device, usage in answer.usage.items():
            shifted = usage._replace(at_s=usage.at_s + self._offset_s)
            self.usage[self.outside_device(device)] = shifted
        self.libraries.update(answer.libraries)

    # Names of devices.

    def devices(self) -> tuple[Gpu, ...]:
        """Return its devices with the controller's names."""
        gpus = self._gpus()
        return tuple(gpu.model_copy(update={"id": self.outside_device(gpu.id)}) for gpu in gpus)

    def device_ids(self) -> list[str]:
        """Return the controller's names of its devices."""
        return [self.outside_device(gpu.id) for gpu in self._gpus()]

    def _gpus(self) -> list[Gpu]:
        nodes = () if self.facts is None else self.facts.cluster.nodes
        return [gpu for node in nodes for gpu in node.devices]

    def outside_device(self, device: str) -> str:
        """Return the controller's name for a device."""
        return f"{self.id}/{device}"

    def outside(self, part: Part) -> Part:
        """Return a part with the controller's names for the node's devices."""
        return _renamed(part, self.outside_device)


def node_of(device: str) -> str:
    """Return the node of a device."""
    return device.partition("/")[0]


def parts_of(run: Run) -> dict[str, Part]:
    """Return the parts of a run by node, each with the node's own names for its devices."""
    ranks: dict[str, list[int]] = {}
    for rank, seat in enumerate(run.seats):
        ranks.setdefault(node_of(seat.gpu), []).append(rank)
    return {
        node: _renamed(Part(run, tuple(mine)), lambda device: device.partition("/")[2])
        for node, mine in ranks.items()
    }


def joined(known: Run, part: Part) -> Run:
    """Return a run with the seats of one more part, with the controller's device names."""
    seats = list(known.seats)
    for rank in part.ranks:
        seats[rank] = part.run.seats[rank]
    return known.model_copy(update={"seats": tuple(seats)})


def _renamed(part: Part, name: Callable[[str], str]) -> Part:
    """Return a part with other names for the devices of its own ranks."""
    seats = tuple(
        seat.model_copy(update={"gpu": name(seat.gpu)}) if rank in part.ranks else seat
        for rank, seat in enumerate(part.run.seats)
    )
    return part._replace(run=part.run.model_copy(update={"seats": seats}))
