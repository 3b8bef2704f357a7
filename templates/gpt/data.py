"""The corpus as token ids, and the batches of one rank.

The windows of the corpus in a batch are a function of the seed, the epoch, the rank and the batch's number alone.
`state_dict` contains the position of the next batch, so that a resumed training continues with exactly that batch.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer


def load_tokens(corpus: Path, tokenizer: Path) -> tuple[torch.Tensor, int]:
    """Return the token ids of a text file (int64, one dimension) and the size of the tokenizer's vocabulary."""
    known = Tokenizer.from_file(str(tokenizer))
    return torch.tensor(known.encode(corpus.read_text(encoding="utf-8")).ids), known.get_vocab_size()


class Batches:
    """Batches (x, y) of shape (batch_size, length), `y` one token ahead of `x`; iteration continues at the position."""

    def __init__(self, tokens: torch.Tensor, length: int, batch_size: int, *, seed: int, rank: int, world: int) -> None:
        self.tokens, self.length, self.batch_size = tokens, length, batch_size
        self.seed, self.rank, self.world = seed, rank, world
        self.windows = (len(tokens) - 1) // length
        self.epoch, self.position = 0, 0

    def __len__(self) -> int:
        """Return the number of batches in an epoch, the same on every rank."""
        return self.windows // (self.batch_size * self.world)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        order = np.random.default_rng((self.seed, self.epoch)).permutation(self.windows)
        mine = order[self.rank :: self.world]
        while self.position < len(self):
            starts = mine[self.position * self.batch_size :][: self.batch_size] * self.length
            self.position += 1
            yield self._windows(starts), self._windows(starts + 1)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; each has its own order."""
        self.epoch, self.position = epoch, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]

    def _windows(self, starts: np.ndarray) -> torch.Tensor:
        return torch.stack([self.tokens[start : start + self.length] for start in starts])
