"""The messages between the controller of many nodes and the agent of each, as JSON.

The controller sends an ``AgentRequest``, and the agent returns an ``AgentAnswer``. Each side's
state has a version that grows with every change, and is sent as a whole until the other side has
the newest version: the controller's is the desired state of each run of the node (``Want``), the
agent's the state of its ranks and devices (``NodeState``). A message may therefore be lost,
repeated or overtaken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeVar

from pydantic import AfterValidator, Field, StrictBool, StrictInt, ValidationError

from dovetail.executor.jobs.events import RankEvent
from dovetail.executor.pools.pool import Progress, Usage
from dovetail.executor.pools.runs.files import Part, Rendezvous
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
"""The longest time that an agent may wait for news before it answers."""

ANSWER_S: Final = 3.0
"""Seconds that an agent has to answer, in addition to the time that it may wait for news."""

Number0 = Annotated[StrictInt, Field(ge=0)]


Method = Literal["exchange", "log"]
"""The calls of an agent (``Agent.call``)."""

Kind = Literal["answer", "fenced", "error"]
"""The kind of result from an agent: an answer, or a line with the reason for a failure."""


class AgentCallError(DovetailError):
    """An agent has not answered, or has refused a call."""


class FencedError(AgentCallError):
    """An agent obeys another controller."""


def _of_its_run(part: Part) -> Part:
    if list(part.ranks) != sorted(set(part.ranks)) or not part.ranks:
        raise rule_broken("ranks", "must be one rank or more, each once, in order")
    if not 0 <= part.ranks[0] <= part.ranks[-1] < len(part.run.seats):
        raise rule_broken("ranks", f"must be ranks of {part.run.id}")
    return part


NodePart = Annotated[Part, AfterValidator(_of_its_run)]
"""The ranks of a run on one node, numbered as in the whole run."""


class Want(Record):
    """The desired state of the ranks of a run on one node.

    Attributes
    ----------
    part : Part
        The ranks. The part with rank 0 of a gang has no rendezvous here, as its node chooses it.
    phase : str
        ``keep``: resume the ranks that have been started. ``launch``: start all ranks, or none.
        ``prepare``: bring all to the start barrier. ``commit``: start the ranks at the barrier, and
        refuse the others. ``abort``: refuse the ranks that have not been started. ``stop``: end
        all, and refuse the ranks that have not been started.
    reason : str
        Why an ``abort`` is wanted.
    grace_s : float
        Seconds between SIGTERM and SIGKILL of a ``stop``.
    paused : bool or None
        Whether all processes must be paused; None: they never were.
    """

    part: NodePart
    phase: Literal["keep", "launch", "prepare", "commit", "abort", "stop"] = "keep"
    reason: str = ""
    grace_s: NonNegative = 0.0
    paused: StrictBool | None = None


class NodeState(Record):
    """The state of the ranks and devices of a node.

    Attributes
    ----------
    ranks : tuple of event
        The events that lead to the state of every rank; a rank without events has left no trace.
    prepared : mapping of str to Rendezvous or None
        The rendezvous of every run whose part is at the start barrier.
    unwanted : tuple of Part
        The parts that the node has but no want names.
    sick : mapping of str to str
        The sick devices, each with the reason.
    isolation : mapping of str to str
        The runs that have lost their isolation here, each with the reason; it is empty for a run
        that has regained it, or that the agent has found and seen to be isolated.
    """

    ranks: tuple[Annotated[RankEvent, Field(discriminator="kind")], ...] = ()
    prepared: Mapping[str, Rendezvous | None] = {}
    unwanted: tuple[NodePart, ...] = ()
    sick: Mapping[str, str] = {}
    isolation: Mapping[str, str] = {}


class AgentFacts(Record):
    """The facts of an agent that do not change, sent once in an incarnation.

    Attributes
    ----------
    agent : str
        The id of its directory (``fence.identity``).
    pool, notice : str
        The ``name`` and ``notice`` of its pool (``NodePool``).
    cluster : Cluster
        Its devices.
    sharing : str or None
        Why two runs may not share a device here; None: they may.
    sharing_others : str or None
        The same for runs of different users.
    allowed : mapping of str to mapping of str to tuple of int
        By library and device model, the shares that programs with that library may have. The empty
        name is for libraries that are not listed.
    """

    agent: Name
    pool: Name
    notice: str
    cluster: Cluster
    sharing: str | None = None
    sharing_others: str | None = None
    allowed: Mapping[str, Mapping[str, tuple[Share, ...]]] = {}


class AgentRequest(Record):
    """A controller's request to an agent.

    Attributes
    ----------
    home, epoch : str, int
        The id of the controller's state directory, and the number of controller starts there. An
        agent refuses a lower epoch than the last, and another home while runs of the current one
        may be running.
    incarnation : str or None
        The agent's, from its last answer; ``wants`` and ``seen`` are for that incarnation only.
    renew_s : float or None
        The agent's clock, from its last answer: its jobs may run until ``lease_s`` later.
    version : int
        The version of the wants.
    wants : tuple of Want or None
        None if the agent has this version, or before the controller has resumed its runs.
    keep_others : bool
        Whether unwanted runs keep running, because the controller may not know all its runs yet.
    seen : int
        The version of the agent's state that the controller has.
    wait_s : float
        How long the agent may wait for news before it answers.
    watch : bool
        Whether the answer must include progress, usage and libraries.
    """

    protocol: Literal[5] = 5
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


class AgentAnswer(Record):
    """An agent's answer.

    Attributes
    ----------
    incarnation : str
        A random id, new whenever the agent starts or gets another controller.
    clock_s : float
        The agent's CLOCK_BOOTTIME when it answered.
    until_s : float
        The end of its jobs' lease by the same clock.
    wanted : int
        The version of the wants that it has; 0 if it has none.
    version : int
        The version of its state.
    state : NodeState or None
        None if the controller has this version.
    facts : AgentFacts or None
        None if the request named this incarnation.
    progress, usage, libraries
        By run (an item for each rank), by device, and by run, as returned by a ``NodePool``.
    """

    protocol: Literal[5] = 5
    incarnation: Name
    clock_s: NonNegative
    until_s: NonNegative
    wanted: Number0 = 0
    version: Number0 = 0
    state: NodeState | None = None
    facts: AgentFacts | None = None
    progress: Mapping[str, tuple[Progress | None, ...]] = {}
    usage: Mapping[str, Usage] = {}
    libraries: Mapping[str, str] = {}


_M = TypeVar("_M", bound=Record)


def read_message(kind: type[_M], text: str) -> _M:
    """Return a message from its JSON.

    Raises
    ------
    InputError
        When it is not such a message, has another protocol version, or breaks a rule.
    """
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise input_error(kind, error.errors(include_url=False)) from None
