"""Checkpoints of a run: list, resolve, compare. Reads only."""
