"""Which pairs to measure next: those that are worth most to the plan."""
