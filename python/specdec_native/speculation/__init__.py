"""The user's options of speculation, checked and converted to the core's form."""
