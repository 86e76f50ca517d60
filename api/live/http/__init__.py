"""The HTTP API of the live service: server, its guards and lanes, and what both ends share."""
