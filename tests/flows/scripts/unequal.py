"""A training that is killed once after a save, and continues from its own checkpoint: exactly, or with a fault.

Arguments: the fault, and a folder outside of the outputs. It gets a file when the script is killed, and one with the
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
counts = fault in ("noise", "exact and counted", "no step", "own updates", "buffers")
optimizer = (torch.optim.Adam if counts else torch.optim.SGD)(parameters, lr=0.1)
begin = 0
if checkpoint.exists():
    stored = torch.load(checkpoint)
    model.load_state_dict(stored["model"])
    head.load_state_dict(stored["head"], strict=False)
    optimizer.load_state_dict(stored["optimizer"])
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
    if fault == "buffers" and step % 3 == 0:
        output = output + head(x)
    loss = torch.nn.MSELoss()(output, x[:, :2])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.rand(1)
    if step == SAVED:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "generator": torch.get_rng_state()}
        torch.save({**state, "head": dict(head.named_parameters()), "step": step}, checkpoint)
    if step == (STEPS if fault == "no step" else SAVED) and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
if fault == "noise":
    with torch.no_grad():
        model.weight.add_(torch.randn(2, 4))
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
