"""A real Ray cluster: a head and nodes, each in its own network namespace."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from dovetail.executor.live.views import DeviceView, JobView
from dovetail.live.client import Client
from tests.executor.waiting import LIMIT_S, wait_until

from .network import Network, address
from .tutorial_load import WATCH
from .witness import copies, witness

HEAD = f"{address(0)}:6399"
OPEN = {"RAY_AUTH_MODE": "disabled", "RAY_USE_TLS": "0"}
"""The settings of a cluster that admits every connection."""

LEAKED = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
"""What Ray sets for its workers: unset here, so that jobs show whether it reaches them."""

MOST_HOSTS = 8

AMPLE_S = 600.0
"""A lease within which even a busy machine restarts a killed process (30 s were too short)."""

STARTS = 3
"""So often ``ray start`` may fail."""

HEALTH = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


def certificates(directory: Path, addresses: Sequence[str]) -> dict[str, str]:
    """Make a certificate for hosts, and return Ray's settings (``docs/howto/ray.md``)."""
    names = ",".join(f"IP:{address}" for address in addresses)
    for words in (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ca -keyout ca.key -out ca.crt",
        "req -newkey rsa:2048 -nodes -subj /CN=ray -keyout ray.key -out ray.csr",
        "x509 -req -in ray.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out ray.crt "
        "-extfile names",
    ):
        (directory / "names").write_text(f"subjectAltName={names}\n")
        command = ["openssl", *words.split()]
        subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=LIMIT_S)
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(directory / "ray.crt"),
        "RAY_TLS_SERVER_KEY": str(directory / "ray.key"),
        "RAY_TLS_CA_CERT": str(directory / "ca.crt"),
    }


class RayCluster:
    """A head, and nodes ``n1``, ``n2``, ... on hosts 1, 2, ... of a network; with token and TLS.

    Parameters
    ----------
    directory : path
        With a short name, since the paths of Ray's sockets may not be long.
    nodes : int
        How many there are.
    stored : bool
        Whether the head has its state on disk.
    """

    def __init__(self, directory: Path, nodes: int, stored: bool = True) -> None:
        self.directory, self.count = directory, nodes
        home = directory / "home"
        home.mkdir(parents=True)
        token = directory / "ray-token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        self.token = token.read_text()
        kept = {
            "RAY_gcs_storage": "rocksdb",
            "RAY_gcs_storage_path": str(directory / "gcs"),
            # Ray ends a node after 60 s without a head, which a busy machine needs to restart it.
            "RAY_gcs_rpc_server_reconnect_timeout_s": f"{LIMIT_S:g}",
        }
        self.env = {
            **{name: value for name, value in os.environ.items() if name not in LEAKED},
            **HEALTH,
            **(kept if stored else {}),
            "HOME": str(home),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            **certificates(directory, [address(k) for k in range(MOST_HOSTS)]),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_enable_worker_prestart": "0",
            "RAY_kill_child_processes_on_worker_exit": "false",
        }
        # Ray sets it for its workers where it is not set: no job may have it from there.
        self.env.pop("OMP_NUM_THREADS", None)
        self.network = Network()
        for _ in range(nodes):
            self.network.add()

    def start(self) -> None:
        self.start_head()
        # One after the other, since Ray gives up a raylet that starts slowly.
        for k in range(1, self.count + 1):
            self.start_node(k)

    def start_head(self) -> None:
        # Ray mistakes the raylets of other nodes on this machine for a running head.
        (self.directory / "0/ray_current_cluster").unlink(missing_ok=True)
        self._ray("--head", "--port=6399", "--num-cpus=0", "--include-dashboard=false", k=0)

    def start_node(self, k: int, name: str | None = None) -> None:
        labels = f"--labels=node={name or f'n{k}'},rack=r{(k + 1) // 2}"
        self._ray(f"--address={HEAD}", "--num-cpus=1", labels, "--include-log-monitor=false", k=k)

    def start_open_head(self, k: int) -> str:
        """Start the head of another cluster, without a token, and return its address."""
        words = ("--head", "--port=6399", "--num-cpus=1", "--include-dashboard=false")
        self._ray(*words, k=k, **OPEN, RAY_gcs_storage_path=str(self.directory / "open"))
        return f"{address(k)}:6399"

    def _ray(self, *arguments: str, k: int, **env: str) -> None:
        """Run ``ray start`` on a host; Ray gives up after 30 s, so on a busy machine once more."""
        for _ in range(STARTS):
            done = subprocess.run(
                self.network.inside(
                    k,
                    *(sys.executable, "-m", "ray.scripts.scripts", "start", *arguments),
                    *(f"--node-ip-address={address(k)}", f"--temp-dir={self.directory / str(k)}"),
                    *("--object-store-memory=80000000", "--disable-usage-stats"),
                ),
                env={**self.env, **env},
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
            if not done.returncode:
                return
            self._kill_ray(k)
        raise AssertionError(f"ray start {' '.join(arguments)}: {done.stdout}{done.stderr}")

    def _kill_ray(self, k: int) -> None:
        """Kill the processes of Ray on a host."""
        for pid, line in self.network.processes(k).items():
            if f"{self.directory}/{k}/" in line:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def raylet(self, k: int) -> int | None:
        """Return the raylet of a node, if there is one."""
        found = [p for p, line in self.network.processes(k).items() if "raylet/raylet " in line]
        return found[0] if found else None

    def agent(self, k: int) -> int:
        """Return the process of a node's agent, which locks its directory."""
        inode = (self.directory / "agents" / f"n{k}" / "lock").stat().st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
                return int(fields[4])
        raise LookupError(f"n{k} has no agent")

    def has_agent(self, k: int, other_than: int) -> bool:
        """Return whether a node has an agent with another process than an earlier one."""
        try:
            return self.agent(k) != other_than
        except LookupError:
            return False

    def kill_raylet(self, k: int) -> None:
        pid = self.raylet(k)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def kill_agent(self, k: int) -> None:
        os.kill(self.agent(k), signal.SIGKILL)

    def kill_head(self) -> None:
        self._kill_ray(0)

    def left_of_jobs(self) -> Sequence[str]:
        """Return the runs that have a process on any host."""
        found = []
        for pid in self.network.processes():
            with suppress(OSError):
                words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                found += [word.decode() for word in words if word.startswith(b"DOVETAIL_RUN=")]
        return found

    def stop(self) -> None:
        """End every process of it, and its network."""
        self.network.close()


class RayService:
    """``dovetail serve --pool ray:...`` as a process on the host of the head."""

    def __init__(self, cluster: RayCluster, directory: Path) -> None:
        self.cluster, self.directory = cluster, directory
        directory.mkdir(parents=True)
        self.socket, self._log_path = directory / "api.sock", directory / "service.log"
        self.start()

    def start(self, lease_s: float = AMPLE_S, **env: str) -> None:
        self.lease_s = lease_s
        agents = self.cluster.directory / "agents"
        pool = f"ray:{HEAD},lease={lease_s:g},directory={agents},pool=cpu:devices=1,shares=none"
        serve = ("serve", "--pool", pool, "--directory", str(self.directory), "--watch", WATCH)
        with self._log_path.open("ab") as log:
            begun = log.tell()
            self.process = subprocess.Popen(
                self.cluster.network.inside(0, sys.executable, "-m", "dovetail", *serve),
                env={**self.cluster.env, **env},
                stdout=log,
                stderr=log,
            )
        wait_until(lambda: self._serves(begun), "the service serves")

    def _serves(self, begun: int) -> bool:
        """Return whether its log, after ``begun`` bytes, reports that it serves."""
        assert self.process.poll() is None, self.log()
        return b"serving the ray pool" in self._log_path.read_bytes()[begun:]

    def client(self) -> Client:
        return Client(str(self.socket))

    def job(self, job: str) -> JobView:
        with self.client() as client:
            return client.job(job)

    def devices(self) -> Sequence[DeviceView]:
        with self.client() as client:
            return client.service().devices

    def usable(self) -> set[str]:
        """Return the nodes whose devices take jobs."""
        return {device.node for device in self.devices() if not device.trouble}

    def log(self) -> str:
        return self._log_path.read_text()

    def serve_elsewhere(
        self, directory: Path, pool: str, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run another service on the host of the head until it ends by itself."""
        serve = ("serve", "--pool", pool, "--directory", str(directory / "s"))
        return subprocess.run(
            self.cluster.network.inside(0, sys.executable, "-m", "dovetail", *serve),
            env={**self.cluster.env, **env},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Dovetail on the service."""
        return subprocess.run(
            [sys.executable, "-m", "dovetail", *arguments],
            env={**self.cluster.env, "DOVETAIL_SERVICE": str(self.socket)},
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self, lease_s: float = AMPLE_S, **env: str) -> None:
        """Kill the service and start another in its place."""
        self.kill()
        self.start(lease_s, **env)

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()


class Gang:
    """A witness job of the service, which runs until ``finish``."""

    def __init__(
        self, service: RayService, name: str, workers: int, stubborn: bool = False
    ) -> None:
        self.service, self.workers = service, workers
        self.folder = service.directory / name
        self.folder.mkdir()
        job = {
            "command": [*witness(self.folder, stubborn=stubborn)],
            "workload": "witness",
            "cwd": str(self.folder),
            "env": {"PATH": os.environ["PATH"]},
            "workers": workers,
            "grace_s": 1.0,
        }
        with service.client() as client:
            (self.id,) = client.submit([job])

    @property
    def view(self) -> JobView:
        return self.service.job(self.id)

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of its ranks that the service knows."""
        return tuple(pid for pid in self.view.pids if pid is not None)

    def nodes(self) -> list[str]:
        return [gpu.partition("/")[0] for gpu in self.view.gpus]

    def started(self, after: str | None = None) -> bool:
        """Return whether all ranks of its run have started, and the service knows their processes.

        On a busy machine a run may be refused, and another begun; ``after``: not in this run.
        """
        view = self.view
        mine = [c for c in copies(self.folder, self.id) if c.run == view.run]
        known = [pid for pid in view.pids if pid is not None]
        return view.run not in (None, after) and len(mine) == len(known) == self.workers

    def wait_for_start(self, after: str | None = None) -> Gang:
        wait_until(lambda: self.started(after), self.service.log())
        return self

    def beats(self) -> set[int]:
        """Return the processes that have written within half a second."""
        before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        time.sleep(0.5)
        return {c.pid for c in copies(self.folder, self.id) if c.last_s > before_s}

    def finish(self) -> JobView:
        (self.folder / "go").touch()
        wait_until(lambda: self.view.state == "finished", self.service.log())
        return self.view


def timed(what: str, condition: Callable[[], object]) -> None:
    """Wait, and print how long it took."""
    begun_s = time.monotonic()
    wait_until(condition, what)
    print(f"\n{what}: {time.monotonic() - begun_s:.1f} s")
