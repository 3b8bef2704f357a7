"""A training loop of one's own with Accelerate, on two processes: m5ws hands out the batches, and resumes."""

from pathlib import Path

import torch
import yaml
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

import m5ws

config = yaml.safe_load(Path("config.yaml").read_text())
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
set_seed(1)

tokens = torch.tensor(list(Path("text.txt").read_bytes()[:1200])).view(-1, 10)
data = TensorDataset(tokens[:, :-1], tokens[:, 1:])
loader = DataLoader(data, batch_size=6, shuffle=True)
model = torch.nn.Sequential(torch.nn.Embedding(256, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=config["learning_rate"])
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

batches = m5ws.adapters.accelerate(
    accelerator, model, optimizer, loader, scheduler=schedule, total_steps=config["steps"]
)
for inputs, targets in batches:
    with accelerator.accumulate(model):
        loss = torch.nn.functional.cross_entropy(model(inputs).transpose(1, 2), targets)
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    batches.record(loss=loss)
accelerator.wait_for_everyone()
accelerator.save(accelerator.unwrap_model(model).state_dict(), "out/model.pt")
