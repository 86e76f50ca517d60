"""A Ray cluster and a service on it, started once for all tests that need them."""

import importlib.util
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.executor.waiting import wait_until

from .network import UnavailableError
from .ray_cluster import RayCluster, RayService

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="needs the extra: pip install './dovetail[ray]'",
)


@contextmanager
def running_ray(nodes, stored=True):
    """Start a cluster in its own folder, and remove it at the end."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs the extra: pip install './dovetail[ray]'")
    if shutil.which("nsenter") is None or shutil.which("ip") is None:
        pytest.skip("needs unshare, nsenter and ip")
    # Not pytest's: the paths of Ray's sockets would be too long.
    with tempfile.TemporaryDirectory(prefix="dr", dir="/tmp", ignore_cleanup_errors=True) as name:
        try:
            cluster = RayCluster(Path(name) / "c", nodes, stored)
        except UnavailableError as error:
            pytest.skip(str(error))
        try:
            cluster.start()
            service = RayService(cluster, Path(name) / "s")
            everywhere = {f"n{k}" for k in range(1, nodes + 1)}
            wait_until(lambda: service.usable() == everywhere, service.log())
            yield service
            service.end()
        finally:
            cluster.stop()


@pytest.fixture(scope="session")
def ray_service():
    """Return a service on a cluster of three nodes."""
    with running_ray(3) as service:
        yield service


@pytest.fixture
def ray(ray_service):
    """Return the service, whose nodes are all well before and after the test."""
    yield ray_service
    wait_until(lambda: not ray_service.cluster.left_of_jobs(), "no process of a job is left")
    wait_until(lambda: {"n1", "n2", "n3"} <= ray_service.usable(), ray_service.log())
