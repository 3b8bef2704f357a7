"""The work directory of an attempt: its place, and the input files in it."""
