"""Write the reference from the code.

    python docs/generate.py            write the generated pages and tables of docs/reference
    python docs/generate.py --check    name the pages that are out of date (exit status 1)

Types, limits and defaults come from the records, the options of commands from their declarations,
the options of policies from their classes, metrics from their descriptions, the HTTP API from its
OpenAPI description, the Python API from its docstrings. The meaning of each field of a record is in
``meanings.py``; the generator fails on a field without a meaning, a meaning without a field, and an
option of a policy that its docstring does not describe.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import re
import sys
from collections.abc import Mapping, Sequence, Set
from inspect import getdoc
from pathlib import Path
from typing import Any, get_type_hints

from meanings import FIELDS, RULES
from pydantic import TypeAdapter
from python_api import python_page

from dovetail.cli.commands import commands as all_commands
from dovetail.cluster.options import RayPlan, SlurmPlan
from dovetail.executor.jobs.specs import JobSpec
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live import views
from dovetail.executor.simulation.metrics import METRICS
from dovetail.instances import instance as instances
from dovetail.instances import plan as plans
from dovetail.instances._record import Record
from dovetail.instances.datasets import _rows, records
from dovetail.instances.metrics import Metrics
from dovetail.instances.slowdowns.entry import SlowdownEntry
from dovetail.live.http import faults, requests
from dovetail.live.http.metric_declarations import DECLARED
from dovetail.measuring import campaign, results, workloads
from dovetail.solver.policies import policy_class, policy_names
from dovetail.toolkit.commands import Argument, Command, leaves

REFERENCE = Path(__file__).parent / "reference"

FORMATS = """\
# Formats

Written by `docs/generate.py` from the records in `instances/`; do not edit by hand.

Dovetail reads an *instance* (the problem of one round) and writes a *plan* (its answer), as JSON
or YAML, packed if the name ends in `.gz`. `-` is standard input or output. YAML is read by the core
schema of version 1.2: `yes` is a text and `1.1e9` a number. A field that is not listed here is
refused with its path and the nearest name, a value outside its limits with the rule. Fields at
their default may be left out. A file has at most 512 MiB unpacked, a JSON or YAML file at most
16,000,000 values, keys and brackets, a table or a trace at most 2,000,000 lines.

JSON Schemas: [instance]({schemas}/dovetail-instance-1.schema.json),
[plan]({schemas}/dovetail-plan-1.schema.json). [Constraints and
objectives](constraints-and-objectives.md) defines what the numbers mean for a plan; the
[tutorial](../tutorials/plan.md) writes a first file.

Sizes are in MiB, times in seconds, powers in watts. A *number* is finite. A slowdown below 0.001 is
refused as a mistake of units. Names have 1 to 200 characters on one line and are not all blank,
without control characters, characters of no width, or characters that change the direction of
writing.
"""

CLI = """\
# Commands

Written by `docs/generate.py` from the declarations of commands; do not edit by hand.

| exit status | meaning |
|--:|---|
| 0 | done |
| 1 | checked and found wrong, no valid plan, or a job that did not finish; also an internal error |
| 2 | bad input or usage: one line on standard error |
| 3 | `doctor`: jobs can share GPUs, but without SM shares; `measure`: time is up, more is left |
| 130 | interrupted (Ctrl-C); `plan` has printed and written its best plan so far |

Every command takes `--json` for JSON and `-h` for help. Where a file is read, `-` is
standard input; where one is written, `-` is standard output. Files ending in `.gz` are packed and
unpacked on the way, and a file appears whole or not at all. `DOVETAIL_DEBUG=1` shows where an
internal error came from.

How to use them: [plan from a file](../howto/plan-from-a-file.md),
[importing data](../howto/import-data.md), [data sets](datasets.md),
[solvers](../explanation/solvers.md), [live mode](../howto/serve.md).
"""

CAMPAIGNS = """\
# Campaigns

Written by `docs/generate.py` from the records in `measuring/`; do not edit by hand.

The file that [`dovetail measure`](../howto/measure.md) reads, in YAML or JSON, and the results that
it stores: `sqlite3 repository.db "SELECT content FROM record WHERE kind = 'result'"` prints one of
them in each line.
"""

HTTP = """\
# HTTP API

Written by `docs/generate.py` from the service's OpenAPI description; do not edit by hand.

A live service answers on its socket and, with `serve --listen HOST:PORT --tokens FILE`, over TCP:

```sh
curl --unix-socket DIRECTORY/api.sock http://dovetail/v1/jobs
curl -H "Authorization: Bearer $TOKEN" http://HOST:PORT/v1/jobs
```

`dovetail serve` prints the path of the socket.
[Live mode](../explanation/live.md#who-may-do-what) says who may do what. Bodies are JSON.
`GET /openapi.json` describes the same for programs. `GET /metrics` has
[figures for Prometheus](service-metrics.md), `GET /metrics/dashboard` and `GET /metrics/alerts`
what [shows them](../howto/monitor.md).
Times of day are seconds since the epoch.

An error is a [Fault](#fault):

| status | kind | meaning |
|--:|---|---|
"""

MOST_REPEATED = 3
"""Commands with more arguments in common refer to the first of these commands."""

REQUESTS: tuple[type[Record], ...] = (
    requests.Submissions,
    requests.Accepted,
    requests.DrainRequest,
    requests.Explained,
    faults.Fault,
)
VIEWS: tuple[type[Record], ...] = (
    views.JobView,
    views.StepView,
    views.ServiceView,
    views.DeviceView,
    views.PartView,
    views.EvidenceView,
)


POLICY_PAGE = """\
# Policies

Written by `docs/generate.py` from the classes of the policies; do not edit by hand.

A policy is named `NAME` or `NAME:OPTION=VALUE,OPTION=VALUE` in `--policy`, `--policies` and
`policy_named`. Infinite is written `inf`. [Policies](../explanation/policies.md) compares them.
"""


def main() -> int:
    """Write or check the files; 1 if one is out of date."""
    options = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    options.add_argument("--check", action="store_true", help="write nothing")
    check = options.parse_args().check
    stale = 0
    for name, text in pages().items():
        path = REFERENCE / name
        if check:
            current = path.exists() and path.read_text(encoding="utf-8") == text
            if not current:
                print(f"{path} is out of date: run python docs/generate.py")
                stale = 1
        else:
            path.write_text(text, encoding="utf-8")
    return stale


def pages() -> dict[str, str]:
    """Return the text of every generated file by its name."""
    return {
        "formats.md": formats_page(),
        "campaigns.md": campaigns_page(),
        "cli.md": cli_page(),
        "policies.md": policies_page(),
        "http.md": http_page(),
        "python.md": python_page(),
        **{page: _filled(page) for page in FILLED},
    }


FILLED = ("datasets.md", "metrics.md", "service-metrics.md", "workloads.md")
"""Pages written by hand, but for tables in them."""

_PLACE = re.compile(r"(<!-- generated: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _filled(page: str) -> str:
    """Return a hand-written page with the tables that are generated into it."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    return _PLACE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", text)


def profile_columns() -> str:
    """Return the table of the columns of profiles."""
    kind = records.SoloProfile
    meanings = _meanings(kind, nested={"metrics", "metrics_variance"})
    rows = []
    for column in _rows.PROFILE_COLUMNS:
        field, _, name = column.path.partition(".")
        if field == "metrics":
            rows.append(_row(Metrics, name, FIELDS[Metrics][name]))
        elif not name:
            rows.append(_row(kind, field, meanings[field]))
    rows.append("| `METRIC_variance` | number >= 0 | absent | Variance of a metric over time. |")
    return "\n".join(["| column | type | default | meaning |", "|---|---|---|---|", *rows])


def pair_columns() -> str:
    """Return the table of the columns of pairs."""
    kind = records.Measurement
    properties = TypeAdapter(kind).json_schema()["properties"]
    status = "`ok` or empty; any other (`failed`): they did not run together."
    rows = []
    for field, meaning in _meanings(kind).items():
        names = [one.name for one in _rows.pair_columns(2) if one.path.partition("[")[0] == field]
        needed = "required" if names[0] in _rows.PAIR_REQUIRED else "absent"
        listed = ", ".join(f"`{name}`" for name in names) + ", ..." * (len(names) > 1)
        typed = _type(properties[field]).removeprefix("list of ").removesuffix(", 2 or more")
        typed = typed.removesuffix(" or null")
        rows.append(f"| {listed} | {typed} | {needed} | {meaning} |")
    rows.append(f"| `status` | text | ok | {status} |")
    return "\n".join(["| column | type | default | meaning |", "|---|---|---|---|", *rows])


def metrics_table() -> str:
    """Return the table of the metrics; metrics that differ only in their statistic share a row."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, metric in METRICS.items():
        alike.setdefault(metric[1:], []).append(f"`{name}`")
    rows = [
        f"| {', '.join(names)} | {unit} | {better} | {meaning} |"
        for (unit, better, meaning), names in alike.items()
    ]
    return "\n".join(["| name | unit | better | meaning |", "|---|---|---|---|", *rows])


def service_metrics_table() -> str:
    """Return the table of the metrics that the service offers to Prometheus."""
    rows = []
    for name, one in DECLARED.items():
        labels = ", ".join(f"`{label}`" for label in one.labels)
        rows.append(f"| `{name}` | {one.kind} | {one.unit} | {labels} | {one.meaning} |")
    head = ["| name | type | unit | labels | meaning |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def waits_table() -> str:
    """Return the table of what waiting jobs lack."""
    rows = [f"| `{wait.value}` | {wait.meaning} |" for wait in views.Wait]
    return "\n".join(["| reason | it waits for |", "|---|---|", *rows])


def workloads_table() -> str:
    """Return the table of the built-in workloads, from their docstrings: PyTorch may be missing."""
    rows = []
    for name, module in sorted(workloads.MODULES.items()):
        source = workloads.WORKER.with_name(f"{module}.py").read_text(encoding="utf-8")
        texts = [
            ast.get_docstring(each) or ""
            for each in ast.parse(source).body
            if isinstance(each, ast.FunctionDef) and each.name == name
        ]
        does, bounded, size = (" ".join(part.split()) for part in texts[0].split("\n\n"))
        launches = f"{workloads.LAUNCHES[name]:,}" if name in workloads.LAUNCHES else "not counted"
        size = size.removeprefix("Full size: ")
        rows.append(f"| `{name}` | {does} {bounded} | {size} | {launches} |")
    head = ["| name | does | full size, memory | kernels an iteration |", "|---|---|---|--:|"]
    return "\n".join([*head, *rows])


TABLES = {
    "profiles": profile_columns,
    "pairs": pair_columns,
    "metrics": metrics_table,
    "service metrics": service_metrics_table,
    "waits": waits_table,
    "workloads": workloads_table,
}


def formats_page() -> str:
    """Return the reference of both formats."""
    parts = [FORMATS.format(schemas="../../instances/schemas")]
    parts_of = (Metrics, SlowdownEntry)
    for title, module, others in (("Instance", instances, parts_of), ("Plan", plans, ())):
        stamp = getattr(module, f"{title.upper()}_FORMAT")
        parts.append(f'## {title}: `"format": "{stamp}"`\n')
        records = [k for k in FIELDS if k.__module__ == module.__name__ or k in others]
        parts += map(_record, records)
    return "\n".join(parts)


def campaigns_page() -> str:
    """Return the reference of campaigns and their results."""
    parts = [CAMPAIGNS]
    for title, module in (("The file", campaign), ("Results", results)):
        parts.append(f"## {title}\n")
        parts += [_record(kind) for kind in FIELDS if kind.__module__ == module.__name__]
    return "\n".join(parts)


def _record(kind: type) -> str:
    meanings = _meanings(kind)
    rows = [_row(kind, name, meaning) for name, meaning in meanings.items()]
    rules = [f"- {rule}" for rule in RULES.get(kind, ())]
    table = ["| field | type | default | meaning |", "|---|---|---|---|", *rows]
    text = _plain(getdoc(kind) or "")
    return "\n".join([f"### {kind.__name__}\n", text, "", *table, "", *rules, *[""] * bool(rules)])


def _row(kind: type, name: str, meaning: str) -> str:
    typed = _type(TypeAdapter(kind).json_schema()["properties"][name])
    return f"| `{name}` | {typed} | {_default(kind, name)} | {meaning} |"


def _meanings(kind: type, nested: Set[str] = frozenset()) -> dict[str, str]:
    """Return the line of every field, in the order of the record, except the nested records."""
    known = {
        name: text
        for base in reversed(kind.__mro__)
        for name, text in FIELDS.get(base, {}).items()  # type: ignore[call-overload]
    }
    fields = [name for name in _defaults(kind) if name not in nested]
    if set(known) != set(fields):
        wrong = ", ".join(sorted(set(known) ^ set(fields)))
        raise SystemExit(f"docs/generate.py: FIELDS and {kind.__name__} differ in: {wrong}")
    return {name: known[name] for name in fields}


def _plain(text: str) -> str:
    """Return a docstring as Markdown."""
    return text.replace("``", "`")


_REQUIRED: Any = object()


def _defaults(kind: type) -> dict[str, Any]:
    """Return the fields of a record or a data class with their defaults."""
    if issubclass(kind, Record):
        return {
            name: _REQUIRED if field.is_required() else field.get_default(call_default_factory=True)
            for name, field in kind.model_fields.items()
        }
    made: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        factory = field.default_factory
        missing = _REQUIRED if factory is dataclasses.MISSING else factory()
        made[field.name] = missing if field.default is dataclasses.MISSING else field.default
    return made


def _default(kind: type, name: str) -> str:
    value = _defaults(kind)[name]
    if value is _REQUIRED or name == "format":
        return "required"
    match value:
        case None:
            return "absent"
        case bool():
            return str(value).lower()
        case () | "":
            return "empty"
        case Record():
            return "its defaults"
        case Mapping() if not value:
            return "empty"
        case float():
            return f"{value:g}"
        case _:
            return f"{value}"


def _type(schema: Mapping[str, Any]) -> str:
    """Return a JSON Schema as a short phrase."""
    if "anyOf" in schema:
        kinds = [kind for kind in schema["anyOf"] if kind.get("type") != "null"]
        return " or ".join(map(_type, kinds)) if len(kinds) == 1 else _several(schema)
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    return _KINDS[schema["type"]](schema)


def _several(schema: Mapping[str, Any]) -> str:
    return " or ".join("null" if k.get("type") == "null" else _type(k) for k in schema["anyOf"])


def _limits(schema: Mapping[str, Any]) -> str:
    most = schema.get("maximum")
    upper = "" if most is None or most >= 1_000_000 else f"{most:g}"
    if "exclusiveMinimum" in schema:
        return f" > {schema['exclusiveMinimum']:g}"
    if "minimum" in schema and upper:
        return f", {schema['minimum']:g} to {upper}"
    return f" >= {schema['minimum']:g}" if "minimum" in schema else ""


def _list(schema: Mapping[str, Any]) -> str:
    if "prefixItems" in schema:
        first = schema["prefixItems"][0]
        return f"list of {len(schema['prefixItems'])}: {_item(first)}"
    least = f", {schema['minItems']} or more" if schema.get("minItems") else ""
    return f"list of {_item(schema['items'])}{least}"


def _item(schema: Mapping[str, Any]) -> str:
    return _several(schema) if "anyOf" in schema else _type(schema)


def _mapping(schema: Mapping[str, Any]) -> str:
    values = schema.get("additionalProperties") or next(iter(schema["patternProperties"].values()))
    key = "share" if schema.get("propertyNames", {}).get("pattern", "").startswith("^(") else "name"
    if "patternProperties" in schema:
        key = "share" if any("100" in k for k in schema["patternProperties"]) else "name"
    return f"mapping of {key} to {_type(values)}"


_KINDS = {
    "string": lambda schema: "text",
    "boolean": lambda schema: "true or false",
    "integer": lambda schema: f"whole number{_limits(schema)}",
    "number": lambda schema: f"number{_limits(schema)}",
    "array": _list,
    "object": _mapping,
}


def cli_page() -> str:
    """Return the reference of the command line."""
    commands = list(leaves(all_commands()))
    parts = [_command(*each, commands[:k]) for k, each in enumerate(commands)]
    pools = [
        _pool("ray:HOST:PORT,NAME=VALUE,...", RayPlan),
        _pool("slurm:NAME=VALUE,NAME=VALUE,...", SlurmPlan),
    ]
    return "\n".join([CLI, *parts, *pools])


def _pool(form: str, plan: type[RayPlan | SlurmPlan]) -> str:
    """Return the section of a pool over nodes; its options are named without their units."""
    meanings = _texts_in(getdoc(plan) or "")
    rows = []
    for field in plan._fields:
        if field != "address":
            name = "..." if field == "options" else field.removesuffix("_s")
            default = _given(plan._field_defaults.get(field))
            rows.append(f"| `{name}` | {_plain(meanings[field])} | {default} |")
    kind = form.partition(":")[0]
    text = f"`dovetail serve --pool {form}`, explained in the [how-to](../howto/{kind}.md)."
    table = ["| option | meaning | default |", "|---|---|---|", *rows, ""]
    return "\n".join([f"## The pool {kind}\n", text, "", *table])


def _given(value: object) -> str:
    """Return a value as it is written in an option of a pool."""
    match value:
        case None | ():
            return ""
        case bool():
            return f"`{'yes' if value else 'no'}`"
        case (least, most):
            return f"`{least}..{most}`"
        case float():
            return f"`{value:g}`"
        case _:
            return f"`{value}`"


def _command(path: str, command: Command, before: Sequence[tuple[str, Command]]) -> str:
    """Return the section of a command; arguments shared with an earlier one are only named."""
    model, common = "", set[str]()
    for other, one in before:
        same = set(map(_meant, one.all_arguments)) & set(map(_meant, command.all_arguments))
        if len(same) > max(len(common), MOST_REPEATED):
            model, common = other, same
    own = [each for each in command.all_arguments if _meant(each) not in common]
    rows = [f"| {_names(each)} | {each.text} | {_standing(each)} |" for each in own]
    table = ["| argument | meaning | default |", "|---|---|---|", *rows, ""] if rows else []
    known = ", ".join(_names(each) for each in command.all_arguments if _meant(each) in common)
    anchor = f"dovetail-{model.replace(' ', '-')}"
    also = [f"As in [dovetail {model}](#{anchor}): {known}.", ""] if known else []
    block = ["```text", command.usage or _usage(path, command), "```"]
    return "\n".join([f"## dovetail {path}\n", command.text, "", *block, "", *table, *also])


def _meant(one: Argument) -> str:
    """Return the names and text of an argument, ignoring its default."""
    return f"{_names(one)} {one.text}"


def _usage(path: str, command: Command) -> str:
    shapes = {"?": "[{}]", "+": "{} ...", "*": "[{} ...]"}
    placed = [one for one in command.all_arguments if not one.names]
    places = [shapes.get(one.number, "{}").format(one.value) for one in placed]
    needed = [f"{one.names[0]} {one.value}" for one in command.all_arguments if one.required]
    free = any(one.names and not one.required for one in command.all_arguments)
    return " ".join(["dovetail", path, *places, *needed, *["[OPTION ...]"] * free])


def _names(one: Argument) -> str:
    return ", ".join(f"`{f'{name} {one.value}'.strip()}`" for name in one.names or ("",))


def _standing(one: Argument) -> str:
    if one.required or (not one.names and one.number in ("", "+")):
        return "required"
    return f"`{one.default}`" if one.default else ""


def http_page() -> str:
    """Return the reference of the HTTP API."""
    # Needs the extra live.
    from dovetail.live.http.application import MEANINGS, application

    openapi = application(None).openapi()
    faults = [f"| {status} | {kind} | {meaning} |" for status, kind, meaning in MEANINGS]
    parts = [HTTP + "\n".join(faults) + "\n", "## Requests\n"]
    for path, methods in openapi["paths"].items():
        if path.startswith("/v1/"):
            parts += [
                _request(method.upper(), path, described) for method, described in methods.items()
            ]
    parts += [
        "## Records\n",
        _submission(),
        _changes(),
        *map(_record, (*REQUESTS, *VIEWS)),
        _states(),
    ]
    return "\n".join(parts)


def _request(method: str, path: str, described: Mapping[str, Any]) -> str:
    asked = [
        f"- `{each['name']}` ({each['in']}): {_asked(each['schema'])}"
        for each in described.get("parameters", ())
        if each["in"] != "path"
    ]
    body = _content(described.get("requestBody", {}))
    takes = [f"- body: {body}"] if body else []
    answer = next(found for status, found in described["responses"].items() if status < "300")
    gives = [f"- answer: {_content(answer) or 'JSON'}"]
    lines = [f"### {method} {path}\n", described["description"], "", *asked, *takes, *gives, ""]
    return "\n".join(lines)


def _asked(schema: Mapping[str, Any]) -> str:
    default = schema.get("default")
    shown = "" if default in (None, "") else f"; default: `{str(default).lower()}`"
    return f"{_type(schema)}{shown}"


def _content(described: Mapping[str, Any]) -> str:
    """Return the type of a body or an answer."""
    for kind, content in described.get("content", {}).items():
        if kind.startswith("text/"):
            return "plain text"
        schema = content["schema"]
        if schema.get("type") == "array" or "$ref" in schema:
            return _type(schema)
    return ""


def _submission() -> str:
    """Return the fields of a submitted job: a ``JobSpec`` without its owner."""
    meanings = _texts_in(getdoc(JobSpec) or "")
    shared = {"gsla": "gsla", "weight": "weight", "priority": "priority"}
    instance = FIELDS[instances.Job]
    own = {"array": "A job for each of these numbers, its `index`."}
    schema = requests.SUBMISSION.model_json_schema()["properties"]
    rows = [
        f"| `{name}` | {_type(schema[name])} | {_default(requests.SUBMISSION, name)} | "
        f"{_plain(own.get(name) or (instance if name in shared else meanings)[name])} |"
        for name in requests.SUBMISSION.model_fields
    ]
    table = ["| field | type | default | meaning |", "|---|---|---|---|", *rows]
    return "\n".join(["### Submission\n", getdoc(requests.SUBMISSION) or "", "", *table, ""])


def _changes() -> str:
    """Return the fields of a waiting job that can be changed."""
    listed = ", ".join(f"`{name}`" for name in requests.CHANGES.model_fields)
    meaning = getdoc(requests.CHANGES) or ""
    return f"### Changes\n\n{meaning} As in a [submission](#submission): {listed}.\n"


def _states() -> str:
    listed = ", ".join(f"`{state.value}`" for state in JobState)
    return (
        f"### JobState\n\nOne of {listed}: [live mode](../explanation/live.md#the-life-of-a-job).\n"
    )


def policies_page() -> str:
    """Return the reference of the policies and their options."""
    names: dict[type, list[str]] = {}
    for name in policy_names():
        names.setdefault(policy_class(name), []).append(name)
    return "\n".join(
        [POLICY_PAGE, *(_policy(", ".join(same), kind) for kind, same in names.items())]
    )


def _policy(name: str, kind: type[Any]) -> str:
    text = getdoc(kind) or ""
    meanings = _texts_in(text)
    types = get_type_hints(kind)
    rows = []
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        if field.name not in meanings:
            raise SystemExit(f"docs/generate.py: policy {name} does not describe {field.name}")
        default = str(field.default).lower() if types[field.name] is bool else field.default
        typed = _OPTION_TYPES[types[field.name]]
        rows.append(f"| `{field.name}` | {typed} | `{default}` | {_plain(meanings[field.name])} |")
    head = ["| option | type | default | meaning |", "|---|---|---|---|"] if rows else []
    lead = _plain(text.partition("\n\n")[0].replace("\n", " "))
    return "\n".join([f"## {name}\n", lead, "", *head, *(rows or ["No options."]), ""])


def _texts_in(docstring: str) -> dict[str, str]:
    """Return the text of a docstring on each parameter or attribute."""
    found = re.finditer(r"^([\w, ]+) : .+\n((?: {4}.*(?:\n|$))+)", docstring, re.M)
    return {name: " ".join(each[2].split()) for each in found for name in each[1].split(", ")}


_OPTION_TYPES = {int: "whole number", float: "number", str: "text", bool: "true or false"}


if __name__ == "__main__":
    sys.exit(main())
