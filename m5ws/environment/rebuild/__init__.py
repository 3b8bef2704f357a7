"""Environments rebuilt from recipes."""
