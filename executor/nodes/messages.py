"""The messages between the controller of many nodes and the agent of each, as JSON.

The controller asks (``Exchange``) and the agent answers (``Answer``). Each side keeps its state
under a version that grows with every change, and sends all of it as long as the other does not have
the newest version: the controller, what is to become of each run of the node (``Want``); the agent,
how its ranks and devices are (``State``). So a message may be lost, come twice, or be overtaken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeVar

from pydantic import AfterValidator, Field, StrictBool, StrictInt, ValidationError

from dovetail.executor.jobs.events import RankEvent
from dovetail.executor.pools.parts import Part, Rendezvous
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
from dovetail.instances.errors import DovetailError
from dovetail.instances.instance import Cluster

MOST_WAIT_S: Final = 30.0
"""The longest that an agent is asked to wait for news before it answers."""

ANSWER_S: Final = 3.0
"""Seconds that an agent has to answer, and those that it was asked to wait in addition."""

Number0 = Annotated[StrictInt, Field(ge=0)]


class NoAnswerError(DovetailError):
    """An agent has not answered."""


class FencedError(NoAnswerError):
    """An agent has another controller."""


def _of_its_run(part: Part) -> Part:
    if list(part.ranks) != sorted(set(part.ranks)) or not part.ranks:
        raise rule_broken("ranks", "must be one rank or more, each once, in order")
    if not 0 <= part.ranks[0] <= part.ranks[-1] < len(part.run.seats):
        raise rule_broken("ranks", f"must be ranks of {part.run.id}")
    return part


NodePart = Annotated[Part, AfterValidator(_of_its_run)]
"""The ranks of a run that one node keeps; their numbers are the whole run's."""


class Want(Record):
    """What is to become of the ranks of a run on one node.

    Attributes
    ----------
    part : Part
        The ranks. The part that has rank 0 of a gang decides on the rendezvous, and has none here.
    phase : str
        ``keep``: take up what has been started. ``launch``: start all ranks, or none. ``prepare``:
        bring all to the start barrier. ``commit``: start what is there, and refuse the rest.
        ``abort``: refuse what has not been started. ``stop``: end all, and refuse what has not been
        started.
    reason : str
        Of an abort.
    grace_s : float
        Seconds between SIGTERM and SIGKILL of a stop.
    paused : bool or None
        Whether all processes are to be stopped where they are; None: they never were.
    """

    part: NodePart
    phase: Literal["keep", "launch", "prepare", "commit", "abort", "stop"] = "keep"
    reason: str = ""
    grace_s: NonNegative = 0.0
    paused: StrictBool | None = None


class State(Record):
    """How the ranks and devices of a node are.

    Attributes
    ----------
    ranks : tuple of event
        What repeats how every rank is that the agent knows of; of others there is no trace.
    prepared : mapping of str to Rendezvous or None
        The runs whose part is at the start barrier, and where their gang meets.
    beyond : tuple of Part
        What is kept and not wanted.
    sick : mapping of str to str
        Devices that are sick, and why.
    """

    ranks: tuple[Annotated[RankEvent, Field(discriminator="kind")], ...] = ()
    prepared: Mapping[str, Rendezvous | None] = {}
    beyond: tuple[NodePart, ...] = ()
    sick: Mapping[str, str] = {}


class Facts(Record):
    """What an agent is: sent once an incarnation.

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
    incarnation : str or None
        Of the agent, as it last answered; ``wants`` and ``seen`` are for that one only.
    renew_s : float or None
        The agent's clock, as it last answered: its jobs may run until ``lease_s`` later.
    version : int
        Of the wants.
    wants : tuple of Want or None
        None where the agent is known to have this version, or where there is none yet.
    keep_others : bool
        Whether runs that are not wanted run on: the controller still asks which there are.
    seen : int
        The version of the agent's state that the controller has.
    wait_s : float
        For how long the agent may wait for news before it answers.
    watch : bool
        Whether progress, usage and libraries are asked for.
    """

    protocol: Literal[3] = 3
    home: Name
    epoch: Count
    incarnation: Name | None = None
    renew_s: NonNegative | None = None
    lease_s: NonNegative
    version: Number0 = 0
    wants: tuple[Want, ...] | None = None
    keep_others: StrictBool = False
    seen: Number0 = 0
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
    wanted : int
        The version of the wants that it has; 0: none.
    version : int
        Of its state.
    state : State or None
        None where the controller has this version.
    facts : Facts or None
        Where the request did not name this incarnation.
    progress, usage, libraries
        By run (an item for each rank of the run), by device, by run; as of a ``NodePool``.
    """

    protocol: Literal[3] = 3
    incarnation: Name
    clock_s: NonNegative
    until_s: NonNegative
    wanted: Number0 = 0
    version: Number0 = 0
    state: State | None = None
    facts: Facts | None = None
    progress: Mapping[str, tuple[Progress | None, ...]] = {}
    usage: Mapping[str, Usage] = {}
    libraries: Mapping[str, str] = {}


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
