"""Verdicts as signed statements: make, check."""
