"""Tools around the engine: training of draft heads, evaluation, planning and benchmarks."""
