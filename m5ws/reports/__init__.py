"""Runs beside each other, and one run with all that belongs to it, for people."""
