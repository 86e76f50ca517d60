"""A job that is a client of MPS and launches kernels on a made-up GPU of its own until it may end.

``python -m tests.isolation.made_up_job TASKS PAUSE_S`` prints an iteration for each
launch, and ``wrong`` if a kernel leaves other memory than it has to. A file ``finish-NAME`` in its
folder, for its ``JOB_NAME``, ends it.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import sys
import time

from tests.isolation.made_up_client import Client


def attach() -> None:
    """Become a client of the stand-in of MPS, as CUDA would; kept as long as the process lives."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.path.join(os.environ["CUDA_MPS_PIPE_DIRECTORY"], "control"))
    stream = connection.makefile("rw")
    stream.write(json.dumps({"client": os.getpid()}) + "\n")
    stream.flush()
    globals()["kept"] = connection, stream


def main() -> None:
    with open(sys.argv[1], "rb") as file:
        tasks = pickle.load(file)
    attach()
    client = Client(1)
    functions = [client.load(task.image) for task in tasks]
    k = 0
    while not os.path.exists(f"finish-{os.environ['JOB_NAME']}"):
        at = k % len(tasks)
        if not client.run(functions[at], tasks[at]):
            print("wrong", tasks[at].name, flush=True)
        k += 1
        print("iteration", k, flush=True)
        time.sleep(float(sys.argv[2]))
    print("forms", sorted(set(client.gpu.launches)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
