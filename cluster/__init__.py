"""Pools of many machines: the agents that run each node's jobs, and the service's link to them.

For labs whose GPUs are on several machines, under Ray or Slurm; nothing outside this room imports
it. Its pools ``ray`` and ``slurm`` are plugins ``pool.NAME`` (``pyproject.toml``) in ``opening``,
registered like a third party's.

- At the service: ``pool`` is the pool, which calls the agents (``remote``), starts gangs in two
  phases (``gangs``), and relies on the leases of nodes (``lease``). A *finder* names the nodes and
  forwards the calls: ``ray_finder`` with its process ``ray_driver``, ``slurm.finder`` with pilots
  (``slurm.programs``, ``slurm.ray_parts``).
- At a node: ``agent`` runs the jobs of one controller (``fence``) in a pool of that machine;
  ``ray_agent`` is its transport.
- ``messages`` defines the messages between both.

Pages: ``docs/explanation/nodes.md``, ``docs/howto/ray.md``, ``docs/howto/slurm.md``,
``docs/evidence/nodes.md``. Tests are in ``tests/cluster``, benchmarks in ``benchmarks/cluster``.
"""
