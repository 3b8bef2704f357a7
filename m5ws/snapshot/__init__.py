"""Snapshots: all inputs of a run, under one digest."""
