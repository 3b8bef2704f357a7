"""Search for the inputs that make two runs differ, with hybrid runs."""
