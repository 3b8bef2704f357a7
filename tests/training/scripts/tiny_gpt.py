"""A tiny GPT whose parallel forms have the same parameters by the same names, and batches that say where they are."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, LENGTH = 64, 32, 4, 16


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width // HEADS
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = (w(x).view(b, t, -1, self.width).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(mixed.transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(functional.gelu(self.w1(x)))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.n1, self.attn, self.n2, self.mlp = nn.RMSNorm(width), Attention(width), nn.RMSNorm(width), MLP(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(
        self, seed: int, layers: int = 2, width: int = WIDTH, vocabulary: int = VOCABULARY, tie: bool = False
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.tok, self.pos = nn.Embedding(vocabulary, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleDict({str(number): Block(width) for number in range(layers)})
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        if tie:
            self.head.weight = self.tok.weight
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x if self.tok is None else self.tok(x) + self.pos(torch.arange(x.shape[1]))
        for block in self.blocks.values():
            h = block(h)
        return h if self.head is None else self.head(self.norm(h))


def loss_of(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    whole = logits.full_tensor() if hasattr(logits, "full_tensor") else logits
    return functional.cross_entropy(whole.float().flatten(0, 1), y.flatten())


class Batches:
    """Batches by step and data rank alone."""

    def __init__(self, rank: int, rows: int = 4) -> None:
        self.rank, self.rows, self.at = rank, rows, 0

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            self.at += 1
            drawn = torch.Generator().manual_seed(1000 * self.at + self.rank)
            tokens = torch.randint(VOCABULARY, (self.rows, LENGTH + 1), generator=drawn)
            yield tokens[:, :-1], tokens[:, 1:]

    def state_dict(self) -> Any:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]
