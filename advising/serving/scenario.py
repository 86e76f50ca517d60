"""The file of the serving planner, ``dovetail-serving/1``: GPUs, models, loads and promises."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from dovetail.advising.cards import card_of
from dovetail.advising.serving.server_results import result_data
from dovetail.instances._record import (
    Count,
    Fraction,
    FrozenDict,
    FrozenMapping,
    Name,
    NonNegative,
    Positive,
    Record,
    Share,
    field_path,
    listed,
    rule_broken,
    shown,
)
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.files import read_data
from dovetail.instances.reading.contents import opened

SERVING_FORMAT: Final = "dovetail-serving/1"

LOADS: Final = ("requests_per_s", "concurrency")
"""The two kinds of load: requests that come by themselves (an open loop), or clients that each send
a request when the last one is answered (a closed loop)."""

ACTIVITY: Final = ("gpu_util", "mem_util", "sm_active", "dram_active", "tensor_active")
"""The activity of the GPU that a run may have, as fractions."""

TAILS: Final = ("ttft", "tpot", "itl", "e2el")
"""Time to the first token, time of each token after it, time between tokens, and the whole request;
the names of vLLM."""


def _tail(name: str) -> str:
    if name not in TAILS:
        raise rule_broken("", f"must be one of {listed(TAILS)}, got {shown(name)}")
    return name


Tails = Annotated[
    Mapping[Annotated[str, Field(strict=True), AfterValidator(_tail)], Positive],
    Field(min_length=1),
    AfterValidator(FrozenDict),
]
"""99th percentiles in milliseconds."""

Clients = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=1, le=1e9)]
"""A number of clients of a closed loop."""

_START: Final = 65_536
_STAMP: Final = re.compile(rb"""format["']?\s*:\s*["']?dovetail-serving/""")


class ServingGpu(Record):
    """A GPU model that may be used; all servers are on one model."""

    model: Name
    memory_mib: Positive | None = None
    count: Count | None = None
    cost_per_hour: Positive | None = None

    @property
    def card_mib(self) -> float:
        """Its memory, by the name of the model if it is not given; NaN if neither tells."""
        return self.memory_mib or card_of(self.model, float("nan"), {})


class AloneRun(Record):
    """A benchmark of a server that has a GPU to itself."""

    gpu: Name | None = None
    requests_per_s: Positive | None = None
    concurrency: Clients | None = None
    p99_ms: Tails
    gpu_util: Fraction | None = None
    mem_util: Fraction | None = None
    sm_active: Fraction | None = None
    dram_active: Fraction | None = None
    tensor_active: Fraction | None = None

    @model_validator(mode="after")
    def _one_load(self) -> Self:
        load_of(self)
        return self


class ServedModel(Record):
    """A model, the load of all its servers together, and what it promises to each request.

    A model that is ``like`` another one, such as a fine-tuned one, takes all fields but ``serve``
    from it that it does not have, and measurements of the other at the same kind of load count for
    it.
    """

    elsewhere = MappingProxyType(
        {
            "memory_percent": "give gpu_memory_utilization, a fraction of the card",
            "slo": "give p99_ms: {ttft: ..., tpot: ...}",
            "qps": "give requests_per_s",
            "request_rate": "give requests_per_s",
            "max_concurrency": "give concurrency",
            "tensor_parallel_size": "a server on several GPUs cannot be planned yet",
        }
    )

    requests_per_s: Positive | None = None
    concurrency: Clients | None = None
    p99_ms: Tails
    memory_mib: Positive | None = None
    gpu_memory_utilization: Annotated[Positive, Field(le=1)] | None = None
    startup_mib: NonNegative = 0.0
    serve: Name | None = None
    like: Name | None = None
    runs: tuple[AloneRun, ...] = ()

    @model_validator(mode="after")
    def _one_load(self) -> Self:
        load_of(self)
        return self

    @model_validator(mode="after")
    def _one_memory(self) -> Self:
        if (self.memory_mib is None) == (self.gpu_memory_utilization is None):
            got = "neither" if self.memory_mib is None else "both"
            rule = f"must have either memory_mib or gpu_memory_utilization, got {got}"
            raise rule_broken("", rule)
        return self

    @model_validator(mode="after")
    def _runs_tell_the_promised(self) -> Self:
        for k, run in enumerate(self.runs):
            if load_of(run)[0] != self.load[0]:
                rule = f"must be {self.load[0]}, as the load of the model"
                raise rule_broken(f"runs[{k}]", f"{rule}, got {load_of(run)[0]}")
            promised = dict.fromkeys(self.p99_ms, "the model")
            require_tails(run.p99_ms, promised, f"runs[{k}].p99_ms")
        return self

    @property
    def load(self) -> tuple[str, float]:
        """The kind of its load, one of ``LOADS``, and the load."""
        return load_of(self)

    def needs_mib(self, card_mib: float) -> float:
        """Return the memory of a server on a card."""
        return self.memory_mib or (self.gpu_memory_utilization or 0.0) * card_mib


class TogetherRun(Record):
    """A benchmark of servers that share a GPU at these SM shares, all under load at once.

    ``loads`` are in the unit of each model's load.
    """

    models: Annotated[tuple[Name, ...], Field(min_length=2, max_length=4)]
    gpu: Name | None = None
    share: tuple[Share, ...]
    loads: tuple[Positive, ...]
    p99_ms: tuple[Tails, ...]

    @model_validator(mode="after")
    def _one_item_each(self) -> Self:
        for name in ("share", "loads", "p99_ms"):
            count = len(getattr(self, name))
            if count != len(self.models):
                raise rule_broken(name, f"must have {len(self.models)} items, got {count}")
        if sum(self.share) > 100:
            raise rule_broken("share", f"must sum to at most 100, got {sum(self.share)}")
        return self


class Serving(Record):
    """What is to be served, and on what."""

    format: Literal["dovetail-serving/1"] = SERVING_FORMAT
    name: Name
    gpus: Annotated[tuple[ServingGpu, ...], Field(min_length=1, max_length=20)]
    max_servers_per_gpu: Annotated[Count, Field(le=4)] = 2
    models: Annotated[FrozenMapping[Name, ServedModel], Field(min_length=1, max_length=500)]
    together: tuple[TogetherRun, ...] = ()

    @model_validator(mode="after")
    def _gpus_differ(self) -> Self:
        names = [gpu.model for gpu in self.gpus]
        costs = [gpu.cost_per_hour for gpu in self.gpus]
        if None in costs and any(costs):
            rule = "this field is required if another GPU model has it"
            raise rule_broken(f"gpus[{costs.index(None)}].cost_per_hour", rule)
        for g, gpu in enumerate(self.gpus):
            if gpu.model in names[:g]:
                rule = f"must be listed once, got {shown(gpu.model)} again"
                raise rule_broken(f"gpus[{g}].model", rule)
            if gpu.card_mib != gpu.card_mib:
                rule = f"this field is required: the memory of {shown(gpu.model)} is unknown"
                raise rule_broken(f"gpus[{g}].memory_mib", rule)
        return self

    @model_validator(mode="after")
    def _servers_can_be_numbered(self) -> Self:
        for name in self.models:
            if "#" in name:
                raise rule_broken("models", f"a name must not contain #, got {shown(name)}")
        return self

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        for path, gpu in self._named_gpus():
            if gpu is None and len(self.gpus) > 1:
                raise rule_broken(path, "this field is required if there are several gpus")
            if gpu is not None and all(gpu != known.model for known in self.gpus):
                known = listed(each.model for each in self.gpus)
                raise rule_broken(path, f"must be one of gpus ({known}), got {shown(gpu)}")
        promised = self._promised()
        for t, run in enumerate(self.together):
            for m, name in enumerate(run.models):
                if name not in self.models:
                    rule = f"must be one of models ({listed(self.models)}), got {shown(name)}"
                    raise rule_broken(f"together[{t}].models[{m}]", rule)
                if self.models[name].load[0] == LOADS[1] and run.loads[m] < 1:
                    rule = f"must be >= 1, a number of clients, got {run.loads[m]:g}"
                    raise rule_broken(f"together[{t}].loads[{m}]", rule)
                require_tails(
                    run.p99_ms[m], promised[self.kind(name)], f"together[{t}].p99_ms[{m}]"
                )
        return self

    def _promised(self) -> dict[str, dict[str, str]]:
        """Return, by the model whose measurements count, which model promises each latency."""
        found: dict[str, dict[str, str]] = {}
        for name, model in self.models.items():
            found.setdefault(self.kind(name), {}).update(dict.fromkeys(model.p99_ms, name))
        return found

    def _named_gpus(self) -> Iterator[tuple[str, str | None]]:
        """Yield the path and the GPU of every run."""
        for name, model in self.models.items():
            for k, run in enumerate(model.runs):
                yield f"{field_path('models', name)}.runs[{k}].gpu", run.gpu
        for t, together in enumerate(self.together):
            yield f"together[{t}].gpu", together.gpu

    def kind(self, name: str) -> str:
        """Return the model whose measurements count for a model: one with the same kind of load."""
        like = self.models[name].like or name
        return like if self.models[like].load[0] == self.models[name].load[0] else name

    def on(self, gpu: str, run: AloneRun | TogetherRun) -> bool:
        """Return whether a run was on a GPU model."""
        return run.gpu is None or run.gpu == gpu


def load_of(record: AloneRun | ServedModel) -> tuple[str, float]:
    """Return the kind of the load of a record, and the load; refuse none and both."""
    given = [(kind, getattr(record, kind)) for kind in LOADS if getattr(record, kind) is not None]
    if len(given) != 1:
        got = "both" if given else "neither"
        raise rule_broken("", f"must have either {LOADS[0]} or {LOADS[1]}, got {got}")
    return given[0]


def require_tails(given: Mapping[str, float], promised: Mapping[str, str], path: str) -> None:
    """Refuse a run that does not tell all latencies, each promised by a model."""
    for tail, name in promised.items():
        if tail not in given:
            raise rule_broken(f"{path}.{tail}", f"this field is required: {name} promises it")


def is_serving(path: str) -> bool:
    """Return whether a file is of the format of the serving planner."""
    if path == "-":
        return False
    with opened(path) as file:
        return _STAMP.search(file.read(_START)) is not None


def read_serving(path: str) -> Serving:
    """Read a file of the serving planner; the files of results that it names are read, too.

    Raises
    ------
    InputError
        When a file cannot be read or breaks a rule.
    """
    data, source = read_data(path), source_name(path)
    if not isinstance(data, dict) or data.get("format") != SERVING_FORMAT:
        raise InputError(f"must be {SERVING_FORMAT!r}", "format", source)
    folder = Path(path).parent
    models = data.get("models")
    if isinstance(models, dict):
        models = _with_likes(_with_results(models, folder, source), source)
    return Serving.from_data({**data, "models": models}, source)


def _with_likes(models: dict[str, Any], source: str) -> dict[str, Any]:
    """Return the models, each with what it takes from the one that it is like."""
    found = {}
    for name, model in models.items():
        like = model.get("like") if isinstance(model, dict) else None
        if like is not None:
            other = models.get(like) if isinstance(like, str) else None
            if not isinstance(other, dict) or "like" in other:
                rule = f"must be a model that is like no other one, got {shown(like)}"
                path = f"{field_path('models', str(name))}.like"
                raise InputError(rule, path, source)
            model = {**_without_rivals(other, model), **model}
        found[name] = model
    return found


_RIVALS: Final = (LOADS, ("memory_mib", "gpu_memory_utilization"))
"""Fields of which a model has one."""


def _without_rivals(other: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of another model, less its weights and rivals of what the model has."""
    gone = {
        field for rivals in _RIVALS if any(name in model for name in rivals) for field in rivals
    } | {"serve"}
    return {name: value for name, value in other.items() if name not in gone}


def _with_results(models: dict[str, Any], folder: Path, source: str) -> dict[str, Any]:
    """Return the models with ``runs`` that name files of results replaced by what these hold."""
    found = {}
    for name, model in models.items():
        runs = model.get("runs") if isinstance(model, dict) else None
        if isinstance(runs, list):
            path = f"{field_path('models', str(name))}.runs"
            made = [_with_result(run, folder, f"{path}[{k}]", source) for k, run in enumerate(runs)]
            model = {**model, "runs": made}
        found[name] = model
    return found


def _with_result(run: object, folder: Path, path: str, source: str) -> object:
    if not isinstance(run, dict) or "file" not in run:
        return run
    name, given = run["file"], {key: value for key, value in run.items() if key != "file"}
    if not isinstance(name, str) or not name:
        raise InputError(f"must be the name of a file, got {shown(name)}", f"{path}.file", source)
    return {**result_data(folder / name), **given}
