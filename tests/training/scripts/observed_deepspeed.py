"""A DeepSpeed training that knows nothing of m5ws. Called as: observed_deepspeed.py STAGE STEPS."""

import logging
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from deepspeed_tiny import Model, config, engine_of

logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
stage, steps = int(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(1)
engine = engine_of(config(stage, "bf16"), Model())
for step in range(1, steps + 1):
    x = torch.randn(4, 7, generator=torch.Generator().manual_seed(100 * step + engine.global_rank))
    engine.backward(engine(x))
    engine.step()
