"""A Slurm of three nodes: real daemons with their own files, and ports of loopback only.

No process of it outlives ``stop``.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

from tests.executor.waiting import LIMIT_S, wait_until

NODES = ("n1", "n2", "n3")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
ENDED_S = 3
"""Seconds after which Slurm marks a node as down."""

_CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool/%n
SlurmctldPidFile={home}/ctld.pid
SlurmdPidFile={home}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SlurmdTimeout={ended_s}
SlurmctldTimeout=5
InactiveLimit=0
KillWait=3
MinJobAge=300
SchedulerParameters=sched_min_interval=100000,bf_interval=2
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} {node}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} {node}
NodeName=n3 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[3]} {node}
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_NODE = "CPUs=8 RealMemory=8000 Gres=gpu:a100:2 Feature=ib"


def why_none() -> str:
    """Return why no Slurm can be started here; empty: it can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    return f"Slurm is not installed here (no {', '.join(missing)})" if missing else ""


def make_device(path: Path) -> None:
    """Make the device file of a stand-in for a GPU: as root like ``/dev/null``, else a plain file.

    Slurm names the numbers of device files to the steps that have them, but not those of files.
    """
    if os.geteuid() == 0:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    else:
        path.touch()


class SlurmCluster:
    """``slurmctld`` and three ``slurmd`` with two stand-ins for GPUs each (``make_device``).

    Parameters
    ----------
    home : path
        An empty folder with a short name.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.conf = home / "slurm.conf"
        for name in ("state", "spool"):
            (home / name).mkdir()
        with _free_ports(4) as ports:
            text = _CONF.format(
                host=socket.gethostname().partition(".")[0],
                user=pwd.getpwuid(os.geteuid()).pw_name,
                home=home,
                ports=ports,
                node=_NODE,
                ended_s=ENDED_S,
            )
        self.conf.write_text(text)
        for k in range(2):
            make_device(home / f"gpu{k}")
        (home / "gres.conf").write_text(f"Name=gpu Type=a100 File={home}/gpu[0-1]\n")
        (home / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def env(self) -> dict[str, str]:
        """The environment in which programs find this Slurm."""
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        return {**os.environ, "SLURM_CONF": str(self.conf), "PATH": path}

    def start(self) -> None:
        """Start all of it and wait until all nodes are idle."""
        self.start_one("slurmctld")
        for node in NODES:
            self.start_one(node)
        daemons = self.processes.values()
        wait_until(
            lambda: self.states() == ["idle"] * 3 or any(one.poll() is not None for one in daemons)
        )
        assert self.states() == ["idle"] * 3, "a daemon has ended"

    def start_one(self, name: str) -> None:
        """Start ``slurmctld`` or the ``slurmd`` of a node."""
        command = ["slurmctld", "-D"] if name == "slurmctld" else ["slurmd", "-D", "-N", name]
        with (self.home / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, env=self.env, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, name: str) -> None:
        """Kill ``slurmctld`` or the ``slurmd`` of a node."""
        self.processes[name].kill()
        self.processes.pop(name).wait()

    def ask(self, *command: str) -> str:
        """Return the output of a command of Slurm."""
        done = subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=LIMIT_S
        )
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    def states(self) -> list[str]:
        """Return the states of the nodes; none while ``slurmctld`` does not answer."""
        with suppress(AssertionError, subprocess.TimeoutExpired):
            return self.ask("sinfo", "-h", "-N", "-o", "%t").split()
        return []

    def clear(self) -> None:
        """End all jobs, and bring back every node, also one that a failed test left frozen."""
        self._send(signal.SIGCONT)
        for name in ("slurmctld", *NODES):
            if name not in self.processes:
                self.start_one(name)
        wait_until(lambda: len(self.states()) == 3, "slurmctld")
        jobs = self.ask("squeue", "-h", "-o", "%F").split()
        if jobs:
            self.ask("scancel", *jobs)
        wait_until(lambda: self.states() == ["idle"] * 3, "three idle nodes")

    def stop(self) -> None:
        """End the daemons and the processes of all jobs."""
        for process in self.processes.values():
            process.kill()
            process.wait()
        wait_until(lambda: not self._send(signal.SIGKILL), "no process")

    def _send(self, number: signal.Signals) -> list[psutil.Process]:
        """Send all processes of this Slurm a signal, and return them."""
        found = [*self._processes()]
        for process in found:
            with suppress(psutil.Error):
                process.send_signal(number)
        return found

    def _processes(self) -> Iterator[psutil.Process]:
        """Yield the processes of this Slurm."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                ours = process.environ().get("SLURM_CONF") == str(self.conf)
                # A step daemon clears its environment, but has a socket.
                step = process.name() == "slurmstepd" and _has_socket(process, self.home)
                if process.pid != os.getpid() and (ours or step):
                    yield process

    def step_daemons(self, node: str) -> list[psutil.Process]:
        """Return the step daemons of a node."""
        spool = self.home / "spool" / node
        found = psutil.process_iter(["name"])
        return [p for p in found if p.info["name"] == "slurmstepd" and _has_socket(p, spool)]


def _has_socket(process: psutil.Process, folder: Path) -> bool:
    with suppress(psutil.Error):
        sockets = process.net_connections("unix")
        return any(str(one.laddr).startswith(str(folder)) for one in sockets)
    return False


class _free_ports(ExitStack):  # noqa: N801 - used as a function
    """Free ports, kept until the block ends."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._sockets = [self.enter_context(socket.socket()) for _ in range(count)]

    def __enter__(self) -> list[int]:  # type: ignore[override]
        for one in self._sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in self._sockets]


def agents_on(node: str, home: Path) -> list[psutil.Process]:
    """Return the agents of a node with files in a folder, as they lock their directories."""
    locks = [path.stat().st_ino for path in home.glob(f"scratch/**/{node}/lock")]
    found = []
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and any(fields[5].endswith(f":{inode}") for inode in locks):
            with suppress(psutil.Error):
                found.append(psutil.Process(int(fields[4])))
    return found


def head_of(home: Path) -> psutil.Process | None:
    """Return the program of the head of a service's folder; if it ends, so does Ray."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if {"dovetail.cluster.slurm.programs", "head", f"{home}/slurm"} <= {*words}:
                return process
    return None


def processes_on(slurm: SlurmCluster, node: str, home: Path) -> list[psutil.Process]:
    """Return all processes of a node: daemons of Slurm, agent, and jobs below a folder."""
    roots = [psutil.Process(slurm.processes[node].pid), *slurm.step_daemons(node)]
    roots += [p for p in psutil.process_iter() if _is_on(p, node, home)]
    found = dict.fromkeys(roots)
    for process in roots:
        with suppress(psutil.Error):
            found |= dict.fromkeys(process.children(recursive=True))
    return [*found]


def _is_on(process: psutil.Process, node: str, home: Path) -> bool:
    with suppress(psutil.Error):
        words = [word for word in process.cmdline() if word.startswith(str(home))]
        on_node = any(f"/{node}/" in f"{word}/" for word in words)
        # The step's srun is on the node of the pilot's script.
        return on_node and process.name() != "srun"
    return False


def freeze_node(slurm: SlurmCluster, node: str, home: Path) -> list[psutil.Process]:
    """Freeze all processes of a node, and return them."""
    stopped: dict[psutil.Process, None] = {}
    while new := [p for p in processes_on(slurm, node, home) if p not in stopped]:
        for process in new:
            stopped[process] = None
            with suppress(psutil.Error):
                process.send_signal(signal.SIGSTOP)
    return [*stopped]


def thaw(stopped: list[psutil.Process]) -> None:
    """Resume frozen processes, those of jobs before their supervisors."""
    for process in reversed(stopped):
        with suppress(psutil.Error):
            process.send_signal(signal.SIGCONT)
