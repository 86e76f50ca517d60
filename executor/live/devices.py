"""The devices of a pool as the service knows them: those that join are journalled first."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.executor.jobs import events
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.pools.pool import NodePool
from dovetail.instances._record import listed, shown
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Cluster


class Devices:
    """What a service knows of its pool's devices; nothing is placed on any other.

    A pool may have other devices at any time. They are told as an event (``news``), and known from
    ``take_up`` on, once that is durable: so the journal and the service know the same.

    Parameters
    ----------
    pool : NodePool
        Whose devices they are.
    max_jobs_per_gpu : int, optional
        How many jobs may share a device; by default as many as the pool says.

    Attributes
    ----------
    cluster : Cluster
        The devices that are known.
    models : mapping of str to str
        The model of each, by its id.
    """

    def __init__(self, pool: NodePool, max_jobs_per_gpu: int | None = None) -> None:
        self._pool = pool
        self._most = max_jobs_per_gpu
        self._told = self._offered()
        self.take_up()

    def news(self, at_s: float) -> list[AnyEvent]:
        """Return that the pool has other devices than were told last, if so."""
        cluster = self._offered()
        if cluster == self._told:
            return []
        self._told = cluster
        return [events.DevicesChanged(at_s=at_s, gpus=tuple(_models(cluster)))]

    def _offered(self) -> Cluster:
        cluster = self._pool.cluster()
        return (
            cluster
            if self._most is None
            else cluster.model_copy(update={"max_jobs_per_gpu": self._most})
        )

    def take_up(self) -> None:
        """Know what was told last."""
        self.cluster, self.models = self._told, _models(self._told)

    @property
    def told_models(self) -> set[str]:
        """The models of the devices that were told last."""
        return set(_models(self._told).values())

    def named(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the devices of some names, each that of a device or of a node.

        Raises
        ------
        InputError
            When there is none of that name.
        """
        of_name = {node.id: tuple(g.id for g in node.devices) for node in self.cluster.nodes}
        of_name.update((gpu, (gpu,)) for gpu in self.models)
        for k, name in enumerate(names):
            if name not in of_name:
                rule = f"must be one of {listed(list(of_name))}, got {shown(name)}"
                raise InputError(rule, f"gpus[{k}]")
        return tuple(dict.fromkeys(gpu for name in names for gpu in of_name[name]))


def _models(cluster: Cluster) -> dict[str, str]:
    return {gpu.id: gpu.model for node in cluster.nodes for gpu in node.devices}
