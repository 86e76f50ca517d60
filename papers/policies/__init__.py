"""The policies of papers, as baselines."""
