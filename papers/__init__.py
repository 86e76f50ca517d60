"""The literature's policies, predictors, measurements and traces.

This package is for comparing methods of papers with each other and with Dovetail's own. A lab that
only runs jobs does not need it: nothing outside this package imports it. All of it is registered
by entry points of the group ``dovetail.plugins`` (``pyproject.toml``), like a third-party package
(``dovetail.instances.plugins``).

- ``policies``: the baselines, each a plugin ``policy.NAME`` (``docs/explanation/policies.md``).
- ``traces``: readers of published traces of jobs, each a plugin ``trace.FORMAT``
  (``docs/howto/traces.md``).
- ``importers``: readers of published measurements, and the commands that import them
  (``docs/howto/import-data.md``).
- ``predictors`` and ``forms``: the fitted models, plugins ``predictor.NAME`` and ``form.KIND``,
  and the power of pairs (``docs/explanation/predictors.md``).
- ``studies``: how good predictors are, the commands ``predictors evaluate`` and ``report``
  (``docs/evidence/predictors.md``).

Tests are in ``tests/papers``, programs that reproduce experiments of papers in
``benchmarks/papers`` (``docs/evidence``).
"""
