"""The devices of a pool as the service knows them; changes are written to the journal first."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.executor.jobs import events
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.pools.pool import NodePool
from dovetail.instances._record import listed, shown
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Assumed, Cluster


class Devices:
    """The devices of a pool that the service knows; jobs are placed only on these.

    A pool may change its devices at any time. A change becomes an event (``news``) and takes effect
    with ``take_up``, once the event is durable, so that journal and service know the same devices.

    Parameters
    ----------
    pool : NodePool
        The pool.
    max_jobs_per_gpu : int, optional
        Number of jobs that may share a device; by default the pool's number.
    uncapped : bool
        Whether jobs may share without caps on an estimate, whatever the pool says.
    assumed : Assumed, optional
        Slowdowns that are declared for jobs without caps; by default those of the pool's cluster.

    Attributes
    ----------
    cluster : Cluster
        The known devices.
    models : mapping of str to str
        The model of each, by its id; ``take_up`` changes this object in place.
    model_names : tuple of str
        The different models.
    """

    def __init__(
        self,
        pool: NodePool,
        max_jobs_per_gpu: int | None = None,
        uncapped: bool = False,
        assumed: Assumed | None = None,
    ) -> None:
        self._pool = pool
        rules = {
            "max_jobs_per_gpu": max_jobs_per_gpu,
            "uncapped": uncapped or None,
            "assumed": assumed,
        }
        self._rules = {name: rule for name, rule in rules.items() if rule is not None}
        self._seen = pool.cluster()
        self._offered = self._seen.model_copy(update=self._rules)
        self.models: dict[str, str] = {}
        self.take_up()

    def news(self, at_s: float) -> list[AnyEvent]:
        """Return the event of a change since the last call, if any."""
        cluster = self._pool.cluster()
        if cluster is self._seen:
            return []
        self._seen, before = cluster, self._offered
        self._offered = cluster.model_copy(update=self._rules)
        if self._offered == before:
            return []
        return [events.DevicesChanged(at_s=at_s, gpus=tuple(_models(self._offered)))]

    def take_up(self) -> None:
        """Use the devices of the last event from now on."""
        self.cluster = self._offered
        self.models.clear()
        self.models.update(_models(self.cluster))
        self.model_names = tuple(dict.fromkeys(self.models.values()))

    def node_of(self, gpu: str) -> str | None:
        """Return the node of a device; None if the pool no longer has it."""
        nodes = self.cluster.nodes
        return next((node.id for node in nodes for one in node.devices if one.id == gpu), None)

    @property
    def offered_models(self) -> set[str]:
        """The models of the devices of the last event."""
        return set(_models(self._offered).values())

    def named(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the devices with these names, or of nodes with these names.

        Raises
        ------
        InputError
            If there is none of a name.
        """
        nodes = self.cluster.nodes
        of_name = {node.id: tuple(gpu.id for gpu in node.devices) for node in nodes}
        of_name.update((gpu, (gpu,)) for gpus in [*of_name.values()] for gpu in gpus)
        for k, name in enumerate(names):
            if name not in of_name:
                rule = f"must be one of {listed(list(of_name))}, got {shown(name)}"
                raise InputError(rule, f"gpus[{k}]")
        return tuple(dict.fromkeys(gpu for name in names for gpu in of_name[name]))


def _models(cluster: Cluster) -> dict[str, str]:
    return {gpu.id: gpu.model for node in cluster.nodes for gpu in node.devices}
