"""The room for measuring: campaigns, shares that compute correctly, and which pairs to measure.

It is for users who measure a GPU and their own workloads. Live mode does not need it: it profiles
running jobs and reads stored shares (``dovetail.executor.gpus.splits``). Nothing outside this room
imports it. It is registered by entry points of the group ``dovetail.plugins`` (``pyproject.toml``),
like a package of a third party (``dovetail.instances.plugins``), each declared in ``cli``:

- ``command.measure``: a campaign measures workloads alone and in pairs, in stages and with repeats,
  into a data set (``docs/howto/measure.md``, ``docs/reference/campaigns.md``). ``commands`` runs
  it, ``workloads`` are the programs that it measures (``docs/reference/workloads.md``).
- ``options.doctor``: ``--splits`` measures which SM shares compute correctly on a GPU, ``--sms``
  counts the SMs of each (``gate``; ``docs/explanation/splits.md``).
- ``command.predictors.suggest``: the pairs to measure next, which improve the plan most
  (``suggesting``; ``docs/explanation/predictors.md``).

Tests are in ``tests/measuring``, the benchmark of suggestions is in ``benchmarks/measuring``, the
first campaign on a GPU in ``benchmarks/gpu``.
"""
