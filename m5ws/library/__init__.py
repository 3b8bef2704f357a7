"""The Python interface (docs/reference/python.md), and actions that the command line shares with it."""
