"""The device on which Triton's kernel runs: a GPU, or the processor by Triton's interpreter."""

import importlib.util
import os

import torch


def find() -> torch.device | None:
    """Return the processor if TRITON_INTERPRET=1, else a GPU; None without either, or without Triton."""
    if importlib.util.find_spec("triton") is None:
        return None
    if os.environ.get("TRITON_INTERPRET") == "1":
        return torch.device("cpu")
    return torch.device("cuda", 0) if torch.cuda.is_available() else None
