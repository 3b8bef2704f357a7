"""Checks of a machine and a workspace. They change nothing, but for keys that they create and delete in the store."""
