"""Read-through cache on this machine's disk."""
