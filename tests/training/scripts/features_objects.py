"""Features of a script's own objects: their state, loaders, and averages of a model."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from features import FEATURES, Made, adamw, data_rank, feature, shard, trainer
from features_optimizers import muon_and_adamw
from tiny_gpt import GPT, LENGTH, VOCABULARY, Batches
from torch import nn

from m5ws.data import Loader, Source

# --- the script's own objects


class Deaf:
    """Returns a state and accepts none."""

    def state_dict(self) -> Any:
        return {"seen": 1}

    def load_state_dict(self, state: Any) -> None:
        raise NotImplementedError("one day")


class Clock(Deaf):
    """Returns another state at each call."""

    def __init__(self) -> None:
        self.seen = 0

    def state_dict(self) -> Any:
        self.seen += 1
        return {"seen": self.seen}

    def load_state_dict(self, state: Any) -> None:
        self.seen = 0


def _object(seed: int, item: Any) -> Made:
    model = GPT(seed)
    return trainer(model, adamw(model), state={"own": item})


FEATURES |= {"deaf_object": lambda seed: _object(seed, Deaf()), "clock": lambda seed: _object(seed, Clock())}


# --- loaders


class Elastic(Batches):
    """One global batch of four rows, of which each rank has its part: the position is the same for any number."""

    elastic = True

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        for x, y in super().__iter__():
            yield x.chunk(ranks)[data_rank()], y.chunk(ranks)[data_rank()]


@feature
def elastic(seed: int) -> Made:
    model = GPT(seed)
    model = shard(model) if dist.is_initialized() else model
    loader = Elastic(0)
    parts, step = trainer(model, adamw(model), loader=loader)

    def checked(current: Any) -> dict[str, Any]:
        found = step(current)
        assert loader.at == current.number, "the position in the data is lost"
        return found

    return parts, checked


class _Windows:
    """Token files in the place of a pinned data set."""

    name = folder = "data/tokens"
    digest = "drawn"

    def __init__(self, root: Path) -> None:
        self.files = [SimpleNamespace(path=f"{number}.npy") for number in range(5)]
        self._root = root
        for number, file in enumerate(self.files):
            drawn = np.random.default_rng(number).integers(0, VOCABULARY, 20 * LENGTH, dtype=np.uint16)
            np.save(root / file.path, drawn)

    def fetch(self, index: int) -> Path:
        return self._root / self.files[index].path


def _split(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.from_numpy(np.stack(samples))
    return tokens[:, :-1], tokens[:, 1:]


@feature
def data_loader(seed: int) -> Made:
    """The loader of m5ws, with workers: each step of all ranks has the next samples of the order."""
    source = Source(dataset=_Windows(Path(tempfile.mkdtemp())), length=LENGTH, extra=1, window=2)
    model = GPT(seed)
    model = shard(model) if dist.is_initialized() else model
    ranks = {"rank": dist.get_rank(), "world": dist.get_world_size()} if dist.is_initialized() else {}
    loader = Loader(source, batch_size=4, seed=3, workers=1, collate=_split, **ranks)
    parts, step = trainer(model, adamw(model), loader=loader)

    def checked(current: Any) -> dict[str, Any]:
        found = step(current)
        assert loader.take_consumed() == {"tokens": f"0:{4 * current.number - 4}-{4 * current.number}"}
        return found

    return parts, checked


class Apart(Elastic):
    """A loader that claims to be elastic, with a different position on each rank."""

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "rank": data_rank()}


@feature
def elastic_apart(seed: int) -> Made:
    model = shard(GPT(seed))
    return trainer(model, adamw(model), loader=Apart(0))


class Failing(Batches):
    """Returns its position for a while, on one rank."""

    def state_dict(self) -> dict[str, Any]:
        if self.at > 1 and data_rank() == 1:
            raise OSError("the index is gone")
        return super().state_dict()


@feature
def failing_loader(seed: int) -> Made:
    model = shard(GPT(seed))
    return trainer(model, adamw(model), loader=Failing(data_rank()))


class Torn(Batches):
    """A loader whose `state_dict` fails, such as accelerate's."""

    def state_dict(self) -> dict[str, Any]:
        raise AttributeError("'DataLoaderShard' object has no attribute 'dl_state_dict'")


@feature
def torn_loader(seed: int) -> Made:
    model = GPT(seed)
    return trainer(model, adamw(model), loader=Torn(0))


# --- averages


@feature
def ema_averaged(seed: int) -> Made:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = GPT(seed)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    return trainer(model, adamw(model), state={"ema": ema}, after=lambda: ema.update_parameters(model))


@feature
def ema_sharded(seed: int) -> Made:
    model, ema = shard(GPT(seed)), shard(GPT(seed))

    @torch.no_grad()
    def after() -> None:
        for average, parameter in zip(ema.parameters(), model.parameters(), strict=True):
            average.lerp_(parameter.detach(), 0.1)

    return trainer(model, adamw(model), state={"ema": ema}, after=after)


@feature
def ema_within(seed: int) -> Made:
    """The model and its average as one module."""
    model, ema = shard(GPT(seed)), shard(GPT(seed))
    ema.requires_grad_(False)

    @torch.no_grad()
    def after() -> None:
        for average, parameter in zip(ema.parameters(), model.parameters(), strict=True):
            average.lerp_(parameter.detach(), 0.1)

    parts, step = trainer(model, adamw(model), after=after)
    return {**parts, "model": nn.ModuleDict({"net": model, "ema": ema})}, step


@feature
def second_in_state(seed: int) -> Made:
    model = shard(GPT(seed))
    muon, rest = muon_and_adamw(model)
    return trainer(model, muon, rest, state={"adamw": rest})
