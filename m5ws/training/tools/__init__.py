"""Torch functions that commands call in their own process."""
