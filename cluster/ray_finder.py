"""Finds the nodes of a Ray cluster for the service, and calls their agents."""

from __future__ import annotations

import logging
import socket
import subprocess
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from multiprocessing import Pipe
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.cluster.caller import Caller, no_answer
from dovetail.cluster.messages import Method
from dovetail.cluster.options import RayPlan
from dovetail.instances._children import module_command
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.plugins import require_package
from dovetail.toolkit.commands import host_and_port

START_S: Final = 60.0
"""Seconds that a service waits, at its first start, for Ray to name a node."""

SILENT_DRIVER_S: Final = 90.0
"""Seconds without a message until the driver is replaced; Ray itself ends it after 60."""

_PAUSE_S: Final = 1.0
_MOST_PAUSE_S: Final = 15.0
_CONNECT_S: Final = 5.0

_log = logging.getLogger(__name__)


class NodeInfo(NamedTuple):
    """A node as reported by Ray and Slurm.

    Attributes
    ----------
    rack : str or None
        The node's label ``rack``.
    pilot : str or None
        The Slurm job that provides the node.
    leaving : str
        Why no new jobs may start there, empty if they may.
    """

    rack: str | None = None
    pilot: str | None = None
    leaving: str = ""


class ClusterReport(NamedTuple):
    """The driver's report, sent every second.

    Attributes
    ----------
    nodes : mapping of str to NodeInfo
        The current nodes of Ray.
    notes : tuple of str
        Notes for the user, one line each.
    trouble : str
        Why the driver ends; then the nodes are unknown.
    """

    nodes: Mapping[str, NodeInfo] = {}
    notes: tuple[str, ...] = ()
    trouble: str = ""


def unreachable(address: str) -> str:
    """Return why no connection to ``HOST:PORT`` is possible, empty if one is.

    Ray itself would wait forever.
    """
    try:
        with socket.create_connection(host_and_port(address), timeout=_CONNECT_S):
            return ""
    except OSError as error:
        return str(error)


class RayFinder:
    """Finds the nodes of a Ray cluster, and calls their agents.

    A separate process, the driver, connects to Ray, because Ray ends a process that has lost its
    head for a minute; the service never imports Ray. All methods except ``start`` and
    ``taken_back`` return without waiting and may be called from any thread.

    Parameters
    ----------
    directory : path
        The folder of the service's files about nodes.
    plan : RayPlan
        Selects the nodes, and has the options of their agents.
    env : mapping of str to str, optional
        The driver's environment; by default this process's.
    """

    name = "ray"

    def __init__(
        self, directory: Path, plan: RayPlan, env: Mapping[str, str] | None = None
    ) -> None:
        self._plan, self._directory, self._env = plan, directory, env
        self._nodes: Mapping[str, NodeInfo] = {}
        self._caller: Caller | None = None
        self._notes: frozenset[str] = frozenset()
        self._trouble = self._logged = ""
        self._first = threading.Event()
        self._closing = threading.Event()
        self._driver: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the driver and, on the service's first start, wait until it names a node.

        Raises
        ------
        UnsupportedError
            When Ray is not installed, or names no node.
        """
        self.begin()
        if not self.had_nodes():
            self._first.wait(START_S)
            if not self._nodes:
                self.close()
                reason = self._trouble or f"it has named no node in {START_S:g} s"
                raise UnsupportedError(f"Ray at {self._plan.address}: {reason}")
        self._first.set()

    def begin(self) -> None:
        """Start the driver.

        Raises
        ------
        UnsupportedError
            When Ray is not installed.
        """
        require_package("ray", "ray", "the pool on nodes of Ray")
        self._directory.mkdir(parents=True, exist_ok=True)
        threading.Thread(target=self._drive, name="runs the Ray driver", daemon=True).start()

    def had_nodes(self) -> bool:
        """Return whether a service of this directory has had nodes before."""
        return any((self._directory / "known").glob("*.json"))

    def nodes(self) -> Mapping[str, NodeInfo]:
        """Return the nodes of Ray's last report, even if no driver runs now."""
        return self._nodes

    def call(self, node: str, method: Method, text: str) -> Future[str]:
        """Call the agent of a node (``Agent.call``), and return the future of its answer.

        The future gets the answer or a ``NoAnswerError``, or is never done. Its callbacks must not
        block, because one thread sets the futures of all calls.
        """
        caller = self._caller
        return caller.call(node, method, text) if caller else no_answer(self._why_none())

    def _why_none(self) -> str:
        return f"Ray at {self._plan.address}: {self._trouble or 'its driver is being started'}"

    def weigh(self, lacking: int, busy: Collection[str]) -> None:
        """Do nothing: Ray's nodes do not depend on how many devices jobs lack."""

    def awaited(self) -> Sequence[str]:
        """Return nothing, because it is unknown which nodes will join."""
        return ()

    def taken_back(self, node: str) -> str:
        """Return why a node was taken back, so that its job is not at fault that a rank failed.

        Always empty here, because a plain Ray cluster takes no node back. May block for seconds.
        """
        return ""

    def close(self) -> None:
        """End the driver; agents and their jobs keep running."""
        self._closing.set()
        with self._lock:
            if self._driver is not None:
                self._driver.kill()

    # The driver.

    def _drive(self) -> None:
        """Run one driver after another."""
        pause_s = _PAUSE_S
        while not self._closing.is_set():
            try:
                # Checking the head is cheap, so its return is noticed soon.
                self._trouble = away = unreachable(self._plan.address)
                worked = not away and self._run_driver()
            except Exception as error:  # without this thread, no node would be found any more
                _log.exception("Ray cannot be driven")
                self._trouble, away, worked = str(error), "", False
            # ``start`` raises the first trouble itself.
            if self._first.is_set():
                self._log_trouble(self._trouble or "its driver has ended")
            self._first.set()
            pause_s = _PAUSE_S if worked or away else min(2 * pause_s, _MOST_PAUSE_S)
            self._closing.wait(pause_s)

    def _log_trouble(self, why: str) -> None:
        if why != self._logged and not self._closing.is_set():
            _log.warning("Ray at %s: %s; trying again", self._plan.address, why)
        self._logged = why

    def _run_driver(self) -> bool:
        """Run a driver until it ends, and return whether it named any node."""
        self._trouble, worked = "", False
        ours, theirs = Pipe()
        with ours:
            with theirs, open(self._directory / "ray.log", "wb") as errors, self._lock:
                if self._closing.is_set():
                    return False
                program = module_command("dovetail.cluster.ray_driver")
                self._driver = driver = subprocess.Popen(
                    (*program, str(theirs.fileno())),
                    # Ray's workers import from the driver's working directory.
                    cwd=self._directory,
                    stdin=subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    env=self._env,
                    start_new_session=True,
                    pass_fds=[theirs.fileno()],
                )
            with driver:
                caller = Caller(ours)
                try:
                    ours.send(self._plan)
                    self._caller = caller
                    while ours.poll(SILENT_DRIVER_S):
                        message = ours.recv()
                        if isinstance(message, ClusterReport):
                            self._take_in(message)
                            worked |= bool(message.nodes)
                        else:
                            caller.take_in(*message)
                except (EOFError, OSError):
                    pass  # it has ended; another is started
                finally:
                    driver.kill()
                    self._caller = None
                    caller.end(self._why_none())
        return worked

    def _take_in(self, report: ClusterReport) -> None:
        self._trouble = report.trouble
        if report.trouble:
            return
        for note in sorted({*report.notes} - self._notes):
            _log.warning("%s", note)
        self._nodes, self._notes, self._logged = report.nodes, frozenset(report.notes), ""
        if report.nodes:
            self._first.set()
