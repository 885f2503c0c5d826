"""The heads that can be trained, one file a family."""
