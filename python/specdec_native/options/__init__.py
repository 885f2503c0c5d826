"""The options of an engine: read and checked, and what they came to."""
