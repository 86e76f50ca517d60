"""``dovetail logs``: what a job writes."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from dovetail.live.choosing import JOB
from dovetail.live.printing import write_json
from dovetail.toolkit.commands import Command, option, whole

if TYPE_CHECKING:
    from dovetail.executor.live.views import JobView

LOGS: Final = Command(
    "logs",
    "Print what a job writes.",
    "dovetail.live.logs:logs",
    (
        JOB,
        option("-f, --follow", "continue until the job is over"),
        option("-n, --lines N", "begin with the last N lines", whole(0)),
        option("--raw", "also pass control characters to a terminal"),
        option("--run K", "output of its K-th start (default: the last)", whole(1)),
        option("--rank K", "output of this process", whole(0), "0"),
    ),
)


_COMMANDING: Final = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
    r"\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)
"""Control characters except tab and line ends; characters that are invisible or turn the text."""


def logs(options: Namespace) -> int:
    """Print the output of a rank of a job."""
    from dovetail.live.client import Client

    with Client() as client:
        chunks = client.log(options.job, options.rank, options.lines, options.follow, options.run)
        if options.json:
            return _as_json(options, chunks)
        if sys.stdout.isatty() and not options.raw:
            chunks = _harmless(chunks)
        empty = True
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
            empty = empty and not chunk
        if empty:
            print(f"dovetail: {_no_output(client.job(options.job))}", file=sys.stderr)
    return 0


def _as_json(options: Namespace, chunks: Iterable[bytes]) -> int:
    """Print all output as JSON; what may be missing is said in it, too."""
    from dovetail.live.client import IncompleteLogError

    text, missing = bytearray(), None
    try:
        for chunk in chunks:
            text += chunk
    except IncompleteLogError as error:
        missing = str(error)
    facts = {"job": options.job, "rank": options.rank, "text": text.decode(errors="replace")}
    write_json(facts if missing is None else {**facts, "missing": missing})
    return 0 if missing is None else 1


def _no_output(job: JobView) -> str:
    if job.ended_s is None or not job.runs or job.log:
        return f"{job.id} has written nothing"
    return f"{job.id} has no output: it wrote nothing, or the service has removed it since"


def _harmless(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield text in which characters that control a terminal or are invisible are escaped."""
    decoder = getincrementaldecoder("utf-8")("replace")
    for chunk in chunks:
        text = decoder.decode(chunk)
        yield _COMMANDING.sub(lambda one: ascii(one[0])[1:-1], text).encode()
