"""A process that meets MPS as a CUDA process would, with the stand-in: no GPU, no CUDA.

It prints a line for everything that it learns: ``attached``, CUDA's error number, or ``no MPS``,
and as CUDA does, it goes on without MPS where no daemon answers. An argument ``parent`` makes it
attach in a child, as a job that is a shell script does.
"""

import json
import os
import signal
import socket
import subprocess
import sys


def attach():
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(os.path.join(os.environ["CUDA_MPS_PIPE_DIRECTORY"], "control"))
    except OSError:
        print("no MPS", flush=True)
        signal.pause()
    with connection.makefile("rw") as stream:
        told = {"client": os.getpid(), "partition": os.environ.get("CUDA_MPS_SM_PARTITION")}
        stream.write(json.dumps(told) + "\n")
        stream.flush()
        for word in stream:
            print(word.strip(), flush=True)
            if word.strip() == "fault" and "leave" in sys.argv:
                return
        # An error is for the process's whole life.
        signal.pause()


if sys.argv[1:] == ["parent"]:
    sys.exit(subprocess.call([sys.executable, "-IS", __file__]))
attach()
