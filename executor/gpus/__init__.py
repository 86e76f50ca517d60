"""What NVIDIA tells of a GPU: NVML, DCGM, cuBLAS, and the SM splits proven to compute right."""
