"""The recipe full_finetune_single_device of torchtune with a small Llama 3. It continues from a checkpoint in out/."""

import runpy
import sys
from pathlib import Path

import torch
import torchtune
from omegaconf import OmegaConf
from torchtune.config import instantiate

sys.argv = ["full_finetune_single_device.py", "--config", "config.yaml"]
base, state = Path("out/base/model.bin"), Path("out/recipe_state/recipe_state.pt")
if state.exists():
    epoch = torch.load(state)["epochs_run"] - 1
    (weights,) = Path(f"out/epoch_{epoch}").glob("*.bin")
    sys.argv += ["resume_from_checkpoint=True", f"checkpointer.checkpoint_files=[{weights.relative_to('out')}]"]
elif not base.exists():
    # Instead of a downloaded model.
    torch.manual_seed(1)
    base.parent.mkdir(parents=True)
    torch.save(instantiate(OmegaConf.load("config.yaml").model).state_dict(), base)
runpy.run_path(str(Path(torchtune.__file__).parents[1] / "recipes" / sys.argv[0]), run_name="__main__")
