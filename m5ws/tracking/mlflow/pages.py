"""What MLflow answers in pages, one after the other."""

from collections.abc import Callable, Iterator
from typing import Any


def pages(fetch: Callable[[str | None], Any]) -> Iterator[Any]:
    """Yield everything; `fetch` is given the token of the page it is to return."""
    token = None
    while True:
        page = fetch(token)
        yield from page
        token = page.token
        if not token:
            return
