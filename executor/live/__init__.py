"""Live mode: real processes on a node's devices, journalled, and never lost."""
