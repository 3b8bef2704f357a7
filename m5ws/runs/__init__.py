"""Runs: start, supervise, resume, list."""
