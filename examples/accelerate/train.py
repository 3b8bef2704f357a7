"""A training loop of one's own with Accelerate: two processes, save_state, and load_state with skip_first_batches."""

from pathlib import Path

import torch
import yaml
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

config = yaml.safe_load(Path("config.yaml").read_text())
settings = ProjectConfiguration(project_dir="out", automatic_checkpoint_naming=True)
order = DataLoaderConfiguration(use_seedable_sampler=True)
accelerator = Accelerator(cpu=True, project_config=settings, dataloader_config=order)
set_seed(1)

tokens = torch.tensor(list(Path("text.txt").read_bytes()[:1200])).view(-1, 10)
data = TensorDataset(tokens[:, :-1], tokens[:, 1:])
loader = DataLoader(data, batch_size=10, shuffle=True, generator=torch.Generator().manual_seed(1))
model = torch.nn.Sequential(torch.nn.Embedding(256, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=config["learning_rate"])
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

step = 0
saved = sorted(Path("out/checkpoints").glob("checkpoint_*"), key=lambda path: int(path.name.split("_")[1]))
if saved:
    accelerator.load_state(str(saved[-1]))
    settings.iteration = len(saved)
    step = 4 * len(saved)
    accelerator.print(f"continuing after step {step} from {saved[-1]}")

while step < config["steps"]:
    epoch, done = divmod(step, len(loader))
    batches = accelerator.skip_first_batches(loader, done) if done else loader
    batches.set_epoch(epoch)
    for inputs, targets in batches:
        loss = torch.nn.functional.cross_entropy(model(inputs).transpose(1, 2), targets)
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        step += 1
        if step % 4 == 0:
            accelerator.save_state()
        if step == config["steps"]:
            break
accelerator.wait_for_everyone()
accelerator.save(accelerator.unwrap_model(model).state_dict(), "out/model.pt")
