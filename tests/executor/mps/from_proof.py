"""Make a transcript for the stand-in from a proof: ``python from_proof.py proof.json NAME``.

It writes ``transcripts/NAME.json``, which the contract tests then compare with the stand-in. A
proof of a stand-in is refused, as it would be compared with itself.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

TRANSCRIPTS = Path(__file__).with_name("transcripts")


def convert(source, folder, name):
    """Write the transcript of a proof into a folder, and return its path."""
    proof = json.loads(Path(source).read_text())
    if fake := proof["machine"].get("stand_in"):
        raise SystemExit(f"{source} is of a stand-in: {fake}")
    path = Path(folder) / f"{name}.json"
    path.write_text(json.dumps(transcript(proof), indent=1) + "\n")
    return path


def transcript(proof):
    """Return the commands of a proof as the transcripts of the stand-in have them.

    ``steps`` are runs of the control program as they were, with the pids of that time.
    ``answers`` are the same as patterns, with ``{server}`` and ``{client}`` in place of pids, as in
    ``documented.json``; of equal ones there is one. What was said before a server was known is not
    among them.
    """
    machine = proof["machine"]
    source = f"{machine['control']}, driver {machine['driver']}, {machine['gpu_model']}"
    spoken = [(check, one) for check in proof["checks"] for one in check["commands"]]
    answers = {}
    for check, one in spoken:
        if one["exit"] == 0 and "server" in one["pids"] and one["command"]:
            key = named(one["command"], one["pids"]), named(one["out"], one["pids"], escaped)
            answers.setdefault(key, f"{source}, check {check['id']}, {check['date'][:10]}")
    return {
        "program": "nvidia-cuda-mps-control",
        "package": source,
        "recorded": max((check["date"] for check in proof["checks"]), default="")[:10],
        "gpu": machine.get("stand_in", machine["gpu_model"]),
        "steps": [
            {key: one[key] for key in ("options", "command", "exit", "out", "err")}
            for _, one in spoken
        ],
        "answers": [
            {"command": command, "pattern": pattern, "source": origin}
            for (command, pattern), origin in answers.items()
        ],
    }


def named(text, pids, otherwise=str):
    """Return a text with names in braces in place of pids; the rest goes through ``otherwise``."""
    names = {str(pid): f"{{{name}}}" for name, pid in pids.items()}
    return "".join(names.get(part) or otherwise(part) for part in re.split(r"(\d+)", text))


def escaped(text):
    """Return a text as a regular expression that ``str.format`` does not change."""
    return re.escape(text).replace("\\\n", "\\n").replace("{", "{{").replace("}", "}}")


if __name__ == "__main__":
    print(convert(sys.argv[1], TRANSCRIPTS, sys.argv[2]))
