"""A small language model and its data, with dropout, a tied shape, buffers and a stateful loader."""

import random
from pathlib import Path

import torch
import yaml
from tokenizers import Tokenizer
from torch import nn

SEQUENCE = 16


def config() -> dict:
    return yaml.safe_load(Path("config.yaml").read_text())


def tokens() -> torch.Tensor:
    tokenizer = Tokenizer.from_file("tokenizer/tokenizer.json")
    return torch.tensor(tokenizer.encode(Path("data/corpus.txt").read_text()).ids)


class Small(nn.Module):
    """Predicts the next token from the mean of the tokens before."""

    def __init__(self, vocabulary: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, hidden)
        self.up = nn.Linear(hidden, 2 * hidden)
        self.down = nn.Linear(2 * hidden, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        self.register_buffer("scale", torch.arange(1, SEQUENCE + 1, dtype=torch.float32))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(x)
        mean = hidden.cumsum(1) / self.scale.to(hidden.dtype)[None, : x.shape[1], None]
        hidden = hidden + self.dropout(self.down(torch.relu(self.up(self.norm(mean)))))
        return nn.functional.cross_entropy(self.head(hidden).float().flatten(0, 1), y.flatten())


class Loader:
    """Random windows of the tokens. The next window depends on the loader's state alone, and on no global generator."""

    def __init__(self, data: torch.Tensor, batch: int, seed: int) -> None:
        self.data, self.batch = data, batch
        self.random = random.Random(seed)

    def __iter__(self) -> "Loader":
        return self

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        starts = [self.random.randrange(len(self.data) - SEQUENCE - 1) for _ in range(self.batch)]
        rows = torch.stack([self.data[start : start + SEQUENCE + 1] for start in starts])
        return rows[:, :-1], rows[:, 1:]

    def state_dict(self) -> dict:
        version, numbers, gauss = self.random.getstate()
        return {"version": version, "numbers": list(numbers), "gauss": gauss}

    def load_state_dict(self, state: dict) -> None:
        self.random.setstate((state["version"], tuple(state["numbers"]), state["gauss"]))
