"""Predicts when speculation pays, from the cost of passes and the acceptance of drafts."""
