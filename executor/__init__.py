"""From a plan to running processes: nothing yet (the live service comes later)."""
