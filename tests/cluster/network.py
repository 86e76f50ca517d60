"""A network on this machine, with a network namespace for every host and a bridge.

A host is a number; host 0 has the bridge, and host k the address ``10.77.0.(k + 1)``. The processes
in a host's namespace are the host: they can be cut off, frozen and killed together.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.executor.waiting import LIMIT_S

_ROOT = os.geteuid() == 0
_READY = b"ready\n"
_HOLD = "echo ready && exec sleep infinity"


class UnavailableError(Exception):
    """No network can be made on this machine."""


def address(host: int) -> str:
    """Return the address of a host."""
    return f"10.77.0.{host + 1}"


class Network:
    """Hosts that reach only each other; made by root, or in a user namespace."""

    def __init__(self) -> None:
        self._holders: list[subprocess.Popen[bytes]] = []
        unshare = ["unshare", "--net", *([] if _ROOT else ["--map-root-user"])]
        bridge = f"ip link add br0 type bridge && {_up('br0', 0)}"
        self._hold(*unshare, "sh", "-c", f"{bridge} && {_HOLD}")

    def add(self) -> int:
        """Add a host, and return its number."""
        host = len(self._holders)
        pid = self._hold(*self.inside(0, "unshare", "--net", "sh", "-c", _HOLD))
        veth = f"ip link add ve{host} type veth peer name eth0 netns {pid}"
        self._do(0, f"{veth} && ip link set ve{host} master br0 up")
        self._do(host, _up("eth0", host))
        return host

    def cut(self, host: int) -> None:
        """Cut the link of a host."""
        self._do(0, f"ip link set ve{host} down")

    def mend(self, host: int) -> None:
        """Restore the link of a host."""
        self._do(0, f"ip link set ve{host} up")

    def inside(self, host: int, *command: str) -> list[str]:
        """Return the command that runs a command on a host."""
        user = [] if _ROOT else ["--user", "--preserve-credentials"]
        target = str(self._holders[host].pid)
        return ["nsenter", "--target", target, "--net", *user, "--", *command]

    def run(self, host: int, *command: str) -> str:
        """Return the output of a command on a host."""
        done = subprocess.run(self.inside(host, *command), capture_output=True, text=True)
        assert not done.returncode, done.stderr
        return done.stdout

    def place(self, host: int) -> str:
        """Return the network namespace of a host."""
        return os.readlink(f"/proc/{self._holders[host].pid}/ns/net")

    def processes(self, *hosts: int) -> dict[int, str]:
        """Return every process of some hosts (none: of all) and its command line."""
        places = {self.place(host) for host in hosts or range(len(self._holders))}
        holders = {holder.pid for holder in self._holders}
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) in holders:
                continue
            try:
                if os.readlink(entry / "ns/net") in places:
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
        return {pid: line for pid, line in found.items() if line}

    def send(self, number: signal.Signals, *hosts: int) -> None:
        """Send every process of some hosts (none: of all) a signal."""
        signal_all(self.processes(*hosts), number)

    def close(self) -> None:
        """End every process of the network, and the network."""
        deadline = time.monotonic() + LIMIT_S
        while (left := self.processes()) and time.monotonic() < deadline:
            self.send(signal.SIGKILL)
            time.sleep(0.1)
        for holder in self._holders:
            _end(holder)
        assert not left

    def _hold(self, *command: str) -> int:
        holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert holder.stdout is not None
        if holder.stdout.readline() != _READY:
            _end(holder)
            self.close()
            raise UnavailableError("needs network namespaces with a bridge (unshare --net)")
        self._holders.append(holder)
        return holder.pid

    def _do(self, host: int, command: str) -> None:
        done = subprocess.run(self.inside(host, "sh", "-c", command), capture_output=True)
        if done.returncode:
            self.close()
            raise UnavailableError(f"needs network namespaces: {done.stderr.decode().strip()}")


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send processes a signal, except those that have ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _up(device: str, host: int) -> str:
    """Return the commands that give a host its address, and a default route for programs."""
    return (
        f"ip link set lo up && ip addr add {address(host)}/24 dev {device} "
        f"&& ip link set {device} up && ip route add default dev {device}"
    )


def _end(holder: subprocess.Popen[bytes]) -> None:
    holder.kill()
    holder.wait()
    assert holder.stdout is not None
    holder.stdout.close()
