"""Loads exported checkpoints with DeepSpeed's own engine: deepspeed_load.py OUT DIRECTORY:STAGE:DTYPE[:universal]…

The fingerprints of all state that each engine then has go to OUT/<number>.json.
"""

import gc
import json
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed_tiny import Model, config, engine_of

from m5ws.training.backends.deepspeed.backend import DeepSpeedBackend
from m5ws.training.fingerprint import fingerprint
from m5ws.training.runtime import collectives


def load(directory: str, stage: int, dtype: str, universal: bool, group: Any) -> dict[str, str]:
    """Return the fingerprints of a new engine's state once it has loaded a checkpoint."""
    torch.manual_seed(99)
    settings = config(stage, dtype)
    engine = engine_of(settings | ({"checkpoint": {"load_universal": True}} if universal else {}), Model())
    path, _ = engine.load_checkpoint(directory)
    assert path is not None, "DeepSpeed found no checkpoint"
    engine._config._param_dict.pop("checkpoint", None)  # It is loaded; our backend refuses such an engine.
    found = fingerprint.fingerprints(DeepSpeedBackend(engine).tensors(), group)
    engine.destroy()
    return found


def main(out: str, *cases: str) -> None:
    deepspeed.init_distributed("gloo", verbose=False)
    group = collectives.new_group()
    for number, case in enumerate(cases):
        directory, stage, dtype, *universal = case.split(":")
        found = load(directory, int(stage), dtype, bool(universal), group)
        gc.collect()
        if torch.distributed.get_rank() == 0:
            Path(out, f"{number}.json").write_text(json.dumps(found))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
