"""An OpenAI-compatible service over the engine: its HTTP API, chat page, metrics and replicas."""
