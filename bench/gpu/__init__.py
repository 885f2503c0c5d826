"""Tests and measures the CUDA backend on a GPU machine without a network."""
