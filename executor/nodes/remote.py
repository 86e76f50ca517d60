"""What a controller knows of one node and wants of it, and its call to the node's agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dovetail.executor.jobs.events import RankEnded, RankEvent
from dovetail.executor.jobs.specs import Run
from dovetail.executor.nodes.fence import Mark
from dovetail.executor.nodes.lease import Lease
from dovetail.executor.nodes.messages import ANSWER_S, Answer, Exchange, Facts, State, Want
from dovetail.executor.nodes.rank_log import RankLog
from dovetail.executor.pools.parts import Part
from dovetail.executor.pools.pool import Progress, Usage
from dovetail.executor.system.clock import boot_s
from dovetail.instances.instance import Gpu

_PAUSE_S: Final = 0.2
_MOST_PAUSE_S: Final = 2.0


@dataclass(eq=False)
class Call:
    """A request whose answer is awaited until it is due; infinite while the answer is examined."""

    version: int
    waits: bool
    sent_s: float
    due_s: float


@dataclass
class Remote:
    """One node as its controller knows it; no thread, no lock and no connection.

    Attributes
    ----------
    id : str
        The node's; ids of its devices begin with it and a slash.
    lease : Lease
        Of its jobs.
    facts : Facts or None
        As its agent last sent them.
    rack : str or None
        Of the node.
    incarnation : str or None
        Of the agent that answered last.
    silent : str
        Why it counts as not answering; empty: it answers.
    doubted : bool
        Whether its last call failed, so that its agent may have died since it last answered.
    fenced : bool
        Whether another controller has it.
    wants : mapping of str to Want
        By run, as the node names its devices.
    version, held : int
        Of the wants, and of those that the agent is known to have. The first are sent once the
        pool has been resumed.
    state, rank_log : State, RankLog
        As this incarnation last sent it, and its ranks.
    call : Call or None
        The one whose answer is awaited; it may be replaced while the agent waits for news.
    """

    id: str
    lease: Lease
    facts: Facts | None = None
    rack: str | None = None
    incarnation: str | None = None
    silent: str = ""
    doubted: bool = False
    fenced: bool = False
    wants: dict[str, Want] = field(default_factory=dict)
    version: int = 1
    held: int = 0
    state: State = field(default_factory=State)
    rank_log: RankLog = field(default_factory=RankLog)
    progress: Mapping[str, Sequence[Progress | None]] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)
    call: Call | None = None
    _seen: int = 0
    _offset_s: float = 0.0
    _pause_s: float = _PAUSE_S
    _paused_s: float = 0.0

    # What is wanted of it.

    def want(self, part: Part, **changes: object) -> None:
        """Want something of a part of a run, in place of what was wanted before."""
        known = self.wants.get(part.run.id) or Want(part=part)
        self.wants[part.run.id] = known.model_copy(update={"part": part, **changes})
        self.version += 1

    def release(self, run: str) -> None:
        """Want nothing of a run any more: its agent ends what is left of it, and lets go of it."""
        self.wants.pop(run, None)
        self.libraries.pop(run, None)
        self.version += 1

    def is_other(self, answer: Answer) -> bool:
        """Return whether an answer is of another agent's directory than the last ones."""
        known, new = self.facts, answer.facts
        return known is not None and new is not None and known.agent != new.agent

    def displace(self) -> None:
        """Never have another agent start the runs of this one, of which it knows nothing."""
        for want in [*self.wants.values()]:
            if want.phase in ("launch", "prepare", "commit"):
                self.want(want.part, phase="stop", grace_s=0.0)

    @property
    def attached(self) -> bool:
        """Whether what it has sent is all that there is."""
        return self.held > 0

    # Calls.

    @property
    def askable(self) -> bool:
        """Whether a request may be sent."""
        replaceable = self.call is None or (self.call.waits and self.call.version < self.version)
        return replaceable and boot_s() >= self._paused_s

    def request(
        self, mark: Mark, wait_s: float, *, watch: bool, resumed: bool, keep_others: bool
    ) -> tuple[Call, Exchange]:
        """Return the next request, and the call with it, which is awaited from now on.

        Parameters
        ----------
        mark : Mark
            The controller's.
        wait_s : float
            How long the agent may wait for news, if there is nothing else to do.
        watch : bool
            Whether progress, usage and libraries are asked for.
        resumed : bool
            Whether the wants are complete.
        keep_others : bool
            Whether runs that are not wanted run on.
        """
        known = self.incarnation is not None
        sends = known and resumed and self.held < self.version
        waits = known and not sends and not self.silent
        sent_s = boot_s()
        asked = Exchange(
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
        self.lease.asked(sent_s)
        self.call = Call(self.version, waits, sent_s, sent_s + asked.wait_s + ANSWER_S)
        return self.call, asked

    def overdue(self) -> bool:
        """Return whether its call should have been answered by now."""
        return self.call is not None and self.call.due_s <= boot_s()

    def broken_off(self) -> None:
        """Take in that it does not answer, and pause before the next request."""
        self.call, self.doubted = None, True
        self._paused_s = boot_s() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _MOST_PAUSE_S)

    # Answers.

    def take_in(self, answer: Answer, sent_s: float, received_s: float) -> None:
        """Take in an answer."""
        if answer.incarnation != self.incarnation:
            if answer.facts is None:
                return
            self.incarnation, self.facts = answer.incarnation, answer.facts
            self.lease.forget_clock()
            self._offset_s = (sent_s + received_s) / 2 - answer.clock_s
        self.lease.heard(answer.clock_s, answer.until_s, received_s)
        self.silent, self.doubted, self.fenced, self._pause_s = "", False, False, _PAUSE_S
        self.held, self._seen = answer.wanted, answer.version
        if answer.state is not None:
            self.state, self.rank_log = answer.state, RankLog(map(self._here, answer.state.ranks))
        self._note_readings(answer)

    def _here(self, event: RankEvent) -> RankEvent:
        if isinstance(event, RankEnded) and event.ended_s is not None:
            return event.replace(ended_s=event.ended_s + self._offset_s)
        return event

    def _note_readings(self, answer: Answer) -> None:
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
        """Return its devices as the controller names them."""
        gpus = self._gpus()
        return tuple(gpu.model_copy(update={"id": self.outside_device(gpu.id)}) for gpu in gpus)

    def device_ids(self) -> list[str]:
        """Return the controller's names of its devices."""
        return [self.outside_device(gpu.id) for gpu in self._gpus()]

    def _gpus(self) -> list[Gpu]:
        nodes = () if self.facts is None else self.facts.cluster.nodes
        return [gpu for node in nodes for gpu in node.devices]

    def outside_device(self, device: str) -> str:
        """Return the controller's name of a device."""
        return f"{self.id}/{device}"

    def outside(self, part: Part) -> Part:
        """Return a part as the controller names the node's devices."""
        return _renamed(part, self.outside_device)


def node_of(device: str) -> str:
    """Return the node of a device."""
    return device.partition("/")[0]


def parts_of(run: Run) -> dict[str, Part]:
    """Return the parts of a run by node, each as the node names its own devices."""
    ranks: dict[str, list[int]] = {}
    for rank, seat in enumerate(run.seats):
        ranks.setdefault(node_of(seat.gpu), []).append(rank)
    return {
        node: _renamed(Part(run, tuple(mine)), lambda device: device.partition("/")[2])
        for node, mine in ranks.items()
    }


def joined(known: Run, part: Part) -> Run:
    """Return a run with the devices of one more part as the controller names them."""
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
