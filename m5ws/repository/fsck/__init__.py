"""Checks of a whole store (`m5ws fsck`)."""
