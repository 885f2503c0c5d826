"""Helpers that every other folder may use: checks of values, the log, progress, limits."""
