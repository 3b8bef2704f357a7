"""A training loop of one's own with Lightning Fabric: two processes with DDP, fabric.save and fabric.load."""

from pathlib import Path

import lightning
import torch
import yaml
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

config = yaml.safe_load(Path("config.yaml").read_text())
fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
fabric.seed_everything(1)

inputs = torch.randn(96, 8)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
# Not with fabric.setup_dataloaders: it counts the epochs of its own process, so a resume would begin with epoch 0.
sampler = DistributedSampler(data, fabric.world_size, fabric.global_rank, seed=1)
loader = DataLoader(data, 8, sampler=sampler, generator=torch.Generator())
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=config["learning_rate"])
model, optimizer = fabric.setup(model, optimizer)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
fabric.seed_everything(1 + fabric.global_rank)

state = {"model": model, "optimizer": optimizer, "schedule": schedule, "step": 0, "generators": None}
saved = sorted(Path("out").glob("step-*.ckpt"))
if saved:
    fabric.load(saved[-1], state)
    torch.set_rng_state(state["generators"][fabric.global_rank].clone())
    fabric.print(f"continuing after step {state['step']} from {saved[-1]}")

while state["step"] < config["steps"]:
    epoch, done = divmod(state["step"], len(loader))
    sampler.set_epoch(epoch)
    for index, (x, y) in enumerate(loader):
        if index < done:
            continue
        loss = torch.nn.functional.mse_loss(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        state["step"] += 1
        if state["step"] % 4 == 0:
            state["generators"] = fabric.all_gather(torch.get_rng_state())
            fabric.save(f"out/step-{state['step']:02}.ckpt", state)
        if state["step"] == config["steps"]:
            break
fabric.save("out/model.pt", {"model": model})
