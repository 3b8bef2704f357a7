"""Checkpoints of a running session."""
