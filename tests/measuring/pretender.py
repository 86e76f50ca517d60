"""A worker that pretends to compute on a GPU: it attaches to MPS as CUDA would, and counts.

There is no GPU and no CUDA: its client side is that of ``tests/executor/mps/client.py``, and
the SMs it claims to see follow from its cap as they were published for an H200.
"""

import json
import os
import shutil
import signal
import socket
import sys
import threading
import time

LOCK = threading.Lock()
CAMPAIGN = socket.socket(socket.AF_UNIX)


def tell(event, **facts):
    with LOCK:
        CAMPAIGN.sendall(json.dumps({"event": event, **facts}).encode() + b"\n")


def attached():
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(os.path.join(os.environ["CUDA_MPS_PIPE_DIRECTORY"], "control"))
    except OSError:
        return False
    stream = connection.makefile("rw")
    stream.write(json.dumps({"client": os.getpid()}) + "\n")
    stream.flush()
    if stream.readline().strip() != "attached":
        fail("807")
    threading.Thread(target=listen, args=(stream, connection), daemon=True).start()
    return True


def listen(stream, connection):
    for word in stream:
        fail(word.strip())


def fail(word):
    tell("failed", why="error", text=f"CUDA error {word}")
    os._exit(1)


def work(running):
    while True:
        running.wait()
        time.sleep(0.01)
        if running.is_set():
            tell("steps", at=time.monotonic(), n=1, busy_s=0.01)


def main():
    CAMPAIGN.connect(sys.argv[sys.argv.index("--socket") + 1])
    if "deaf" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    share = float(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", 100))
    sms = max(8, 2 * int(132 * share / 200))
    if "uncapped" in sys.argv:
        sms = 132
    print("variables", sorted(name for name in os.environ if "CUDA" in name), file=sys.stderr)
    tell(
        "ready",
        mps=attached(),
        sms=sms,
        cublas="130100",
        family="pretended",
        batch_size=4,
        memory_mib=100.0,
        pid=os.getpid(),
    )
    running = threading.Event()
    threading.Thread(target=work, args=(running,), daemon=True).start()
    for line in CAMPAIGN.makefile():
        asked = json.loads(line)
        command = asked["do"]
        if command == "profile":
            shutil.copy(sys.argv[sys.argv.index("trace") + 1], asked["trace"])
            tell("profiled", iterations=4, cost_s=1.5)
            continue
        if command == "quit" and "deaf" not in sys.argv:
            return
        if command == "run":
            running.set()
        else:
            running.clear()
            tell("stopped", memory_mib=120.0)
    while "deaf" in sys.argv:
        time.sleep(1)


main()
