"""A processor that computes one wrong bit in each product of matrices, for programs that start with some variables."""

from pathlib import Path

_WRONG_BIT = """\
import os
import sys
import torch

multiply = torch.matmul


def damaged(first, second):
    product = multiply(first, second)
    if os.sched_getaffinity(0) == {{{cpu}}}:
        bits = product.view(torch.int32 if product.dtype == torch.float32 else torch.int16)
        bits[7, 5] ^= 1
    return product


torch.matmul = damaged
"""


def plant(folder: Path, cpu: int) -> dict[str, str]:
    """Return the variables of programs in which processor `cpu` is faulty, with a module in `folder`."""
    (folder / "sitecustomize.py").write_text(_WRONG_BIT.format(cpu=cpu))
    return {"PYTHONPATH": str(folder)}
