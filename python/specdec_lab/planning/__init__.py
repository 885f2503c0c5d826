"""Predicts when speculation pays: from what passes cost and how many drafts are kept."""
