"""A training loop that takes a moment, for tests that run it inside their own process."""

from collections.abc import Callable

import torch

import m5ws


def train(steps: int, every: int | None, at: Callable[[int], None] = lambda _: None) -> Callable[[], None]:
    """Return a script that trains a small model, calling `at` in the body of each step."""

    def script() -> None:
        m5ws.seed()
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in m5ws.session(model, optimizer, total_steps=steps, checkpoint_every=every).steps():
            at(step.number)
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return script
