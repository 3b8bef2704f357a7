"""Determinism settings inside a rank."""
