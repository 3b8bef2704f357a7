"""Internals of Lightning's Trainer: the iterator of a training's batches."""

from typing import Any


def data_fetcher(fit_loop: Any) -> Any:
    """Return the iterator of the batches of a training loop; None if Lightning has another iterator."""
    fetcher = getattr(fit_loop, "_data_fetcher", None)
    return fetcher if hasattr(fetcher, "iterator") else None
