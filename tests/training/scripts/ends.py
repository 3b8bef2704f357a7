"""Session scripts that train beside the session, change weights after it, or save where no resume is exact."""

import sys

import torch

import m5ws

word = sys.argv[1]
torch.manual_seed(1)


def beside(layer: torch.Tensor) -> None:
    optimizer = torch.optim.SGD([layer], lr=0.1)
    layer.square().sum().backward()
    optimizer.step()


def train() -> tuple[object, ...]:
    model, added = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    average = torch.optim.swa_utils.AveragedModel(model)
    state = {"average": average} if word == "average" else {}
    session = m5ws.session(model, optimizer, total_steps=6, checkpoint_every=2, state=state)
    for step in session.steps():
        if word == "group" and step.number == 3:
            optimizer.add_param_group({"params": list(added.parameters())})
        added(model(torch.ones(1, 2))).sum().backward()
        if word != "pending" or step.number % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
        step.record()
    return model, session, average


other = torch.ones(3, requires_grad=True)
if word == "before":
    beside(other)
alive = train()
if word == "second":
    beside(other)
if word == "second deleted":
    beside(torch.ones(3, requires_grad=True))
if word == "in a function":
    del alive
if word == "failed":
    raise ValueError
