"""What a controller and the agents of its nodes say to each other, as JSON.

A controller asks (``Exchange``), an agent answers (``Answer``). Either may be lost, come twice or
come late: orders and events have numbers, and are repeated until the other side has confirmed
them. All of a request is for one incarnation of an agent; an agent that has been restarted since
carries out none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeVar

from pydantic import AfterValidator, Field, StrictBool, StrictInt, ValidationError

from dovetail.executor.jobs.events import AnyEvent, RankEnded, RankGone, Reason
from dovetail.executor.jobs.specs import Run
from dovetail.executor.pools.parts import Part, Prepared
from dovetail.executor.pools.pool import Progress, Usage
from dovetail.instances._record import (
    Count,
    Name,
    NonNegative,
    Record,
    Share,
    input_error,
    rule_broken,
)
from dovetail.instances.instance import Cluster

MOST_WAIT_S: Final = 30.0
"""The longest that an agent is asked to wait for news before it answers."""

Number0 = Annotated[StrictInt, Field(ge=0)]


def _of_its_run(part: Part) -> Part:
    if list(part.ranks) != sorted(set(part.ranks)) or not part.ranks:
        raise rule_broken("ranks", "must be one rank or more, each once, in order")
    if not 0 <= part.ranks[0] <= part.ranks[-1] < len(part.run.seats):
        raise rule_broken("ranks", f"must be ranks of {part.run.id}")
    return part


NodePart = Annotated[Part, AfterValidator(_of_its_run)]
"""The ranks of a run that one node keeps; their numbers are the whole run's."""


# Orders.


class Order(Record):
    """What an agent is to do; orders are carried out in the order of their numbers, each once."""

    number: Count = 1


class Attach(Order):
    """Take up these parts, tell anew how all ranks are, and what is kept beyond them."""

    kind: Literal["attach"] = "attach"
    parts: tuple[NodePart, ...]


class Launch(Order):
    """Start every rank of a run that is on this node alone, all or none."""

    kind: Literal["launch"] = "launch"
    run: Run


class Prepare(Order):
    """Bring every rank of a part to the start barrier, and tell ``Prepared`` when all stand there.

    The agent of rank 0 decides on the rendezvous of the gang; its part comes without one.
    """

    kind: Literal["prepare"] = "prepare"
    part: NodePart


class Commit(Order):
    """Open the start barrier of a prepared part; ranks that are not there are refused."""

    kind: Literal["commit"] = "commit"
    part: NodePart


class Abort(Order):
    """Give up a prepared part: nothing of it has run, nor will."""

    kind: Literal["abort"] = "abort"
    part: NodePart
    reason: Reason


class Stop(Order):
    """End every rank of a part; those without a trace are never started any more."""

    kind: Literal["stop"] = "stop"
    part: NodePart
    grace_s: NonNegative


class Pause(Order):
    """Stop every process of a run where it is, or let it go on."""

    kind: Literal["pause"] = "pause"
    run: Name
    on: StrictBool


class Release(Order):
    """Give back what a part held; one that is not over is ended first."""

    kind: Literal["release"] = "release"
    run: Name


AnyOrder = Annotated[
    Attach | Launch | Prepare | Commit | Abort | Stop | Pause | Release, Field(discriminator="kind")
]


# News.


class News(Record):
    """Something that happened on a node."""

    number: Count
    event: AnyEvent | Prepared


# The exchange.


class Facts(Record):
    """What an agent is: asked for once an incarnation.

    Attributes
    ----------
    agent : str
        The id of its directory (``fence.identity``).
    pool, notice : str
        As of a ``NodePool``.
    cluster : Cluster
        Its devices.
    sharing : str or None
        Why two runs may not share a device here; None: they may.
    sharing_others : str or None
        The same, for runs of different users.
    allowed : mapping of str to mapping of str to tuple of int
        The shares of each device model that programs may have, by their library: those that are
        known, and the empty one for all others.
    """

    agent: Name
    pool: Name
    notice: str
    cluster: Cluster
    sharing: str | None = None
    sharing_others: str | None = None
    allowed: Mapping[str, Mapping[str, tuple[Share, ...]]] = {}


class Exchange(Record):
    """What a controller asks of an agent.

    Attributes
    ----------
    home, epoch : str, int
        The controller's state directory, and how often it has been started. An agent refuses a
        lower epoch than it has seen, and another home while it holds runs of the first.
    turn : int
        Grows with every request of a controller to this agent: requests may overtake each other,
        and one that was overtaken is no longer listened to.
    incarnation : str or None
        Of the agent, as it last answered.
    renew_s : float or None
        The agent's clock, as it last answered: its jobs may run until ``lease_s`` later.
    seen : int
        The number of the last event that has been taken in.
    wait_s : float
        For how long the agent may wait for news before it answers.
    watch : bool
        Whether progress, usage and libraries are asked for.
    """

    version: Literal[2] = 2
    home: Name
    epoch: Count
    turn: Number0 = 0
    incarnation: Name | None = None
    renew_s: NonNegative | None = None
    lease_s: NonNegative
    seen: Number0 = 0
    orders: tuple[AnyOrder, ...] = ()
    wait_s: Annotated[NonNegative, Field(le=MOST_WAIT_S)] = 0.0
    watch: StrictBool = False


class Answer(Record):
    """What an agent answers.

    Attributes
    ----------
    incarnation : str
        Drawn anew whenever the agent starts, and whenever another controller comes.
    clock_s : float
        Its CLOCK_BOOTTIME as it answered.
    until_s : float
        Until when its jobs may run, by the same clock.
    done : int
        The number of the last order that it has carried out.
    news : tuple of News
        What is not known to have been seen.
    beyond : tuple of Part, optional
        What it keeps beyond the parts of the ``Attach`` that was among the orders.
    facts : Facts or None
        Where the request did not name this incarnation.
    progress, usage, libraries
        By run (an item for each rank of the part), by device, by run; as of a ``NodePool``.
    """

    version: Literal[2] = 2
    incarnation: Name
    clock_s: NonNegative
    until_s: NonNegative
    done: Number0
    news: tuple[News, ...] = ()
    beyond: tuple[NodePart, ...] | None = None
    facts: Facts | None = None
    progress: Mapping[str, tuple[Progress | None, ...]] = {}
    usage: Mapping[str, Usage] = {}
    libraries: Mapping[str, str] = {}

    @property
    def failed(self) -> bool:
        """Whether it tells of a rank that has failed."""
        return any(_failed(one.event) for one in self.news)

    def excused(self, reason: str) -> Answer:
        """Return the answer with ranks that have failed told as gone for a reason."""
        return self.model_copy(update={"news": tuple(_excused(one, reason) for one in self.news)})


def _failed(event: AnyEvent | Prepared) -> bool:
    return isinstance(event, RankEnded) and event.status != 0


def _excused(news: News, reason: str) -> News:
    event = news.event
    if not (isinstance(event, RankEnded) and _failed(event)):
        return news
    return News(
        number=news.number,
        event=RankGone(at_s=event.at_s, run=event.run, rank=event.rank, reason=reason),
    )


_M = TypeVar("_M", bound=Record)


def read_message(kind: type[_M], text: str) -> _M:
    """Return a message from its JSON.

    Raises
    ------
    InputError
        One line: it is no message, of another version, or breaks a rule.
    """
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise input_error(kind, error.errors(include_url=False)) from None
