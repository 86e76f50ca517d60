"""Nodes of Slurm: pilots, which are allocations in which Ray is started."""
