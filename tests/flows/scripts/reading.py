"""A training that reads documents of a dataset by `m5ws.data`."""

import torch

import m5ws
import m5ws.data


def collate(samples: list[dict[str, float]]) -> torch.Tensor:
    return torch.tensor([[float(sample["value"])] for sample in samples])


source = m5ws.data.Source(dataset="data/docs", window=3)
loader = m5ws.data.Loader(source, batch_size=4, collate=collate)
torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
session = m5ws.session(model, optimizer, loader=loader, total_steps=8)
for step in session.steps():
    loss = model(step.next_batch()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step.record(loss=loss)
