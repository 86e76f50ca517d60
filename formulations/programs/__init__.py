"""Integer programs and graphs of a round, and how an answer becomes a placement."""
