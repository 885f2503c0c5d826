"""Asks a server questions whose answers speculation, batches and caches must not change."""
