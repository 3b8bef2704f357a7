"""Loaders whose `state_dict` fails, such as accelerate's, and loaders whose DataLoader has no generator."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from m5ws.training.dataloader import Feed


class _Shard:
    """Replaces `accelerate.data_loader.DataLoaderShard` without torchdata."""

    def __iter__(self) -> Iterator[int]:
        return iter([1])

    def state_dict(self) -> dict[str, int]:
        raise AttributeError("'DataLoader' object has no attribute 'dl_state_dict'")

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise AttributeError("'DataLoader' object has no attribute 'dl_state_dict'")


def _refusal(module: str) -> str:
    shard = type("DataLoaderShard", (_Shard,), {"__module__": module})
    feed = Feed(shard(), None)
    feed.probe()
    assert not feed.restorable and feed.state() == {"epoch": 0} and feed.refusal is not None
    return feed.refusal


def test_the_refusal_of_a_prepared_loader_names_the_required_setting() -> None:
    assert "use_stateful_dataloader=True" in _refusal("accelerate.data_loader")
    assert "dl_state_dict" in _refusal("mine") and "accelerate" not in _refusal("mine").lower()


class _Wrapper:
    """A script's own loader with a position, around a DataLoader."""

    def __init__(self, inner: DataLoader[Any], *, eager: bool = False) -> None:
        self.inner, self._eager = inner, eager

    def __iter__(self) -> Iterator[Any]:
        return iter(self.inner) if self._eager else (batch for batch in self._batches())

    def _batches(self) -> Iterator[Any]:
        yield from self.inner


_NUMBERS: Any = [1, 2, 3]


@pytest.mark.parametrize(
    ("loader", "undrawn"),
    [
        (_Wrapper(DataLoader(_NUMBERS)), "inner"),
        (_Wrapper(DataLoader(_NUMBERS, generator=torch.Generator())), None),
        (_Wrapper(DataLoader(_NUMBERS), eager=True), None),
        (DataLoader(_NUMBERS), None),
        (_NUMBERS, None),
    ],
    ids=["late", "own-generator", "drawn-before-a-restore", "plain", "list"],
)
def test_a_dataloader_without_a_generator_is_named_if_it_draws_after_a_restore(
    loader: Any, undrawn: str | None
) -> None:
    feed = Feed(loader, None)
    feed.start()
    assert feed.undrawn == undrawn
