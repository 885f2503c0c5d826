"""What the CUDA backend does on a GPU: tests and measurements, for a machine without a network."""
