"""A training that is killed once after a save, and continues from its own checkpoint: exactly, or with a fault.

Arguments: the fault, and a folder outside of the outputs. It gets a file when the script is killed, and a file with the
final weights of each attempt.
"""

import json
import os
import random
import signal
import sys
from pathlib import Path

import torch

fault, folder = sys.argv[1], Path(sys.argv[2])
STEPS, SAVED = 12, 3
folder.mkdir(exist_ok=True)
died = folder / "died"
checkpoint = Path("out/checkpoint.pt")
checkpoint.parent.mkdir(exist_ok=True)


class Unreadable(float):
    """A setting of an optimizer whose text cannot be read, so that the observation ends with an error."""

    def __repr__(self) -> str:
        raise ArithmeticError


torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
head = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2))
parameters = [*model.parameters(), *head.parameters()]
twins = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
if fault == "exact, modules in turn":
    parameters += twins.parameters()
counts = fault in (
    "exact, modules in turn",
    "exact, optimizers in turn",
    "exact, optimizers at intervals",
    "buffers of a module that is not called again",
    "noise",
    "exact and counted",
    "no step",
    "own updates",
    "buffers",
    "best weights",
    "rounded",
)
optimizer = (torch.optim.Adam if counts else torch.optim.SGD)(parameters, lr=0.1)
optimizers = [optimizer]
if fault.startswith("exact, optimizers"):
    optimizers = [torch.optim.Adam(part.parameters(), lr=0.1) for part in (model, head)]
begin, best = 0, {}
if checkpoint.exists():
    stored = torch.load(checkpoint)
    model.load_state_dict(stored["model"])
    head.load_state_dict(stored["head"], strict=False)
    twins.load_state_dict(stored["twins"])
    for each, state in zip(optimizers, stored["optimizers"], strict=True):
        each.load_state_dict(state)
    if fault != "noise":
        torch.set_rng_state(stored["generator"])
    begin = stored["step"]
position = 0 if fault == "order" else begin
end = STEPS + (begin if fault == "more-steps" else 0)
if fault == "no step" and begin:
    end = begin
for step in range(begin + 1, end + 1):
    position += 1
    generator = torch.Generator().manual_seed(position)
    x = torch.randn(8, 4, generator=generator)
    if fault == "unobserved" and step > SAVED + 1:
        optimizer.param_groups[0]["unreadable"] = Unreadable()
        x = x + random.SystemRandom().random()
    output = model(x)
    if fault == "exact, modules in turn":
        output = twins[step % 2](output)
    elif fault == "exact, optimizers in turn" and step % 2:
        output = head(x)
    if fault == "exact, optimizers at intervals" and step % 3 == 0:
        output = output + head(x)
    if (fault == "buffers" and step % 3 == 0) or (fault.startswith("buffers of") and step < SAVED):
        output = output + head(x)
    loss = torch.nn.MSELoss()(output, x[:, :2])
    used = [optimizers[step % len(optimizers)]]
    if fault == "exact, optimizers at intervals":
        used = optimizers if step % 3 == 0 else optimizers[:1]
    for each in used:
        each.zero_grad()
    loss.backward()
    for each in used:
        each.step()
    torch.rand(1)
    if step < SAVED:
        best = {name: value.clone() for name, value in model.state_dict().items()}
    if step == SAVED:
        state = {"model": model.state_dict(), "twins": twins.state_dict(), "generator": torch.get_rng_state()}
        state["head"] = dict(head.named_parameters()) if "buffers" in fault else head.state_dict()
        state["optimizers"] = [each.state_dict() for each in optimizers]
        torch.save({**state, "step": step}, checkpoint)
    if step == (STEPS if fault == "no step" else SAVED) and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
if fault == "noise":
    with torch.no_grad():
        model.weight.add_(torch.randn(2, 4))
if fault == "best weights" and best:
    model.load_state_dict(best)
if fault == "rounded":
    with torch.no_grad():
        model.weight.mul_(1 + random.SystemRandom().random())
if fault == "own updates":
    for _ in range(3):
        x = torch.randn(8, 4) + random.SystemRandom().random()
        model.zero_grad()
        torch.nn.MSELoss()(model(x), x[:, :2]).backward()
        with torch.no_grad():
            model.weight.sub_(0.1 * model.weight.grad)
checkpoint.unlink()
Path("out/config.json").write_text(json.dumps({"steps": STEPS}))
with (folder / "finals").open("a") as finals:
    final = torch.cat([model.weight.detach().flatten(), head[1].running_mean])
    finals.write(final.numpy().tobytes().hex() + "\n")
