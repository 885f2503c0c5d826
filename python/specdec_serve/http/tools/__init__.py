"""Tool calls: the fields of requests, and the parsers of answers."""
