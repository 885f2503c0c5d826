"""Finds out why the drafts of a head are not accepted, and what mends the head."""
