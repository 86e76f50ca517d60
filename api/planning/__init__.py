"""Plans from files: solve, check, explain, and show them as tables and pages."""
