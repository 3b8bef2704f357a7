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


def search(client: Any, tag: str, value: str) -> list[Any]:
    """Return the MLflow runs that have a tag with this value.

    All experiments are searched, because a script may choose its own.
    """
    experiments = [
        experiment.experiment_id for experiment in pages(lambda token: client.search_experiments(page_token=token))
    ]
    query = f"tags.`{tag}` = '{value}'"
    return list(pages(lambda token: client.search_runs(experiments, query, page_token=token))) if experiments else []
