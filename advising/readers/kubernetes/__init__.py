"""The reader of Kubernetes objects: pods, nodes, groups and controllers of several schedulers."""
