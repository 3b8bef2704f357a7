"""Observation of this machine and its Python, or of another environment."""
