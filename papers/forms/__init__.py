"""Forms of the papers' predictors, each a plugin ``form.KIND``; they run with NumPy alone."""
