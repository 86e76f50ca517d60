"""Requests to the service: they are admitted and become events, and users are shown the jobs."""
