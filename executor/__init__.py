"""From decisions to running jobs: the round loop, and the pools it drives."""
