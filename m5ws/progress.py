"""Type of the callback for progress of long work."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with (activity, done, total) during long work. A total of 0 means unknown."""


def report(progress: Progress | None, activity: str) -> None:
    """Report the begin of work without a count."""
    if progress is not None:
        progress(activity, 0, 0)
