"""Measures the HTTP server against other servers and against Engine.generate."""
