"""Training without m5ws: it writes a file, and logs to MLflow if that is installed."""

import os
import random
import sys
from pathlib import Path

import mlflow
import numpy as np
import torch

if "unseeded" not in sys.argv:
    torch.manual_seed(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
weights = torch.randn(50)
if int(os.environ.get("RANK", "0")) == 0:
    with mlflow.start_run():
        for step in range(5):
            weights = weights * 0.9 + torch.randn(50) * 0.1
            mlflow.log_metric("norm", float(weights.norm()), step=step)
    Path("out").mkdir(exist_ok=True)
    Path("out/weights.txt").write_text("\n".join(value.hex() for value in weights.tolist()))
    if "unseeded" in sys.argv:
        Path("out/unseeded.txt").write_text(f"{random.random()} {np.random.rand()} {torch.rand(1).item()}")
    if "noise" in sys.argv:
        Path("out/noise.txt").write_text(str(random.SystemRandom().random()))
