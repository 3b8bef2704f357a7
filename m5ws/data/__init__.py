"""Data sets as a training reads them: pinned files, the order of their samples, and a loader.

Importing this package imports neither torch nor NumPy, so that commands can read orders.
"""
