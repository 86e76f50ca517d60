"""The checker: validity and value of a plan, independent of planning."""
