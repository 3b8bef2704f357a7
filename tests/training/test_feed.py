"""A loader whose `state_dict` fails, such as accelerate's."""

from collections.abc import Iterator

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
