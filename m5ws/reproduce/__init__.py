"""Replay of a run, and its verdict."""
