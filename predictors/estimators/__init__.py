"""The models that can be fitted, as scikit-learn estimators (extra ``train``).

Every estimator takes the table of ``rows.DirectedRows``: the features of the job, then the same
features of its co-runner; the target is the job's slowdown. ``to_form`` of a fitted estimator
returns the arrays that are saved and run.
"""
