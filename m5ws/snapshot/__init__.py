"""Snapshots: everything a run is a function of, under one digest."""
