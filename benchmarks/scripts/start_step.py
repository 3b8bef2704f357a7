"""A small training for start.py: `start_step.py TIMES [plain|metric|autolog]`.

TIMES gets the times of the first and the last line.
"""

import json
import sys
import time
from pathlib import Path

began_s = time.time()

import torch  # noqa: E402 — its import is a part of the script

times, logging = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "plain"
if logging != "plain":
    import mlflow

    if logging == "autolog":
        mlflow.autolog()
    mlflow.start_run()

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 512))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.randn(256, 512)
for step in range(40):
    loss = torch.nn.functional.mse_loss(model(data), data)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if logging != "plain":
        mlflow.log_metric("loss", loss.item(), step)
if logging != "plain":
    mlflow.end_run()
times.write_text(json.dumps([began_s, time.time()]))
