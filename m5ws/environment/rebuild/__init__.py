"""Environments made again from recipes."""
