"""A training that measures the seconds in which each step waits for its batch.

Usage: link_step.py {tokens,images} DATASET STEPS STEP_MS WORKERS THREADS OUT. The rest of a step is a sleep: the
processors of a machine that trains on GPUs are as idle.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

import m5ws
import m5ws.data

LENGTH, TOKENS_BATCH, IMAGES_BATCH, SIDE = 1024, 32, 4, 224


def crop(sample: dict[str, object], generator: np.random.Generator) -> np.ndarray:
    """Return a random crop of a decoded image, as floats."""
    image = sample["jpg"]
    top, left = generator.integers(0, 256 - SIDE, 2)
    return image[top : top + SIDE, left : left + SIDE].astype(np.float32) / 255


def main() -> None:
    kind, dataset, steps, step_ms, workers, threads, out = sys.argv[1:]
    m5ws.seed(7)
    if kind == "tokens":
        source, size = m5ws.data.Source(dataset=dataset, length=LENGTH), TOKENS_BATCH
    else:
        source, size = m5ws.data.Source(dataset=dataset, transform=crop), IMAGES_BATCH
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    began_s = time.perf_counter()
    # The counts of samples stay here when the benchmark removes the cached files.
    counts = Path(out).parent / "counts"
    loader = m5ws.data.Loader(source, batch_size=size, workers=int(workers), threads=int(threads), cache=counts)
    session = m5ws.session(model, optimizer, loader=loader, total_steps=int(steps))
    start_s = time.perf_counter() - began_s
    waits_s = []
    for step in session.steps():
        began_s = time.perf_counter()
        batch = step.next_batch()
        waits_s.append(time.perf_counter() - began_s)
        loss = model(torch.ones(1, 1)).sum() * batch.float().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(float(step_ms) / 1000)
        step.record(loss=loss)
    Path(out).write_text(json.dumps({"start_s": start_s, "waits_s": waits_s}))


if __name__ == "__main__":
    main()
