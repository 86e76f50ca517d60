"""The reference of the Python API, from the docstrings of its names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import Parameter, getdoc, signature
from typing import Any, Final

import dovetail
from dovetail import predictors, solver
from dovetail.solver import policies
from dovetail.solver.policies.draft import Draft

_HEAD = """\
# Python API

Written by `docs/generate.py` from the docstrings; do not edit by hand.

The names that callers use; [call from Python](../howto/call-from-python.md) shows them at work, and
[formats](formats.md) has the fields of instances, jobs and plans, which are those of the files.
Errors are subclasses of `dovetail.DovetailError` with a text of one line. The API of the live
service is [another](http.md).
"""

_SECTIONS: Final[dict[str, dict[str, Any]]] = {
    "Build an instance": {
        "Instance.build": dovetail.Instance.build,
        "InstanceBuilder": dovetail.InstanceBuilder,
        "InstanceBuilder.add_node": dovetail.InstanceBuilder.add_node,
        "InstanceBuilder.add_workload": dovetail.InstanceBuilder.add_workload,
        "InstanceBuilder.add_job": dovetail.InstanceBuilder.add_job,
        "InstanceBuilder.add_slowdown": dovetail.InstanceBuilder.add_slowdown,
        "InstanceBuilder.add_slowdowns": dovetail.InstanceBuilder.add_slowdowns,
        "InstanceBuilder.instance": dovetail.InstanceBuilder.instance,
    },
    "Instances": {
        "Instance": dovetail.Instance,
        "Instance.from_data": dovetail.Instance.from_data,
        "Instance.to_data": dovetail.Instance.to_data,
        "Instance.to_frame": dovetail.Instance.to_frame,
        "Instance.replace": dovetail.Instance.replace,
        "Instance.with_jobs": dovetail.Instance.with_jobs,
        "Instance.after": dovetail.Instance.after,
        "read_instance": dovetail.read_instance,
        "write_instance": dovetail.write_instance,
    },
    "Solve": {
        "solve": dovetail.solve,
        "Result": dovetail.Result,
        "JobValues": dovetail.JobValues,
    },
    "Plans": {
        "Plan": dovetail.Plan,
        "Plan.to_frame": dovetail.Plan.to_frame,
        "Plan.leaving": dovetail.Plan.leaving,
        "read_plan": dovetail.read_plan,
        "write_plan": dovetail.write_plan,
        "check": dovetail.check,
        "CheckReport": dovetail.CheckReport,
    },
    "Pairs from arrays": {
        "solver.match_pairs": solver.match_pairs,
        "solver.Matching": solver.Matching,
        "solver.certificate_errors": solver.certificate_errors,
        "solver.best_splits": solver.best_splits,
        "solver.BestSplits": solver.BestSplits,
    },
    "Predict": {
        "predict": dovetail.predict,
        "predictors.load_model": predictors.load_model,
        "predictors.Predictor": predictors.Predictor,
        "predictors.Predictor.lacks": predictors.Predictor.lacks,
        "predictors.Predictor.predict": predictors.Predictor.predict,
        "predictors.Prediction": predictors.Prediction,
    },
    "Policies": {
        "solver.policies.Policy": policies.Policy,
        "solver.policies.State": policies.State,
        "solver.policies.Job": policies.Job,
        "solver.policies.Decision": policies.Decision,
        "solver.policies.Start": policies.Start,
        "solver.policies.draft.Draft": Draft,
        **{
            f"solver.policies.draft.Draft.{name}": getattr(Draft, name)
            for name in ("start", "stop", "has_room", "slowdowns", "idle_gpus", "decision")
        },
    },
    "Errors": {
        name: getattr(dovetail, name)
        for name in ("DovetailError", "InputError", "ArgumentError", "UnsupportedError")
    },
}

_TITLE = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.M)
_ENTRY = re.compile(r"^(\S.*)\n((?: {4}.*(?:\n|$)|\n(?= {4}))*)", re.M)


def python_page() -> str:
    """Return the page."""
    parts = [_HEAD]
    for title, names in _SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [_described(f"dovetail.{name}", what) for name, what in names.items()]
    return "\n".join(parts).rstrip() + "\n"


def _described(name: str, what: Any) -> str:  # noqa: ANN401 - anything that has a docstring
    """Return the section of a class or function: its call and its docstring."""
    text = getdoc(what)
    if not text:
        raise SystemExit(f"docs/generate.py: {name} has no docstring")
    lead, *parts = _TITLE.split(text)
    lines = [f"### {name.removeprefix('dovetail.')}\n"]
    if not isinstance(what, type):
        lines.append(f"```text\n{name}({_arguments(what)})\n```\n")
    lines += [_prose(lead), ""]
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        lines += [f"**{title}**\n", *_SHOWN.get(title, _entries)(body), ""]
    return "\n".join(lines)


def _arguments(function: Any) -> str:  # noqa: ANN401
    """Return the arguments with their defaults; their types are in the docstring."""
    plain = signature(function)
    taken = [
        each.replace(annotation=Parameter.empty)
        for name, each in plain.parameters.items()
        if name not in ("self", "cls")
    ]
    shown = plain.replace(parameters=taken, return_annotation=Parameter.empty)
    return re.sub(r"<class '(.+?)'>", r"\1", str(shown)[1:-1])


def _entries(body: str) -> Iterator[str]:
    """Yield an item for each parameter, attribute, value or error."""
    for head, text in _ENTRY.findall(body):
        name, separates, kind = head.partition(" : ")
        meaning = _prose(" ".join(text.split()))
        given = f"`{name}`" + (f" ({_prose(kind)})" if separates else "")
        yield f"- {given}: {meaning}".rstrip()


def _examples(body: str) -> Iterator[str]:
    lead, prompt, code = body.partition(">>> ")
    if lead.strip():
        yield f"{_prose(lead)}\n"
    yield f"```pycon\n{prompt}{code.strip()}\n```"


def _text(body: str) -> Iterator[str]:
    yield _prose(body)


def _prose(text: str) -> str:
    """Return text of a docstring as Markdown."""
    return text.strip().replace("::\n", ":\n").replace("``", "`")


_SHOWN = {"Examples": _examples, "Notes": _text, "References": _text}
