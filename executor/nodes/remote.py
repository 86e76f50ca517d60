"""What a controller knows of one node, what it still has to tell it, and its calls on their way.

One call waits for news, and orders need not wait for it: they go with a second one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from dovetail.executor.jobs.events import AnyEvent, DeviceHealed, DeviceSick, RankEnded
from dovetail.executor.jobs.specs import Run
from dovetail.executor.nodes.calls import ANSWER_S
from dovetail.executor.nodes.fence import Mark
from dovetail.executor.nodes.lease import Lease
from dovetail.executor.nodes.messages import (
    Answer,
    AnyOrder,
    Attach,
    Commit,
    Exchange,
    Facts,
    Launch,
    Pause,
    Prepare,
    Release,
    Stop,
)
from dovetail.executor.nodes.rank_log import RankLog
from dovetail.executor.pools.parts import Part, Prepared
from dovetail.executor.pools.pool import Progress, Usage
from dovetail.executor.system.clock import boot_s
from dovetail.instances.instance import Gpu

_PAUSE_S: Final = 0.2
_MOST_PAUSE_S: Final = 2.0


@dataclass(eq=False)
class OnItsWay:
    """A request whose answer is awaited until it is due; infinite while the answer is judged."""

    sent_s: float
    due_s: float
    received_s: float = 0.0


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
        As its agent told last.
    rack : str or None
        Where it stands.
    incarnation : str or None
        Of the agent that answered last.
    silent : str
        Why it is taken not to answer; empty: it does.
    parts : mapping of str to Part
        What should be there, as the node names its devices.
    standing : mapping of str to order
        The last order about each run, for an agent that is started anew.
    story : RankLog
        What this incarnation has told of ranks.
    """

    id: str
    lease: Lease
    facts: Facts | None = None
    rack: str | None = None
    incarnation: str | None = None
    silent: str = ""
    fenced: bool = False
    taken_up: bool = False
    parts: dict[str, Part] = field(default_factory=dict)
    standing: dict[str, AnyOrder] = field(default_factory=dict)
    rank_log: RankLog = field(default_factory=RankLog)
    progress: dict[str, Sequence[Progress | None]] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)
    _calls: list[OnItsWay] = field(default_factory=list)
    _pause_s: float = _PAUSE_S
    _paused_s: float = 0.0
    _orders: list[AnyOrder] = field(default_factory=list)
    _numbered: int = 0
    _turn: int = 0
    _sent: int = 0
    _done: int = 0
    _attach: int = 0
    _seen: int = 0
    _offset_s: float = 0.0
    _devices: tuple[Gpu, ...] | None = None

    # What it is told.

    def order(self, order: AnyOrder) -> None:
        """Add an order; it is repeated until it has been carried out."""
        self._numbered += 1
        numbered = order.model_copy(update={"number": self._numbered})
        if not isinstance(numbered, Attach):
            self.standing[run_of(numbered)] = numbered
        self._orders.append(numbered)

    def take_up(self) -> None:
        """Have all parts taken up, and everything told anew, by every agent from now on."""
        self.taken_up = True
        if self.incarnation is not None:
            self._ask_to_attach()

    def _ask_to_attach(self) -> None:
        self.order(Attach(parts=tuple(self.parts.values())))
        self._attach = self._numbered

    def is_other(self, answer: Answer) -> bool:
        """Tell whether an answer is of another agent's directory than the last ones."""
        known, told = self.facts, answer.facts
        return known is not None and told is not None and known.agent != told.agent

    def displace(self) -> None:
        """Let another agent, which knows nothing of this one's runs, never start them again."""
        for run, order in self.standing.items():
            if isinstance(order, Launch | Prepare | Commit):
                self.standing[run] = Stop(part=self.parts[run], grace_s=0.0)

    @property
    def attached(self) -> bool:
        """Whether what it tells is all that there is."""
        return 0 < self._attach <= self._done

    @property
    def urgent(self) -> bool:
        """Whether there are orders that have not been sent."""
        return self.incarnation is not None and self._numbered > self._sent

    @property
    def waiting(self) -> bool:
        """Whether there are orders that it is not known to have carried out."""
        return bool(self._orders)

    @property
    def askable(self) -> bool:
        """Whether a request may be sent; a second one only where it is urgent."""
        most = 2 if self.urgent else 1
        return boot_s() >= self._paused_s and len(self._calls) < most

    def request(self, mark: Mark, wait_s: float, watch: bool) -> tuple[OnItsWay, Exchange]:
        """Return what it is asked next, which is on its way from now on."""
        known = self.incarnation is not None
        self._sent = self._numbered
        self._turn += 1
        hurried = not known or any(isinstance(order, Attach) for order in self._orders)
        asked = Exchange(
            home=mark.home,
            epoch=mark.epoch,
            turn=self._turn,
            incarnation=self.incarnation,
            renew_s=self.lease.quoted_s,
            lease_s=self.lease.length_s,
            seen=self._seen,
            orders=tuple(self._orders) if known else (),
            wait_s=0.0 if hurried or self.silent else wait_s,
            watch=watch or hurried,
        )
        sent_s = boot_s()
        self.lease.asked(sent_s)
        self._calls.append(OnItsWay(sent_s, sent_s + asked.wait_s + ANSWER_S))
        return self._calls[-1], asked

    def hold(self, call: OnItsWay, received_s: float) -> bool:
        """Take in that an answer has come, and return whether it is to be listened to.

        What was given up is not; nor is anything while an earlier answer is being judged.
        """
        if call not in self._calls or any(math.isinf(one.due_s) for one in self._calls):
            self.drop(call)
            return False
        call.due_s, call.received_s = math.inf, received_s
        return True

    def drop(self, call: OnItsWay) -> None:
        """Take in that a call is over."""
        self._calls = [one for one in self._calls if one is not call]

    def overdue(self) -> bool:
        """Tell whether a call should have been answered by now."""
        return any(call.due_s <= boot_s() for call in self._calls)

    def broken_off(self) -> None:
        """Take in that it does not answer: what was sent may not have come, and a pause is made."""
        self._calls, self._sent = [], self._done
        self._paused_s = boot_s() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _MOST_PAUSE_S)

    # What it tells.

    def take_in(
        self, answer: Answer, sent_s: float, received_s: float
    ) -> list[AnyEvent | Prepared]:
        """Take in an answer, and return what is new in it, as the controller names devices."""
        if answer.incarnation != self.incarnation:
            if answer.facts is None:
                return []
            self._meet(answer, sent_s, received_s)
        self.lease.heard(answer.clock_s, answer.until_s, received_s)
        self.silent, self.fenced, self._pause_s = "", False, _PAUSE_S
        self._done = max(self._done, answer.done)
        for order in self._orders:
            if isinstance(order, Release) and order.number <= self._done:
                self._settle(order)
        self._orders = [order for order in self._orders if order.number > self._done]
        self._note_readings(answer)
        new = [self._outside(one.event) for one in answer.news if one.number > self._seen]
        self._seen = max([self._seen, *(one.number for one in answer.news)])
        for event in new:
            if not isinstance(event, Prepared):
                self.rank_log.take_in(event)
        return new

    def _meet(self, answer: Answer, sent_s: float, received_s: float) -> None:
        """Begin anew with an agent that was not known."""
        self.incarnation, self.facts = answer.incarnation, answer.facts
        self.lease.forget_clock()
        self._offset_s = (sent_s + received_s) / 2 - answer.clock_s
        self._orders, self._numbered, self._sent, self._done, self._seen = [], 0, 0, 0, 0
        self._attach, self.rank_log, self._devices = 0, RankLog(), None
        if self.taken_up:
            self._ask_to_attach()
            for order in [*self.standing.values()]:
                self.order(order)

    def _note_readings(self, answer: Answer) -> None:
        for run, progress in answer.progress.items():
            self.progress[run] = [self._of_here(one) for one in progress]
        for device, usage in answer.usage.items():
            here = usage._replace(at_s=usage.at_s + self._offset_s)
            self.usage[self.outside_device(device)] = here
        self.libraries.update(answer.libraries)

    def _of_here(self, progress: Progress | None) -> Progress | None:
        if progress is None:
            return None
        return progress._replace(at_s=progress.at_s + self._offset_s)

    def _settle(self, release: Release) -> None:
        if self.standing.get(release.run) == release:
            del self.standing[release.run]

    def forget_released(self) -> None:
        """Forget the runs that are released, once the node has told that they are over.

        A release is carried out as soon as what still runs is being ended.
        """
        kept = self.parts.keys() | self.standing.keys()
        for run in self.rank_log.statuses.keys() - kept:
            if self.rank_log.all_over(run):
                self.rank_log.forget(run)
        for known in (self.progress, self.libraries):
            for run in known.keys() - kept:
                del known[run]

    # Names of devices.

    def devices(self) -> tuple[Gpu, ...]:
        """Return its devices as the controller names them."""
        if self._devices is None:
            nodes = () if self.facts is None else self.facts.cluster.nodes
            self._devices = tuple(
                gpu.model_copy(update={"id": self.outside_device(gpu.id)})
                for node in nodes
                for gpu in node.devices
            )
        return self._devices

    def outside_device(self, device: str) -> str:
        """Return the controller's name of a device."""
        return f"{self.id}/{device}"

    def outside(self, part: Part) -> Part:
        """Return a part as the controller names the node's devices."""
        return _renamed(part, self.outside_device)

    def _outside(self, event: AnyEvent | Prepared) -> AnyEvent | Prepared:
        if isinstance(event, DeviceSick | DeviceHealed):
            return event.replace(gpu=self.outside_device(event.gpu))
        if isinstance(event, RankEnded) and event.ended_s is not None:
            return event.replace(ended_s=event.ended_s + self._offset_s)
        return event


def run_of(order: AnyOrder) -> str:
    """Return the id of the run that an order is about; empty: of all."""
    match order:
        case Attach():
            return ""
        case Launch(run=run):
            return run.id
        case Release(run=run) | Pause(run=run):
            return run
    return order.part.run.id


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
