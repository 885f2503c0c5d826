"""GET /metrics by vLLM's names, and the summary line of the log."""
