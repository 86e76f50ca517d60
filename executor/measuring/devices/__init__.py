"""On what workloads are measured: a GPU, or a processor core that stands in for one."""
