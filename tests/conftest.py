"""Fixtures and settings of all tests."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Machines that run tests are busy; how long an example takes, or is drawn, says nothing about the
# code.
BUSY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", BUSY, max_examples=30)
settings.register_profile("deep", BUSY, max_examples=500)
settings.load_profile("quick")  # pytest --hypothesis-profile=deep takes the other

# Tests run on all cores at once, where threads of linear algebra would wait for each other: one
# fit took fifteen times as long. Set here, before numpy is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The acceptance suite of GPUs has its own configuration: pytest tests/gpu.
collect_ignore = ["gpu"]

# Shells let what they start in the background ignore Ctrl-C, and tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


LONGEST = (
    "cluster/test_slurm_faults.py",
    "cluster/test_ray.py",
    "docs/test_docs.py",
    "api/test_cli.py",
    "cluster/test_faults.py",
    "executor/test_acceptance.py",
    "executor/simulation/test_same_history.py",
    "api/simulating/test_commands.py",
    "cluster/test_contract.py",
    "measuring/test_gpu_campaign.py",
    "measuring/test_gpu_device.py",
    "solver/test_contract.py",
    "isolation/test_interception.py",
    "executor/mps/test_manager.py",
    "cluster/test_slurm.py",
    "isolation/test_service.py",
    "api/predicting/test_commands.py",
    "api/live/test_commands.py",
    "api/live/test_full_disk.py",
    "solver/test_partial_pairs.py",
    "measuring/test_runner.py",
    "api/planning/test_report.py",
    "api/toolkit/test_charts.py",
    "solver/test_kinds.py",
    "api/simulating/test_report.py",
    "executor/pools/test_lease.py",
    "api/live/test_api.py",
    "solver/test_table_pairs.py",
    "executor/live/test_service_gpu.py",
    "executor/live/test_faults.py",
    "predictors/test_bounds.py",
    "solver/pairing/test_compilation.py",
)
"""The files of quick and slow tests that take longest, in this order (junitxml, November 2026)."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest files first, so that workers end together."""
    order = {Path(__file__).parent / file: nth for nth, file in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


@pytest.fixture
def shadowed(tmp_path, monkeypatch):
    """Make a folder of files with the names of libraries the working directory; none may run."""
    folder = tmp_path / "shadowed"
    folder.mkdir()
    ran = tmp_path / "ran"
    for name in ("dovetail", "json", "multiprocessing", "numpy", "pickle", "pulp", "socket"):
        (folder / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write({name!r} + ' ')")
    monkeypatch.chdir(folder)
    yield folder
    assert not ran.exists(), ran.read_text()


@pytest.fixture
def run(capsys):
    """Run the command line in this process; return exit status, output and errors."""
    from tests.command_line import status_of

    def call(*arguments):
        return status_of(*arguments), *capsys.readouterr()

    return call
