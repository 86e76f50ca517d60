"""What ``dovetail agent`` does: keep the jobs of this node for a service elsewhere."""

from __future__ import annotations

import logging
import os
from argparse import Namespace
from pathlib import Path

from dovetail.executor.live.nodes.finding import refuse_open
from dovetail.executor.live.nodes.hosting import require_driver
from dovetail.executor.live.nodes.serving import read_token, serve
from dovetail.live.places import default_directory


def agent(options: Namespace) -> int:
    """Run an agent until it is told to end; its jobs run on until their lease lapses."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    directory = Path(os.path.abspath(options.directory or default_directory() / "agent"))
    if os.geteuid() == 0 and not options.insecure:
        refuse_open(options.listen[1], "--listen")
    token = read_token(Path(options.token_file))
    require_driver(options.pool)
    serve(directory, options.pool, options.listen, token, options.address, options.keep)
    return 0
