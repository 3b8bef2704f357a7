"""Type of the callback for progress of long work."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with (activity, done, total) during long work. A total of 0 means unknown."""


def report(progress: Progress | None, activity: str, done: int = 0, total: int = 0) -> None:
    """Report the progress of work; without counts, its begin."""
    if progress is not None:
        progress(activity, done, total)
