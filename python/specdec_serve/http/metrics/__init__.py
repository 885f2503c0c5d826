"""GET /metrics with vLLM's names, and the summary line of the log."""
