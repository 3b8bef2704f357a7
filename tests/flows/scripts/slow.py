"""A training of which one rank is slow: `slow.py KIND RANK STEPS`."""

import sys
import time

import torch
import torch.distributed as dist

kind, culprit, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo")
is_slow = dist.get_rank() == culprit


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return steps

    def __getitem__(self, index: int) -> torch.Tensor:
        if kind == "data" and is_slow:
            time.sleep(0.06)
        return torch.full((4,), float(index))


def compute(seconds: float) -> None:
    end, weights = time.monotonic() + seconds, torch.ones(64, 64)
    while time.monotonic() < end:
        weights @ weights


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
for batch in torch.utils.data.DataLoader(Numbers()):
    compute(0.06 if kind == "compute" and is_slow else 0.01)
    loss = model(batch).sum()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
