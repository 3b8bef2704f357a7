"""Frameworks: the state of each, saved and restored."""
