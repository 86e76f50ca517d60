"""Readers of the measurements that papers published."""
