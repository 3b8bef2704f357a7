"""`python -m m5ws.training.torch_facts`: the torch side of the observed environment, as one JSON object.

A process of its own, so that its caller stays without torch. If torch is absent, its facts are null.
"""

import json
import sys
from importlib import metadata

_NAMES = (
    "torch",
    "torch.cuda",
    "torch.git",
    "cuda.driver",
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
    """Return the facts of `Observed` that only torch has, and DeepSpeed's version."""
    values: dict[str, str | None] = dict.fromkeys(_NAMES)
    try:
        from m5ws.training.runtime.facts import versions
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
    else:
        values |= versions()
    try:
        values["deepspeed"] = metadata.version("deepspeed")
    except metadata.PackageNotFoundError:
        values["deepspeed"] = None
    return values


if __name__ == "__main__":
    json.dump(facts(), sys.stdout)
