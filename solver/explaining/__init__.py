"""Why jobs wait, and what would let them start."""
