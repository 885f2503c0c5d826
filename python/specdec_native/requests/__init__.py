"""One request from the prompt to its outputs."""
