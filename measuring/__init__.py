"""Measuring in one room: campaigns, shares that compute right, and what to measure next.

For those who measure a GPU and their own workloads. Live mode needs none of it: it profiles the
jobs that run, and reads the shares that were stored (``dovetail.executor.gpus.splits``). Nothing
outside this room imports it. It is registered by entry points of the group ``dovetail.plugins``
(``pyproject.toml``), as a package of a third party would do it (``dovetail.instances.plugins``),
each declared in ``cli``:

- ``command.measure``: a campaign measures workloads alone and in pairs, in stages and with repeats,
  into a data set (``docs/howto/measure.md``, ``docs/reference/campaigns.md``). ``commands`` runs
  it, ``workloads`` are the programs that it measures (``docs/reference/workloads.md``).
- ``options.doctor``: ``--splits`` measures which SM shares compute right on a GPU, ``--sms`` counts
  the SMs of each (``gate``; ``docs/explanation/splits.md``).
- ``command.predictors.suggest``: the pairs to measure next, which are those that improve the plan
  most (``suggesting``; ``docs/explanation/predictors.md``).

Tests are in ``tests/measuring``, the benchmark of suggestions is in ``benchmarks/measuring``, the
first campaign on a GPU in ``benchmarks/gpu``.
"""
