"""Makes a transcript for the stand-in from a proof: ``python from_proof.py proof.json NAME``.

It writes ``transcripts/NAME.json``; the contract tests hold the stand-in to its answers from then
on. A proof of a stand-in is refused: it would be held to itself.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dovetail.executor.live.first_contact.records import read_proof
from dovetail.executor.live.first_contact.telling import transcript

TRANSCRIPTS = Path(__file__).with_name("transcripts")


def convert(source, folder, name):
    """Write the transcript of a proof into a folder, and return its path."""
    proof = read_proof(source)
    if proof.machine.stand_in:
        raise SystemExit(f"{source} is of a stand-in: {proof.machine.stand_in}")
    path = Path(folder) / f"{name}.json"
    path.write_text(json.dumps(transcript(proof), indent=1) + "\n")
    return path


if __name__ == "__main__":
    print(convert(sys.argv[1], TRANSCRIPTS, sys.argv[2]))
