"""Simulations: the jobs of a trace on a cluster with a virtual clock."""

from dovetail.executor.simulation.history import History, JobTimes, Stay
from dovetail.executor.simulation.options import Options
from dovetail.executor.simulation.pool import PolicyError, SimulatedPool, simulate

__all__ = ["History", "JobTimes", "Options", "PolicyError", "SimulatedPool", "Stay", "simulate"]
