"""The pairs to measure next: those whose measurement is worth most to the plan."""
