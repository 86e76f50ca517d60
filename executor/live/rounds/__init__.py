"""Rounds of the service: what the policy sees, its decision, and the starts that follow."""
