"""The steps of ``isolation.py``: what the isolation of thread blocks does and costs on a GPU."""
