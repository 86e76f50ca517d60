"""Reading and writing texts and tables; every fault becomes one line."""
