"""Requests to the service: admitted, journalled, answered, and what users are shown."""
