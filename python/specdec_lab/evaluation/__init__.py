"""Compares decoding methods with plain decoding, on prompts, without a server."""
