"""Rules of a simulated world."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from dovetail.instances.errors import InputError


@dataclass(frozen=True)
class Options:
    """The rules of a simulated world.

    Attributes
    ----------
    round_s : float
        Decisions are made at multiples of this many seconds; 0 = whenever something happens.
    restart_s : float
        Seconds without progress at the start of a job that ran before (checkpoint and restore).
    across_nodes, across_racks : float
        Divisor (>= 1) of the speed of a gang that spans nodes, and a further one if it spans racks;
        all nodes without a rack form one rack.
    node_mtbf_s : float
        Mean seconds between failures of a node; infinite = none fails.
    repair_s : float
        Seconds for which a failed node is down.
    checkpoint_s : float
        Seconds of work between the checkpoints that a failure falls back to.
    saves_at_stop : bool
        Whether a job that a policy stops writes a checkpoint then; if not, it falls back to its
        last one, too.
    observe_s : float
        Seconds after which the slowdown of jobs that run together is known as a measurement.
    estimate_error : float
        Standard deviation of the natural logarithm of believed work over true work; 0 = exact.
    hosts_known : bool
        Whether policies know the resources of hosts and the demands of workloads on them; jobs on
        one node slow each other through the host in either case.
    seed : int
        Seed of failures and of the errors of estimates.

    Raises
    ------
    InputError
        If a value is out of range.
    """

    round_s: float = 0.0
    restart_s: float = 60.0
    across_nodes: float = 1.0
    across_racks: float = 1.0
    node_mtbf_s: float = math.inf
    repair_s: float = 3600.0
    checkpoint_s: float = 1800.0
    saves_at_stop: bool = True
    observe_s: float = 60.0
    estimate_error: float = 0.0
    hosts_known: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"across_nodes": 1.0, "across_racks": 1.0}
        above = ("node_mtbf_s", "repair_s", "checkpoint_s")
        for field in fields(self):
            value = getattr(self, field.name)
            low = least.get(field.name, 0.0)
            if field.name in above and not value > 0:
                raise InputError(f"must be > 0, got {value}", field.name)
            if not value >= low or (math.isinf(value) and field.name != "node_mtbf_s"):
                raise InputError(f"must be a finite number >= {low:g}, got {value}", field.name)
