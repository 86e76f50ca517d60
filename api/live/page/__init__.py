"""The page of the service: what a user of it sees and may do in a browser."""
