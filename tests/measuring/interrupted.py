"""A campaign that gets Ctrl-C while its first worker starts: in a process of its own.

A test's own process is no place for a real SIGINT: it may have ended the test already.
Prints how it ended and the workers' pids.
"""

import json
import signal
import sys
import threading
import time
from pathlib import Path

from dovetail.measuring.stand_ins import CpuDevice

from .programs import SPIN, a_campaign, sitting, worker_command, write


def main(folder):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    device = CpuDevice(folder / "pool")
    of = a_campaign(write(folder, spin=SPIN), {"measure": "solos"})
    pool, pids = device.submissions.pool, []
    report = pool._report

    def interrupted(event):
        if event.kind == "rank_started":
            pids.append(event.pid)
            # To the main thread, as Ctrl-C; the run supervisor's thread goes on.
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.2)
        report(event)

    pool._report = interrupted
    ended = "finished"
    try:
        with sitting(device, of, folder / "out", worker_command(of)) as now:
            now.runner.run()
    except KeyboardInterrupt:
        ended = "interrupted"
    device.close()
    print(json.dumps([ended, pids]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
