"""Differences between two snapshots or two runs."""
