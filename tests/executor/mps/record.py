"""Records the answers of a real control program: ``python tests/executor/mps/record.py``.

It prints a transcript as JSON. Without a GPU no server can start, so only the daemon's side is in
it; say so, as ``main`` does, whenever one is kept.
"""

from __future__ import annotations

import datetime
import glob
import json
import os
import subprocess
import tempfile

PROGRAM = "nvidia-cuda-mps-control"
GPU = "GPU-11111111-2222-3333-4444-555555555555"

STEPS = [
    ([], "get_server_list"),
    ([], "quit"),
    (["-S", "-d"], ""),
    (["-d"], ""),
    (["-d"], ""),
    *(
        ([], command)
        for command in (
            "help",
            "version",
            "lspart",
            "get_server_list",
            "get_client_list",
            "get_client_list 123",
            "get_server_status 123",
            "get_device_client_list",
            "get_device_client_list 123",
            "ps",
            "ps -p 123",
            "terminate_client 123 456",
            "shutdown_server 123",
            "shutdown_server 123 -f",
            "start_server",
            "set_default_active_thread_percentage 40",
            "set_default_active_thread_percentage 12.5",
            "set_default_active_thread_percentage 0",
            "set_default_active_thread_percentage x",
            "get_default_active_thread_percentage",
            "set_active_thread_percentage 123 40",
            "get_active_thread_percentage 123",
            "get_default_device_pinned_mem_limit 0",
            "set_default_device_pinned_mem_limit 0 3G",
            "get_default_device_pinned_mem_limit 0",
            "set_default_device_pinned_mem_limit 0 40960M",
            "get_default_device_pinned_mem_limit 0",
            "set_default_client_priority 1",
            "get_default_client_priority",
            "quit -t 5",
            "get_server_list",
        )
    ),
]


def say(program, directory, options, command):
    """Run the control program once and return its result."""
    done = subprocess.run(
        [program, *options],
        input=f"{command}\n",
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={
            "PATH": os.environ["PATH"],
            "CUDA_VISIBLE_DEVICES": GPU,
            "CUDA_MPS_PIPE_DIRECTORY": str(directory),
            "CUDA_MPS_LOG_DIRECTORY": str(directory),
        },
    )
    return {
        "options": list(options),
        "command": command,
        "exit": done.returncode,
        "out": done.stdout,
        "err": done.stderr,
    }


def main():
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as directory:
        steps = [say(PROGRAM, directory, *step) for step in STEPS]
    package = subprocess.run(
        ["dpkg-query", "-W", "nvidia-cuda-mps"], capture_output=True, text=True, check=False
    ).stdout.split()
    gpus = glob.glob("/dev/nvidia[0-9]*")
    return {
        "program": PROGRAM,
        "package": " ".join(package) or "unknown",
        "recorded": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "gpu": ", ".join(gpus) or "none: no GPU and no driver were present, so no server could run",
        "steps": steps,
    }


if __name__ == "__main__":
    print(json.dumps(main(), indent=1))
