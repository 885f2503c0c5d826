"""Measures and trains around the engine: draft heads, ways of decoding, plans and benchmarks."""
