"""The pools of one node: where live jobs run."""
