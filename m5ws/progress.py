"""Type of the callback for progress of long work."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with (activity, done, total) during long work. A total of 0 means unknown."""
