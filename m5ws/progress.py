"""Type of the callback for progress of long work."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total) during long work; total 0 means unknown."""
