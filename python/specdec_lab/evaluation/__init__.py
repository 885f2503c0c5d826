"""Measures ways of decoding against plain decoding, on prompts and with the engine alone."""
