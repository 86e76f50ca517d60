"""GPU information from NVML, DCGM and cuBLAS, and the SM splits proven to compute correctly."""
