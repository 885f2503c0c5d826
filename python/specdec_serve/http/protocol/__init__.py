"""The bodies of requests, as pydantic models: what is read, and what is refused."""
