"""Checkpoints as files of other tools."""
