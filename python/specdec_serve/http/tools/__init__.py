"""Calls of tools: what requests say of them, and how answers are read for them."""
