"""Checkpoints of a run: list, resolve, compare, export. Reads only."""
