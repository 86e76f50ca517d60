"""Forms of the predictors of papers, each a plugin ``form.KIND``: they run with NumPy alone."""
