"""What the literature has, in one room: its policies, its predictors, its measurements and traces.

For those who compare ideas of papers with each other and with Dovetail's own. A lab that only runs
jobs needs none of it: nothing outside this room imports it. All of it is registered by entry
points of the group ``dovetail.plugins`` (``pyproject.toml``), as a package of a third party would
do it (``dovetail.instances.plugins``).

- ``policies``: the baselines, each a plugin ``policy.NAME`` (``docs/explanation/policies.md``).
- ``traces``: readers of published traces of jobs, each a plugin ``trace.FORMAT``
  (``docs/howto/traces.md``).
- ``importers``: readers of published measurements, and the commands that import them
  (``docs/howto/import-data.md``).
- ``predictors`` and ``forms``: the fitted models, plugins ``predictor.NAME`` and ``form.KIND``,
  and the power of pairs (``docs/explanation/predictors.md``).
- ``studies``: how good predictors are, the commands ``predictors evaluate`` and ``report``
  (``docs/evidence/predictors.md``).

Tests are in ``tests/papers``, programs that repeat experiments of papers in ``benchmarks/papers``
(``docs/evidence``).
"""
