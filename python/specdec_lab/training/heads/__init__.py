"""The heads that can be trained, one file per family."""
