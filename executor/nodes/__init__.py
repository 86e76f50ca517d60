"""Many machines as one pool: agents that keep each node's jobs, and the link to them."""
