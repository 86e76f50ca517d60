"""What policies see of live mode."""

from __future__ import annotations

from dovetail.executor.live.brain import HOLDING, QUEUED, Brain, LiveJob
from dovetail.executor.live.gate import device_trouble
from dovetail.instances.instance import Cluster, Instance, Workload
from dovetail.instances.slowdown_table import SlowdownTable
from dovetail.solver.policies import Job, State


class World:
    """Every workload runs alone."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def state(self, brain: Brain, now_s: float) -> State:
        """Return the state by now."""
        jobs = [j for j in brain.jobs.values() if j.state in QUEUED | HOLDING]
        names = {j.id: f"{j.spec.owner.name}/{j.spec.workload}" for j in jobs}
        cluster = self._cluster.model_dump(exclude_none=True)
        for node in cluster["nodes"]:
            devices = node.pop("gpus", None) or []
            node["gpus"] = devices
        workloads = {n: Workload(memory_mib=0.0) for n in names.values()}
        usable = [
            node.replace(gpus=(gpu,), gpu=None, gpu_count=None, id=gpu.id, rack=node.id)
            for node in self._cluster.nodes
            for gpu in node.devices
        ]
        instance = Instance(
            name="live",
            cluster=self._cluster.replace(nodes=tuple(usable)),
            workloads=workloads,
            jobs=(),
        )
        state = State(instance, SlowdownTable.of(instance), now_s)
        place = {gpu: k for k, gpu in enumerate(state.machines.gpu_ids)}
        for gpu, k in place.items():
            if device_trouble(brain, gpu):
                state.down.add(k)
                state.idle_count[k] = 0
        for live in jobs:
            self._enter(state, live, names[live.id], place)
        return state

    def _enter(self, state: State, live: LiveJob, name: str, place: dict[str, int]) -> None:
        number = int(live.id[1:])
        job = Job(
            number,
            live.id,
            state.names.index(name),
            live.spec.workers,
            live.spec.estimate_s or 3600.0,
            live.submitted_s,
            waiting_since_s=live.since_s,
        )
        if live.state in QUEUED:
            state.pending[number] = job
            return
        assert live.run is not None
        job.phase = "running"
        job.gpus = tuple(place[seat.gpu] for seat in live.run.seats if seat.gpu in place)
        job.rate, job.since_s, job.started_s = 1.0, live.since_s, live.since_s
        state.running[number] = job
        for gpu in job.gpus:
            if not state.residents[gpu] and state.machines.node[gpu] not in state.down:
                state.idle_count[state.machines.node[gpu]] -= 1
            state.residents[gpu].append(job)
