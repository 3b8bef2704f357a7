"""`m5ws.toml`: find, read, defaults."""
