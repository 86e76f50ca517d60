"""The nodes of a Ray cluster, as the service finds and calls them."""

from __future__ import annotations

import importlib.util
import logging
import socket
import subprocess
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from multiprocessing import Pipe
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.executor.nodes.agent import Method
from dovetail.executor.nodes.caller import Caller, no_answer
from dovetail.executor.nodes.options import RayPlan, host_and_port
from dovetail.instances._children import module_command
from dovetail.instances.errors import UnsupportedError

START_S: Final = 60.0
"""Seconds that Ray has at the start to name a node, where none is known from before."""

MUTE_S: Final = 90.0
"""Seconds of silence after which a driver is started anew: Ray itself gives up after 60."""

_PAUSE_S: Final = 1.0
_MOST_PAUSE_S: Final = 15.0
_CONNECT_S: Final = 5.0

_log = logging.getLogger(__name__)


class Sighted(NamedTuple):
    """What an engine says of a node.

    Attributes
    ----------
    rack : str or None
        Of the node.
    pilot : str or None
        The job of Slurm that lends it.
    leaving : str
        Why no new jobs are to be started there; empty: they are.
    """

    rack: str | None = None
    pilot: str | None = None
    leaving: str = ""


class Sighting(NamedTuple):
    """What the driver reports every second.

    Attributes
    ----------
    nodes : mapping of str to Sighted
        The nodes that Ray has now.
    notes : tuple of str
        What people should know, a line each.
    trouble : str
        Why the driver ends.
    """

    nodes: Mapping[str, Sighted] = {}
    notes: tuple[str, ...] = ()
    trouble: str = ""


def unreachable(address: str) -> str:
    """Return why nothing answers at ``HOST:PORT``; empty: something does.

    Ray itself would wait for ever.
    """
    try:
        with socket.create_connection(host_and_port(address), timeout=_CONNECT_S):
            return ""
    except OSError as error:
        return str(error)


class RayFinder:
    """Finds the nodes of a Ray cluster, and calls the agents there.

    A driver of Ray, in a process of its own, does that: Ray ends a process that has lost the head
    for a minute, and the service never imports Ray. Methods but ``start`` and ``taken_back`` return
    at once, and are called from several threads.

    Parameters
    ----------
    directory : path
        Where the service keeps what it knows of nodes.
    plan : RayPlan
        What is wanted.
    env : mapping of str to str, optional
        The driver's environment; by default this process's.
    """

    name = "ray"

    def __init__(
        self, directory: Path, plan: RayPlan, env: Mapping[str, str] | None = None
    ) -> None:
        self._plan, self._directory, self._env = plan, directory, env
        self._known: Mapping[str, Sighted] = {}
        self._caller: Caller | None = None
        self._notes: frozenset[str] = frozenset()
        self._trouble = self._logged = ""
        self._first = threading.Event()
        self._closing = threading.Event()
        self._driver: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin to find nodes, and wait for the first unless the service has had some before.

        Raises
        ------
        UnsupportedError
            When Ray is not installed, or names no node.
        """
        self.begin()
        if not self.had_nodes():
            self._first.wait(START_S)
            if not self._known:
                self.close()
                reason = self._trouble or f"it has named no node in {START_S:g} s"
                raise UnsupportedError(f"Ray at {self._plan.address}: {reason}")
        self._first.set()

    def begin(self) -> None:
        """Begin to find nodes, and wait for none.

        Raises
        ------
        UnsupportedError
            When Ray is not installed.
        """
        if importlib.util.find_spec("ray") is None:
            raise UnsupportedError("Ray is not installed: pip install './dovetail[ray]'")
        self._directory.mkdir(parents=True, exist_ok=True)
        threading.Thread(target=self._drive, name="drives Ray", daemon=True).start()

    def had_nodes(self) -> bool:
        """Return whether a service of this directory has had nodes."""
        return any((self._directory / "known").glob("*.json"))

    def nodes(self) -> Mapping[str, Sighted]:
        """Return the nodes that Ray has named."""
        return self._known

    def call(self, node: str, method: Method, text: str) -> Future[str]:
        """Call the agent of a node (``Agent.call``), and return the future of its answer.

        It may never come. It is set, to the answer or to a ``NoAnswerError``, by a thread that
        waits for nothing.
        """
        caller = self._caller
        return caller.call(node, method, text) if caller else no_answer(self._why_none())

    def _why_none(self) -> str:
        return f"Ray at {self._plan.address}: {self._trouble or 'its driver is being started'}"

    def weigh(self, lacking: int, busy: Collection[str]) -> None:
        """Take in how many devices waiting jobs lack, and which nodes keep runs: no matter here."""

    def awaited(self) -> Sequence[str]:
        """Return what is to bring nodes, each in a few words: nothing that is known here."""
        return ()

    def taken_back(self, node: str) -> str:
        """Return why a rank that has just failed may have been ended with its node.

        Empty: it was not, as nodes are not taken back here. It may take seconds.
        """
        return ""

    def close(self) -> None:
        """End the driver; agents and their jobs run on."""
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
                # A head that is away is looked for at little cost, and so as soon as it is back.
                self._trouble = away = unreachable(self._plan.address)
                worked = not away and self._run_driver()
            except Exception as error:  # a finder that ends would see no node any more
                _log.exception("Ray cannot be driven")
                self._trouble, away, worked = str(error), "", False
            # The first trouble of a start is an error there.
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
        """Run a driver until it ends, and return whether it has named nodes."""
        self._trouble, worked = "", False
        ours, theirs = Pipe()
        with ours:
            with theirs, open(self._directory / "ray.log", "wb") as errors, self._lock:
                if self._closing.is_set():
                    return False
                program = module_command("dovetail.executor.nodes.ray_driver")
                self._driver = driver = subprocess.Popen(
                    (*program, str(theirs.fileno())),
                    # Ray has its workers import from where its driver runs.
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
                    while ours.poll(MUTE_S):
                        message = ours.recv()
                        if isinstance(message, Sighting):
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

    def _take_in(self, sighting: Sighting) -> None:
        self._trouble = sighting.trouble
        for note in sorted(set(sighting.notes) - self._notes):
            _log.warning("%s", note)
        self._notes = frozenset(sighting.notes)
        self._known = {**self._known, **sighting.nodes}
        if not sighting.trouble:
            self._logged = ""
        if self._known:
            self._first.set()
