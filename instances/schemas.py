"""The formats as JSON Schema, generated from the records.

``python -m dovetail.instances.schemas [DIR]`` writes them to ``DIR``; without it, to the folder in
the package. A schema describes each field, not the rules across fields (for example, that a
running job's GPUs are in the cluster): those are checked on reading.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dovetail.instances._record import Record
from dovetail.instances.instance import Instance
from dovetail.instances.plan import Plan
from dovetail.instances.reading.contents import write_text

SHIPPED = Path(__file__).parent / "schemas"
FILES: dict[str, type[Record]] = {
    "dovetail-instance-1.schema.json": Instance,
    "dovetail-plan-1.schema.json": Plan,
}


def schema_text(record: type[Record]) -> str:
    """Return the JSON Schema (draft 2020-12) of a file that holds the record."""
    schema = record.model_json_schema()
    # Only a file must state its format; a record built in Python has it by default.
    schema["required"] = ["format", *schema["required"]]
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(draft | _tidied(schema), indent=2) + "\n"


def write_schemas(folder: Path) -> None:
    """Write the schema of each format to ``folder``."""
    for name, record in FILES.items():
        write_text(folder / name, schema_text(record))


def _tidied(schema: dict[str, object]) -> dict[str, object]:
    """Refuse keys that match no pattern, and drop the titles that repeat names."""
    closed = {"additionalProperties": False} if "patternProperties" in schema else {}
    tidied = {
        name: _tidied(inner) if isinstance(inner, dict) else inner
        for name, inner in schema.items()
        if name != "title" or isinstance(inner, dict)
    }
    return tidied | closed


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1]) if sys.argv[1:] else SHIPPED)
