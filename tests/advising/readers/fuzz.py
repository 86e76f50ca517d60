"""Random damage to files: a reader refuses it in one line or reads what is left."""

from __future__ import annotations

import random

from dovetail.advising.reader import read_usage
from dovetail.advising.usage import UsageRecords
from dovetail.instances.errors import InputError


def damaged(content, numbers):
    """Return a content with a cut, other bytes, or lines taken out, twice or exchanged."""
    data = bytearray(content)
    lines = content.splitlines(keepends=True)
    match numbers.randrange(5):
        case 0:
            return bytes(data[: numbers.randrange(len(data) + 1)])
        case 1:
            for _ in range(numbers.randint(1, 5)):
                data[numbers.randrange(len(data))] = numbers.randrange(256)
        case 2:
            at = numbers.randrange(len(data))
            del data[at : at + numbers.randint(1, 20)]
        case 3:
            at = numbers.randrange(len(data))
            data[at:at] = numbers.choice([b"\n", b",", b'"', b"-1", b"1e400", b"[", b"\0", b"nan"])
        case _:
            numbers.shuffle(lines)
            return b"".join(lines[: numbers.randrange(len(lines) + 1)])
    return bytes(data)


def read_damaged(tmp_path, form, files, rounds=60):
    """Read damaged files of a form; only an `InputError` may be raised, and some are refused."""
    numbers = random.Random(form)
    refused = []
    for name, content in files.items():
        path = tmp_path / name
        for _ in range(rounds):
            path.write_bytes(damaged(content, numbers))
            try:
                assert isinstance(read_usage(str(path), form), UsageRecords)
            except InputError as error:
                refused.append(str(error).removeprefix(str(path)))
    assert refused
    assert all(text.startswith(": ") and "\n" not in text for text in refused)
