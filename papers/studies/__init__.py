"""How good predictors are: ``dovetail predictors evaluate`` and ``report``."""
