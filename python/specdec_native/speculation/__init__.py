"""What a user may say about speculation, checked and brought into the core's form."""
