"""`python -m m5ws.training.observe`: the torch side of the observed environment, as one JSON object.

A process of its own, so that what asks for it stays without torch. Absent torch is an answer, not an error.
"""

import json
import sys
from importlib import metadata

_NAMES = (
    "torch",
    "torch.cuda",
    "torch.git",
    "cudnn",
    "nccl",
    "gpu.model",
    "gpu.count",
    "cpu.capability",
    "cpu.portable",
    "mkl",
    "onednn",
)


def facts() -> dict[str, str | None]:
    """Return the facts of `Observed` that only torch knows, and DeepSpeed's version."""
    found: dict[str, str | None] = dict.fromkeys(_NAMES)
    try:
        from m5ws.training.runtime.facts import versions
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
    else:
        found |= versions()
    try:
        found["deepspeed"] = metadata.version("deepspeed")
    except metadata.PackageNotFoundError:
        found["deepspeed"] = None
    return found


if __name__ == "__main__":
    json.dump(facts(), sys.stdout)
