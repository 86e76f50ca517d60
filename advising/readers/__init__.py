"""Readers of what schedulers, monitoring and published traces record of jobs on GPUs."""
