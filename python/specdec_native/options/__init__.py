"""The options of an engine: read, checked and resolved."""
