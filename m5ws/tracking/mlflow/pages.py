"""Iteration over MLflow's paged answers."""

from collections.abc import Callable, Iterator
from typing import Any


def pages(fetch: Callable[[str | None], Any]) -> Iterator[Any]:
    """Yield all items. `fetch` takes the token of a page and returns the page."""
    token = None
    while True:
        page = fetch(token)
        yield from page
        token = page.token
        if not token:
            return
