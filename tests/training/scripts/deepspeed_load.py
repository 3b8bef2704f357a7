"""Loads exported checkpoints with DeepSpeed's own engine: deepspeed_load.py OUT DIRECTORY:STAGE:DTYPE…

The fingerprints of all state that each engine then has go to OUT/<number>.json.
"""

import gc
import json
import sys
from pathlib import Path

import deepspeed
import torch
from deepspeed_tiny import Model, config, engine_of

from m5ws.training import control, fingerprint
from m5ws.training.deepspeed import DeepSpeedBackend

out, *cases = sys.argv[1:]
deepspeed.init_distributed("gloo", verbose=False)
group = control.new_group()
for number, case in enumerate(cases):
    directory, stage, dtype = case.rsplit(":", 2)
    torch.manual_seed(99)
    engine = engine_of(config(int(stage), dtype), Model())
    path, _ = engine.load_checkpoint(directory)
    assert path is not None, "DeepSpeed found no checkpoint"
    found = fingerprint.fingerprints(DeepSpeedBackend(engine).tensors(), group)
    if torch.distributed.get_rank() == 0:
        Path(out, f"{number}.json").write_text(json.dumps(found))
    engine.destroy()
    del engine
    gc.collect()
torch.distributed.destroy_process_group()
