"""Signed statements on verdicts: build and verify."""
