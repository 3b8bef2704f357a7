"""A Hydra application with a loop of its own: with a folder of a fixed name for its job."""

import json
import logging
import time
from pathlib import Path

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

import m5ws

log = logging.getLogger(__name__)


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(settings: DictConfig) -> None:
    began = time.time()
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.optimizer.learning_rate)
    saved = Path("outputs/last.pt")
    first = 0
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        first = state["step"]
    m5ws.resumed_at(first)  # SGD counts no steps: this line states where a resumed attempt continues.
    for step in range(first, settings.steps):
        inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.info("step %d: loss %.4f", step, loss)
        if (step + 1) % 4 == 0:
            torch.save({"model": model.state_dict(), "step": step + 1}, saved)
    folder = Path(HydraConfig.get().runtime.output_dir)
    settings = OmegaConf.to_container(settings, resolve=True)
    torch.save({"model": model.state_dict(), "settings": settings, "saved": time.time()}, folder / "model.pt")
    metrics = {"loss": loss.item(), "seconds": time.time() - began, "finished": time.ctime()}
    (folder / "metrics.json").write_text(json.dumps(metrics))


main()
