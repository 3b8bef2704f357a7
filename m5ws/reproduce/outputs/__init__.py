"""Comparison of output files and metrics."""
