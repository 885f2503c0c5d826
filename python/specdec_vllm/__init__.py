"""What stands for vLLM's vocabulary: its arguments, step-by-step engine, metrics and drafters."""
